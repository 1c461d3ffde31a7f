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
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// most bounds the commits of one push. The rest waits for the next pass.
const most = 50

// ErrNoBranch reports that the delivered revision is not a branch, so commits can't move it.
var ErrNoBranch = errors.New("promotions are commits on a branch")

// Options are the settings of a [Promoter]; Repo and Now are required.
type Options struct {
	Repo *registry.Repo
	// Revision is the branch that is delivered; empty: the default branch.
	Revision string
	// Credentials is a file of logins for pushes alone, as in [gitrepo.Options].
	Credentials string
	// Author and Email of the commits. Default: Keelson, keelson@localhost.
	Author, Email string
	// Sign makes the armored signature of a commit; nil: commits are not signed.
	Sign func(payload []byte) (string, error)
	// Requests is the forge with the pull requests; nil: stages with promotion by pull request are
	// not promoted.
	Requests forge.Proposer
	// Redact removes secrets from texts for a forge; nil: texts stay unchanged.
	Redact func(string) string
	Now    func() time.Time
}

// Promoter makes commits of promotions.
type Promoter struct {
	Options
	// past caches [registry.Repo.FindVersionCommit] for one revision: its history does not change.
	revision string
	past     map[pastKey]string
	// known caches facts about pull requests. moved are Keelson's own branches that were changed
	// since git was read. A new process asks again.
	known map[string]known // by branch
	moved map[string]move
}

// move is a change of a branch from a commit; empty: the branch did not exist.
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
	// Steps of all components, in their order, including steps without To, with the reason.
	Steps []Step `json:"steps"`
	// contents are the contents of each step's file after the step. For pushes, they include the
	// earlier steps that are pushed.
	contents  []string
	facts     map[string]Facts // by component
	whole     bool             // the plan covers all components
	proposals []*proposal      // actions on pull requests
	unread    bool             // the clone has not yet fetched a changed branch
}

// Plan finds the versions of some components that may be promoted, and the change of each commit.
// stand returns the progress of a component. An error of stand or of the repository ends it:
// unknown facts promote nothing. The error wraps [ErrNoBranch] if the revision is no branch.
func (p *Promoter) Plan(ctx context.Context, f *registry.Fleet, components []string, stand func(component string) (rollout.Progress, error)) (Plan, error) {
	out := Plan{Branch: p.Repo.Git().Branch(p.Revision), Revision: f.Revision, facts: map[string]Facts{}, whole: len(components) == len(f.Promoted())}
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

// gather collects the facts about one component. It calls stand only where it matters: where
// something would be promoted if all stages had passed.
func (p *Promoter) gather(ctx context.Context, f *registry.Fleet, component string, stand func(component string) (rollout.Progress, error)) (Facts, error) {
	now := p.Now()
	all := rollout.Progress{Passed: map[string]time.Time{}}
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

// refused returns the refused candidates, with the reason: for each stage down to the first
// candidate that is not refused.
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

// refuses returns why a version is promoted nowhere; empty: it may be promoted. A tag can be pushed
// without a review, so a tag alone is not enough. Its commit must be on the branch, unless
// promotableTags is all.
func (p *Promoter) refuses(ctx context.Context, f *registry.Fleet, component, version string) (string, error) {
	wrong, err := p.Repo.Refuses(f, component, version)
	if err != nil {
		return "", err
	}
	if wrong != nil {
		return "can't be had: " + wrong.Message, nil //nolint:nilerr // the problem is what was asked for
	}
	if f.Spec.PromotableTags == v1alpha1.PromotableAll {
		return "", nil
	}
	merged, err := p.Repo.Git().Merged(ctx, f.Revision, component+"/"+version)
	if err != nil || merged {
		return "", err
	}
	return fmt.Sprintf("is not merged: the commit of its tag is not on branch %s; merge that commit, or set promotableTags: all in fleet.yaml", p.Repo.Git().Branch(p.Revision)), nil
}

// complete fills in what a step changes, and returns the new content of its file. pushed are the
// files as the earlier steps leave them. A step that is not possible loses its To.
func (p *Promoter) complete(ctx context.Context, f *registry.Fleet, s *Step, pushed map[string]string) (content string, err error) {
	stage := stageOf(f, s)
	place := f.PlaceOf(s.Component, stage)
	if (place.At != yamlfile.Position{}) {
		s.At = &place.At
	}
	s.By = cmp.Or(stage.Spec.Promotion.By, v1alpha1.ByPush)
	if s.To == "" {
		return "", nil
	}
	if s.By == v1alpha1.ByPullRequest && p.Requests == nil {
		s.stop(fmt.Sprintf("%s waits: %v", s.To, ErrNoForge))
		return "", nil
	}
	if err := p.allowed(ctx, f, s); err != nil || s.To == "" {
		return "", err
	}
	before, there := pushed[s.At.File]
	if !there || s.By != v1alpha1.ByPush {
		data, err := p.Repo.Git().ReadAt(ctx, f.Revision, s.At.File)
		if err != nil {
			return "", err
		}
		before = string(data)
	}
	after, line, err := edit.Version([]byte(before), s.Component, s.From, s.To)
	if err != nil {
		s.stop(fmt.Sprintf("%s can't be changed: %v", s.At.File, err))
		return "", nil
	}
	s.Before, s.After = lineOf(before, line), lineOf(string(after), line)
	if s.By == v1alpha1.ByPush {
		pushed[s.At.File] = string(after)
	}
	return string(after), nil
}

// allowed clears To if the version is refused, or stood there before and was taken away.
func (p *Promoter) allowed(ctx context.Context, f *registry.Fleet, s *Step) error {
	why, err := p.refuses(ctx, f, s.Component, s.To)
	if why != "" {
		s.stop(fmt.Sprintf("%s %s", s.To, why))
	}
	if err != nil || why != "" {
		return err
	}
	taken, err := p.stood(ctx, f.Revision, s)
	if err == nil && taken != "" {
		s.stop(fmt.Sprintf("%s was there at %.12s, and was taken away: it is not promoted again, but a later tag is", s.To, taken))
	}
	return err
}

// stood is [registry.Repo.FindVersionCommit], called once for each revision.
func (p *Promoter) stood(ctx context.Context, revision string, s *Step) (string, error) {
	key := pastKey{s.At.File, s.Component, s.To}
	if at, known := p.past[key]; known {
		return at, nil
	}
	at, err := p.Repo.FindVersionCommit(ctx, revision, s.At.File, s.Component, s.To)
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
	return nil // unreachable: Decide makes steps for existing stages
}

func lineOf(content string, line int) string {
	lines := strings.Split(content, "\n")
	return strings.TrimRight(lines[line-1], "\r")
}

// Message is the commit message of a step.
func (s *Step) Message() string {
	return fmt.Sprintf("promote %s to %s in %s\n\n%s\n\nBefore: %s\n", s.Component, s.To, s.Stage, sentence(s.Because), s.From)
}

func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." }

// Push makes a commit of each step to be pushed, and moves the branch to them; all of them or none.
// It records them in the plan. The error wraps [gitrepo.ErrMoved] if the branch has moved since
// the plan was made: make another plan.
func (p *Promoter) Push(ctx context.Context, plan *Plan) error {
	var commits []gitrepo.Commit
	var of []int
	for i, s := range plan.Steps {
		if s.To == "" || s.By != v1alpha1.ByPush || len(commits) == most {
			continue
		}
		commits = append(commits, gitrepo.Commit{Files: map[string][]byte{s.At.File: []byte(plan.contents[i])}, Message: s.Message()})
		of = append(of, i)
	}
	if len(commits) == 0 {
		return nil
	}
	made, err := p.Repo.Git().Push(ctx, gitrepo.Push{
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
