package promotion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/edit"
)

// most commits are made at once. What is left waits for the next look.
const most = 50

// ErrNoBranch says that the revision that is delivered does not move by commits.
var ErrNoBranch = errors.New("promotions are commits on a branch")

// Options are the settings of a [Promoter]; Repo and Now are required.
type Options struct {
	Repo *registry.Repo
	// Revision is the branch that is delivered; empty: the default branch.
	Revision string
	// Credentials is a file of logins for pushes alone, as in [registry.Options].
	Credentials string
	// Author and Email of the commits. Default: Keelson, keelson@localhost.
	Author, Email string
	// Sign makes the armored signature of a commit; nil: commits are not signed.
	Sign func(payload []byte) (string, error)
	// Requests is the forge that has the pull requests; nil: stages that are promoted by
	// one are not.
	Requests forge.Proposer
	// Redact takes secrets out of what is written to a forge; nil: nothing is.
	Redact func(string) string
	Now    func() time.Time
}

// Promoter makes commits of what is promoted.
type Promoter struct {
	Options
	// past is what was found out of a revision: it does not change.
	revision string
	past     map[pastKey]string
	// known is what is known of pull requests, and moved which branches of our own were
	// sent elsewhere since git was read. Who begins anew asks.
	known map[string]known // by branch
	moved map[string]move
}

// move is of a branch that was at a commit; empty: that was not there.
type move struct {
	from string
	at   time.Time
}

type pastKey struct{ file, component, version string }

// New prepares a promoter; it makes no call.
func New(o Options) *Promoter {
	o.Author, o.Email = cmp.Or(o.Author, "Keelson"), cmp.Or(o.Email, "keelson@localhost")
	if o.Redact == nil {
		o.Redact = func(text string) string { return text }
	}
	return &Promoter{Options: o, known: map[string]known{}, moved: map[string]move{}}
}

// Plan is what may be promoted at one revision.
type Plan struct {
	// Branch that is delivered, at the commit Revision.
	Branch   string `json:"branch"`
	Revision string `json:"revision"`
	// Steps of all components, in their order; also those that lead nowhere, with why.
	Steps []Step `json:"steps"`
	// contents are those of each step's file, behind that step and those of the same way
	// before it.
	contents  []string
	facts     map[string]Facts // by component
	whole     bool             // it is of all components
	proposals []*proposal      // what is to be done with pull requests
	unread    bool             // the clone has not seen yet where a branch was sent
}

// Plan finds out what may be promoted of some components of a fleet, and what each commit
// would change. Stand says how far a component has come; its error, as that of the
// repository, ends it: what is not known promotes nothing.
func (p *Promoter) Plan(ctx context.Context, f *registry.Fleet, components []string, stand func(component string) (rollout.Stand, error)) (Plan, error) {
	out := Plan{Branch: p.Repo.Branch(p.Revision), Revision: f.Revision, facts: map[string]Facts{}, whole: len(components) == len(f.Promoted())}
	if out.Branch == "" {
		return out, fmt.Errorf("%w, and %q is none", ErrNoBranch, p.Revision)
	}
	if p.revision != f.Revision {
		p.revision, p.past = f.Revision, map[pastKey]string{}
	}
	pushed := map[string]string{} // contents by file
	for _, component := range components {
		facts, err := p.gather(ctx, f, component, stand)
		if err != nil {
			return out, err
		}
		steps := Decide(facts)
		out.facts[component] = facts
		for i := range steps {
			content, err := p.complete(ctx, f, &steps[i], pushed)
			if err != nil {
				return out, err
			}
			out.Steps, out.contents = append(out.Steps, steps[i]), append(out.contents, content)
		}
	}
	return out, nil
}

// gather finds out what is known of one component. How far it has come is asked where it
// matters alone: where something would be promoted if all had passed.
func (p *Promoter) gather(ctx context.Context, f *registry.Fleet, component string, stand func(component string) (rollout.Stand, error)) (Facts, error) {
	now := p.Now()
	all := rollout.Stand{Passed: map[string]time.Time{}}
	for _, s := range f.PipelineOf(component).Stages {
		all.Passed[s.Spec.Name] = now
	}
	facts, err := Gather(f, component, all, now)
	if err == nil {
		facts.Refused, err = p.refused(ctx, f, &facts)
	}
	if err != nil || !slices.ContainsFunc(Decide(facts), func(s Step) bool { return s.To != "" }) {
		return facts, err
	}
	is, err := stand(component)
	if err != nil {
		return facts, err
	}
	refused := facts.Refused
	facts, err = Gather(f, component, is, now)
	facts.Refused = refused
	return facts, err
}

// refused finds out which versions are refused of those that could be next: for each
// stage down to the first that is not.
func (p *Promoter) refused(ctx context.Context, f *registry.Fleet, facts *Facts) (map[string]string, error) {
	out := map[string]string{}
	for stage := range facts.Stages {
		for _, version := range facts.Candidates(stage) {
			why, err := p.refuses(ctx, f, facts.Component, version)
			if err != nil {
				return nil, err
			}
			if why == "" {
				break
			}
			out[version] = why
		}
	}
	return out, nil
}

// refuses says why a version is promoted nowhere; empty: it may be. A tag can be pushed
// without a review, so a tag alone doesn't decide what clusters run: its commit has to be
// on the branch.
func (p *Promoter) refuses(ctx context.Context, f *registry.Fleet, component, version string) (string, error) {
	wrong, err := p.Repo.Refuses(component, version)
	if err != nil {
		return "", err
	}
	if wrong != nil {
		return "can't be had: " + wrong.Message, nil //nolint:nilerr // the problem is what was asked for
	}
	if f.Spec.PromotableTags == v1alpha1.PromotableAll {
		return "", nil
	}
	merged, err := p.Repo.Merged(ctx, f.Revision, component, version)
	if err != nil || merged {
		return "", err
	}
	return fmt.Sprintf("is not merged: the commit of its tag is not on branch %s; merge that commit, or set promotableTags: all in fleet.yaml", p.Repo.Branch(p.Revision)), nil
}

// complete says of a step what it changes, and returns the new content of its file;
// pushed are the files as the steps before it leave them. A step that may not be becomes
// one that leads nowhere.
func (p *Promoter) complete(ctx context.Context, f *registry.Fleet, s *Step, pushed map[string]string) (content string, err error) {
	stage := stageOf(f, s)
	place := f.PlaceOf(s.Component, stage)
	if (place.At != registry.Position{}) {
		s.At = &place.At
	}
	s.By = cmp.Or(stage.Spec.Promotion.By, v1alpha1.ByPush)
	if s.To == "" {
		return "", nil
	}
	if s.By == v1alpha1.ByPullRequest && p.Requests == nil {
		s.hold(fmt.Sprintf("%s waits: %v", s.To, ErrNoForge))
		return "", nil
	}
	if err := p.allowed(ctx, f, s); err != nil || s.To == "" {
		return "", err
	}
	before, there := pushed[s.At.File]
	if !there || s.By != v1alpha1.ByPush {
		data, err := p.Repo.ReadAt(ctx, f.Revision, s.At.File)
		if err != nil {
			return "", err
		}
		before = string(data)
	}
	after, line, err := edit.Version([]byte(before), s.Component, s.From, s.To)
	if err != nil {
		s.hold(fmt.Sprintf("%s can't be changed: %v", s.At.File, err))
		return "", nil
	}
	s.Before, s.After = lineOf(before, line), lineOf(string(after), line)
	if s.By == v1alpha1.ByPush {
		pushed[s.At.File] = string(after)
	}
	return string(after), nil
}

// allowed has a step lead nowhere whose version is refused, or was taken away.
func (p *Promoter) allowed(ctx context.Context, f *registry.Fleet, s *Step) error {
	why, err := p.refuses(ctx, f, s.Component, s.To)
	if why != "" {
		s.hold(fmt.Sprintf("%s %s", s.To, why))
	}
	if err != nil || why != "" {
		return err
	}
	taken, err := p.stood(ctx, f.Revision, s)
	if err == nil && taken != "" {
		s.hold(fmt.Sprintf("%s stood there at %.12s, and somebody took it away: it is not promoted again, but a later tag is", s.To, taken))
	}
	return err
}

// stood is [registry.Repo.Stood], asked once at each revision.
func (p *Promoter) stood(ctx context.Context, revision string, s *Step) (string, error) {
	key := pastKey{s.At.File, s.Component, s.To}
	if at, known := p.past[key]; known {
		return at, nil
	}
	at, err := p.Repo.Stood(ctx, revision, s.At.File, s.Component, s.To)
	if err == nil {
		p.past[key] = at
	}
	return at, err
}

func stageOf(f *registry.Fleet, s *Step) *registry.Stage {
	for _, stage := range f.PipelineOf(s.Component).Stages {
		if stage.Spec.Name == s.Stage {
			return stage
		}
	}
	return nil // Decide makes steps of stages that there are
}

func lineOf(content string, line int) string {
	lines := strings.Split(content, "\n")
	return strings.TrimRight(lines[line-1], "\r")
}

// Message is what the commit of a step says.
func (s *Step) Message() string {
	return fmt.Sprintf("promote %s to %s in %s\n\n%s\n\nBefore: %s\n", s.Component, s.To, s.Stage, sentence(s.Because), s.From)
}

func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." }

// Push makes a commit of each step that is to be pushed, and has the branch go there; all
// of them or none. It notes them in the plan. The error wraps [registry.ErrMoved] when the
// branch is no longer where the plan was made: make another one.
func (p *Promoter) Push(ctx context.Context, plan *Plan) error {
	var commits []registry.Commit
	var of []int
	for i, s := range plan.Steps {
		if s.To == "" || s.By != v1alpha1.ByPush || len(commits) == most {
			continue
		}
		commits = append(commits, registry.Commit{Files: map[string][]byte{s.At.File: []byte(plan.contents[i])}, Message: s.Message()})
		of = append(of, i)
	}
	if len(commits) == 0 {
		return nil
	}
	made, err := p.Repo.Push(ctx, registry.Push{
		Branch: plan.Branch, Expect: plan.Revision, Parent: plan.Revision, Commits: commits, Credentials: p.Credentials,
		Author: p.Author, Email: p.Email, When: p.Now(), Sign: p.Sign,
	})
	if err != nil {
		return err
	}
	for n, i := range of {
		plan.Steps[i].Commit = made[n]
	}
	return nil
}
