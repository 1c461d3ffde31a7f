package promotion

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/edit"
)

const (
	// ownBranches begins the names of the branches that Keelson has its pull requests
	// from: keelson/promote/BASE/COMPONENT/STAGE. What is in none of one's own branches is
	// never pushed to but on top.
	ownBranches = "keelson/promote/"
	// mostRequests are opened, updated or closed at once: each is several writes to a
	// forge, and forges count them.
	mostRequests = 10
	// near is how many lines on both sides of a change have to be as they were: git merges
	// changes that lie further apart.
	near = 3
	// lineSize is what is shown of a line, in bytes.
	lineSize = 400
	// marks begins the line, which is not seen, that says what a pull request is about, and
	// closes is that of those that Keelson closed itself.
	marks, closes = "<!-- keelson: promotes ", "<!-- keelson: closed -->"
)

var (
	// ErrNoForge says that a stage is promoted by pull request, and there is no forge.
	ErrNoForge = errors.New("it is promoted by pull request, and no forge is given (--forge)")
	// ErrSoon is wrapped by the error of what is likely to work in a moment.
	ErrSoon = errors.New("its branch is new")
)

// Action is what is done to a pull request.
type Action string

// The actions; empty: nothing.
const (
	ActionOpen   Action = "open"
	ActionUpdate Action = "update"
	ActionClose  Action = "close"
)

// Done is the action in the past.
func (a Action) Done() string {
	return map[Action]string{ActionOpen: "opened", ActionUpdate: "updated", ActionClose: "closed"}[a]
}

// noForge is the error of stages that are promoted by pull requests that nobody can open.
func (p *Promoter) noForge(plan *Plan) error {
	for _, s := range plan.Steps {
		if s.By == v1alpha1.ByPullRequest && p.Requests == nil {
			return fmt.Errorf("%s in %s: %w", s.Component, s.Stage, ErrNoForge)
		}
	}
	return nil
}

// proposes reports whether there are branches of our own.
func (p *Promoter) proposes() bool {
	return p.Requests != nil && len(p.Repo.Branches(ownBranches)) > 0
}

// proposal is a branch of Keelson's own, with what is to become of it and of its pull
// request.
type proposal struct {
	step   *Step
	branch string
	head   string // full hash; empty: the branch is not there
	// ours: nobody else has written to it; merged: the branch to merge into has all of it.
	ours, merged bool
	says         string // the version that it leads to, if it is ours
	fits         bool   // it is what would be pushed now, or merges to the same
	gone         string // why it is to be closed; empty: it is not
	content      string // of the step's file
	title, text  string
	about        string         // the line of text that says what it is about
	request      *forge.Request // that is open; nil: there is none
	action       Action
}

// key is of what something is known.
func (one *proposal) key() string { return one.head + " " + one.about }

// known is what was found out of a proposal. Nothing is asked again before its key is
// another one.
type known struct {
	key, url string
	because  string // why there is to be no request; empty: there is one
}

// Ask finds out what is to be done with pull requests, and notes it in the plan: which are
// to be opened, updated or closed. It writes nothing, and asks the forge only about what
// is new since it was last asked.
func (p *Promoter) Ask(ctx context.Context, f *registry.Fleet, plan *Plan) error {
	if p.Requests == nil {
		return nil
	}
	own := p.Repo.Branches(ownBranches + plan.Branch + "/")
	stages := len(plan.Steps)
	plan.addLeft(f, own)
	var asked []*proposal
	var heads []string
	for i := range plan.Steps {
		s := &plan.Steps[i]
		if s.By != v1alpha1.ByPullRequest {
			continue
		}
		one := &proposal{step: s, branch: plan.branchOf(s), content: plan.contents[i]}
		one.head = own[one.branch]
		if i >= stages {
			one.gone = s.Because
		}
		if err := p.inspect(ctx, f, plan, one); err != nil {
			return err
		}
		if p.unknown(one) {
			asked, heads = append(asked, one), append(heads, one.branch)
		}
		if _, sent := p.moved[one.branch]; sent {
			plan.unread = true
		}
	}
	if len(asked) == 0 {
		return nil
	}
	all, err := p.Requests.Requests(ctx, plan.Branch, heads...)
	if err != nil {
		return fmt.Errorf("ask for the pull requests: %w", err)
	}
	for _, one := range asked {
		p.decide(one, slices.DeleteFunc(slices.Clone(all), func(r forge.Request) bool { return r.Head != one.branch }))
		if one.action != "" {
			plan.proposals = append(plan.proposals, one)
		}
	}
	return nil
}

func (plan *Plan) branchOf(s *Step) string {
	return ownBranches + plan.Branch + "/" + s.Component + "/" + s.Stage
}

// addLeft adds a step for each branch of a stage that promotes no more, or not by pull
// request. In a fleet that can't be read as a whole that is not known.
func (plan *Plan) addLeft(f *registry.Fleet, own map[string]string) {
	if !plan.whole || len(f.Problems) > 0 {
		return
	}
	there := map[string]bool{}
	for i := range plan.Steps {
		if s := &plan.Steps[i]; s.By == v1alpha1.ByPullRequest {
			there[plan.branchOf(s)] = true
		}
	}
	for _, branch := range slices.Sorted(maps.Keys(own)) {
		component, stage, ok := strings.Cut(strings.TrimPrefix(branch, ownBranches+plan.Branch+"/"), "/")
		if there[branch] || !ok || strings.Contains(stage, "/") { // the last is into a branch with a longer name
			continue
		}
		plan.Steps = append(plan.Steps, Step{
			Component: component, Stage: stage, By: v1alpha1.ByPullRequest, Because: "no such stage is promoted by pull request any more",
		})
		plan.contents = append(plan.contents, "")
	}
}

// inspect looks at what the branch of a proposal has, in the clone.
func (p *Promoter) inspect(ctx context.Context, f *registry.Fleet, plan *Plan, one *proposal) error {
	s := one.step
	if s.To != "" {
		p.write(f, one)
	}
	if one.head == "" {
		return nil
	}
	made, err := p.Repo.Commit(one.head)
	if err != nil {
		return err
	}
	base, err := p.Repo.MergeBase(ctx, f.Revision, one.head)
	if err != nil && !errors.Is(err, registry.ErrUnrelated) {
		return err
	}
	one.merged = base == one.head
	if by := fmt.Sprintf("%s <%s>", p.Author, p.Email); len(made.Parents) == 1 && made.Author == by && made.Committer == by {
		one.says, one.ours = saidIn(made.Message, s)
	}
	switch {
	case !one.ours:
	case s.To != "":
		one.fits = base == made.Parents[0] && one.says == s.To && p.fits(ctx, one, base)
	case one.gone == "":
		one.gone, err = p.gone(ctx, f, plan.facts[s.Component], one)
		return err
	}
	return nil
}

// saidIn is the version that a commit of Keelson's leads to, as its message says.
func saidIn(message string, s *Step) (version string, ok bool) {
	subject, _, _ := strings.Cut(message, "\n")
	if rest, is := strings.CutPrefix(subject, "promote "+s.Component+" to "); is {
		return strings.CutSuffix(rest, " in "+s.Stage)
	}
	return "", false
}

// fits reports whether a merge of the branch would change the line as the step does, that
// alone, and without a conflict: it is not rebuilt, and its reviews are not lost, whenever
// something else in the file changes.
func (p *Promoter) fits(ctx context.Context, one *proposal, parent string) bool {
	file := one.step.At.File
	before, err := p.Repo.ReadAt(ctx, parent, file)
	if err != nil {
		return false // there was no such file
	}
	after, line, err := edit.Version(before, one.step.Component, one.step.From, one.step.To)
	if err != nil {
		return false
	}
	only, err := p.Repo.Changes(one.head, parent, registry.Commit{Files: map[string][]byte{file: after}})
	return err == nil && only && slices.Equal(around(string(after), line), around(one.content, one.step.At.Line))
}

// around are the lines near one; "" stands for those before the first and behind the last.
func around(content string, line int) []string {
	lines := strings.Split(content, "\n")
	out := make([]string, 0, 2*near+1)
	for i := line - 1 - near; i < line+near; i++ {
		if i < 0 || i >= len(lines) {
			out = append(out, "")
			continue
		}
		out = append(out, lines[i])
	}
	return out
}

// gone is why what was proposed is not to be merged any more, though nothing else is
// proposed instead; empty: it may be. What holds up a promotion for a while closes no
// request: it was due when it was opened, and a person decides.
func (p *Promoter) gone(ctx context.Context, f *registry.Fleet, facts Facts, one *proposal) (string, error) {
	if why := facts.Outdated(one.step.Stage, one.says); why != "" || one.step.At == nil {
		return why, nil
	}
	is := &Step{Component: one.step.Component, To: one.says, At: one.step.At}
	err := p.allowed(ctx, f, is)
	if err != nil || is.To != "" {
		return "", err
	}
	return is.Because, nil
}

// unknown reports whether the forge has to be asked about a proposal.
func (p *Promoter) unknown(one *proposal) bool {
	s := one.step
	moved, sent := p.moved[one.branch]
	if sent && (one.head != moved.from || p.Now().Sub(moved.at) > lookEvery) {
		delete(p.moved, one.branch)
		sent = false
	}
	is := p.known[one.branch]
	switch {
	case sent: // and git was not read since
		s.PullRequest = is.url
		return false
	case s.To == "":
		return one.gone != "" && one.ours && is.key != one.key()
	case one.head != "" && !one.ours && !one.merged:
		s.hold(fmt.Sprintf("%s waits: branch %s has commits of others, and is left alone until it is merged or deleted", s.To, one.branch))
		return false
	case is.key == one.key() && is.because != "":
		s.hold(is.because)
		return false
	case is.key == one.key() && one.fits:
		s.PullRequest = is.url
		return false
	}
	return true
}

// hold has a step lead nowhere.
func (s *Step) hold(because string) { s.To, s.Because = "", because }

// ours are the requests that Keelson has written; others it does not.
func ours(r *forge.Request) bool { return r.Own && strings.Contains(r.Body, marks) }

// decide says what to do, by the requests that there are from the branch.
func (p *Promoter) decide(one *proposal, all []forge.Request) {
	s := one.step
	for i := range all {
		if r := &all[i]; r.State == forge.RequestOpen && (one.request == nil || r.Own) {
			one.request, s.PullRequest = r, r.URL
		}
	}
	open := one.request
	switch {
	case one.gone == "":
	case open != nil && !ours(open): // it is somebody else's, who needs the branch
		p.known[one.branch] = known{key: one.key(), url: open.URL}
		return
	default:
		one.action = ActionClose
		if open != nil {
			s.Because, s.Action = one.gone, ActionClose
		}
		return
	}
	if open == nil || !one.isOf(open) {
		if p.ended(one, all); s.To == "" {
			return
		}
	}
	switch {
	case open == nil:
		one.action = ActionOpen
	case !one.fits, ours(open) && !strings.Contains(open.Body, one.about):
		one.action = ActionUpdate
	default:
		p.known[one.branch] = known{key: one.key(), url: open.URL}
	}
	s.Action = one.action
}

// isOf reports whether a request is Keelson's for this version.
func (one *proposal) isOf(r *forge.Request) bool {
	return r.Own && strings.Contains(r.Body, one.mark())
}

// ended has a step lead nowhere whose version was merged, and is about to be seen, or was
// refused by a person.
func (p *Promoter) ended(one *proposal, all []forge.Request) {
	s := one.step
	for i := range all {
		switch r := &all[i]; {
		case !one.isOf(r) || r.State == forge.RequestOpen:
		case r.State == forge.RequestMerged:
			s.hold(fmt.Sprintf("%s was merged with %s, and stands there in a moment", s.To, r.URL))
			return
		case !strings.Contains(r.Body, closes):
			s.hold(fmt.Sprintf("%s was refused: somebody closed %s; a later version is proposed again", s.To, r.URL))
			p.known[one.branch] = known{one.key(), r.URL, s.Because}
			return
		}
	}
}

// Propose does what [Promoter.Ask] has found, for ten requests at most, and notes it in the
// plan. What fails is in no other request's way.
func (p *Promoter) Propose(ctx context.Context, plan *Plan) error {
	var errs []error
	for i, one := range plan.proposals {
		if i >= mostRequests || ctx.Err() != nil {
			one.step.undone(fmt.Sprintf("%d pull requests are enough for one round", mostRequests))
			continue
		}
		if err := p.propose(ctx, plan, one); err != nil {
			errs = append(errs, fmt.Errorf("%s %s in %s by pull request: %w", one.step.Component, cmp.Or(one.step.To, one.says), one.step.Stage, err))
			one.step.undone(err.Error())
		}
	}
	return errors.Join(errs...)
}

// undone says why nothing was done to the request of a step.
func (s *Step) undone(because string) {
	if s.Action = ""; s.To != "" {
		s.hold(s.To + " waits: " + because)
	}
}

// propose does what is to be done with one request.
func (p *Promoter) propose(ctx context.Context, plan *Plan, one *proposal) error {
	if one.action == ActionClose {
		return p.retire(ctx, one)
	}
	s, pushed := one.step, false
	if !one.fits {
		made, err := p.Repo.Push(ctx, registry.Push{
			Branch: one.branch, Expect: one.head, Parent: plan.Revision, Force: true, Proposal: true, Credentials: p.Credentials,
			Commits: []registry.Commit{{Files: map[string][]byte{s.At.File: []byte(one.content)}, Message: s.Message()}},
			Author:  p.Author, Email: p.Email, When: p.Now(), Sign: p.Sign,
		})
		if err != nil {
			return err
		}
		p.moved[one.branch] = move{one.head, p.Now()}
		one.head, s.Commit, pushed = made[0], made[0], true
	}
	switch r := one.request; {
	case r == nil:
		opened, err := p.Requests.OpenRequest(ctx, forge.Request{Head: one.branch, Base: plan.Branch, Title: one.title, Body: one.text})
		if err != nil && pushed { // some forges take a moment to see a branch
			err = fmt.Errorf("%w (%w)", err, ErrSoon)
		}
		if err != nil {
			return err
		}
		s.PullRequest = opened.URL
	case ours(r) && !strings.Contains(r.Body, one.about):
		r.Title, r.Body = one.title, one.text
		if err := p.Requests.EditRequest(ctx, *r); err != nil {
			return err
		}
	}
	p.known[one.branch] = known{key: one.key(), url: s.PullRequest}
	return nil
}

// retire closes a request, and deletes its branch.
func (p *Promoter) retire(ctx context.Context, one *proposal) error {
	if r := one.request; r != nil {
		r.State = forge.RequestClosed
		r.Body = closes + "\n**Closed by Keelson:** " + differ.MarkdownCode(p.Redact(one.gone)) + "\n\n" + r.Body
		if err := p.Requests.EditRequest(ctx, *r); err != nil {
			return err
		}
	}
	if err := p.Repo.DeleteBranch(ctx, registry.Push{Branch: one.branch, Expect: one.head, Credentials: p.Credentials}); err != nil {
		return err
	}
	p.moved[one.branch] = move{one.head, p.Now()}
	delete(p.known, one.branch)
	return nil
}

// mark begins the line that says which version a request is for.
func (one *proposal) mark() string {
	return marks + strings.ReplaceAll(fmt.Sprintf("%s to %s in %s;", one.step.Component, one.step.To, one.step.Stage), "--", "-")
}

// write makes the title and the text. In the title stand names that can hold letters,
// digits, dots, dashes and plus signs alone, so no forge makes anything else of them.
func (p *Promoter) write(f *registry.Fleet, one *proposal) {
	s, code := one.step, differ.MarkdownCode
	one.title, _, _ = strings.Cut(s.Message(), "\n")
	pipeline := f.PipelineOf(s.Component)
	takes := stageOf(f, s).Spec.Promotion
	line := func(sign, text string) string {
		return code(strings.ToValidUTF8(sign+text[:min(len(text), lineSize)], ""))
	}
	evidence := code("keelson rollout show " + s.Component)
	if pipeline.Stages[0].Spec.Name == s.Stage {
		evidence = "none is needed in the first stage"
	}
	text := fmt.Sprintf("Keelson promotes %s in stage %s of pipeline %s from %s to %s.\n\n", code(s.Component), code(s.Stage), code(pipeline.Name), code(s.From), code(s.To))
	for _, item := range [][2]string{
		{"Why now", code(s.Because)},
		{"Evidence", evidence},
		{"Range of the stage", code(cmp.Or(takes.Components[s.Component], takes.Range, "*"))},
		{"Where", code(s.At.String())},
	} {
		text += "- " + item[0] + ": " + item[1] + "\n"
	}
	text += fmt.Sprintf("\n%s\n%s\n\nA merge promotes it. Who closes this says no: %s is not proposed here again, but a later version is. "+
		"Keelson keeps this up to date as long as nobody else commits to its branch.\n", line("-", s.Before), line("+", s.After), code(s.To))
	one.title, text = p.Redact(one.title), p.Redact(text)
	digest := sha256.Sum256([]byte(one.title + text))
	one.about = fmt.Sprintf("%s %x -->", one.mark(), digest[:6])
	one.text = one.about + "\n" + text
}
