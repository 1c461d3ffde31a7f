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
	"github.com/keelson-io/keelson/registry/gitrepo"
)

const (
	// ownBranches begins the names of the branches of Keelson's pull requests:
	// keelson/promote/BASE/COMPONENT/STAGE. All other branches are never force-pushed.
	ownBranches = "keelson/promote/"
	// mostRequests bounds the pull requests that are opened, updated or closed at once. Each takes
	// several writes to a forge, and forges limit writes.
	mostRequests = 10
	// near is how many lines on both sides of a change must be unchanged: git merges changes that
	// are further apart.
	near = 3
	// lineSize bounds a quoted line, in bytes.
	lineSize = 400
	// marks begins the hidden line that identifies a pull request. closes is the hidden line of
	// requests that Keelson closed itself.
	marks, closes = "<!-- keelson: promotes ", "<!-- keelson: closed -->"
)

var (
	// ErrNoForge reports that a stage is promoted by pull request, but there is no forge.
	ErrNoForge = errors.New("it is promoted by pull request, and no forge is given (--forge)")
	// ErrSoon is wrapped by an error that is likely to disappear in a moment.
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

// Done returns the past form of the action.
func (a Action) Done() string {
	return map[Action]string{ActionOpen: "opened", ActionUpdate: "updated", ActionClose: "closed"}[a]
}

// noForge returns [ErrNoForge] for stages with pull requests that can't be opened.
func (p *Promoter) noForge(plan *Plan) error {
	for _, s := range plan.Steps {
		if s.By == v1alpha1.ByPullRequest && p.Requests == nil {
			return fmt.Errorf("%s in %s: %w", s.Component, s.Stage, ErrNoForge)
		}
	}
	return nil
}

// proposes reports whether there is a forge, and branches of our own.
func (p *Promoter) proposes() bool {
	return p.Requests != nil && len(p.Repo.Git().Branches(ownBranches)) > 0
}

// proposal is a branch of Keelson's own, with the planned action for it and its pull request.
type proposal struct {
	step   *Step
	branch string
	head   string // full hash; empty: the branch does not exist
	// ours means that Keelson made its head commit; merged means that the delivered branch contains
	// it.
	ours, merged bool
	says         string // the version in its commit message, if it is ours
	fits         bool   // it equals what would be pushed now, or merges to the same
	gone         string // why to close it; empty: it stays
	content      string // of the step's file
	title, text  string
	about        string         // the hidden line of text that identifies it
	request      *forge.Request // the open request; nil: there is none
	action       Action
}

// key identifies the state to which a [known] belongs.
func (one *proposal) key() string { return one.head + " " + one.about }

// known is the result of an inquiry about a proposal. It is valid while the key is the same.
type known struct {
	key, url string
	because  string // why no request is made; empty: there is one
}

// Ask finds out which pull requests to open, update or close, and records this in the plan. It
// writes nothing. It asks the forge only about proposals that changed since the last inquiry.
func (p *Promoter) Ask(ctx context.Context, f *registry.Fleet, plan *Plan) error {
	if p.Requests == nil {
		return nil
	}
	own := p.Repo.Git().Branches(ownBranches + plan.Branch + "/")
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

// addLeft adds a step for each own branch whose stage no longer promotes by pull request. It adds
// none if the fleet has problems, since such stages are then not known.
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
		if there[branch] || !ok || strings.Contains(stage, "/") { // with a third part, it belongs to a base branch with a longer name
			continue
		}
		plan.Steps = append(plan.Steps, Step{
			Component: component, Stage: stage, By: v1alpha1.ByPullRequest, Because: "this stage is no longer promoted by pull request",
		})
		plan.contents = append(plan.contents, "")
	}
}

// inspect reads the branch of a proposal in the clone.
func (p *Promoter) inspect(ctx context.Context, f *registry.Fleet, plan *Plan, one *proposal) error {
	s := one.step
	if s.To != "" {
		p.write(f, one)
	}
	if one.head == "" {
		return nil
	}
	made, err := p.Repo.Git().Commit(one.head)
	if err != nil {
		return err
	}
	base, err := p.Repo.Git().MergeBase(ctx, f.Revision, one.head)
	if err != nil && !errors.Is(err, gitrepo.ErrUnrelated) {
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
		one.gone, err = p.obsolete(ctx, f, plan.facts[s.Component], one)
		return err
	}
	return nil
}

// saidIn returns the version in the message of a commit by Keelson.
func saidIn(message string, s *Step) (version string, ok bool) {
	subject, _, _ := strings.Cut(message, "\n")
	if rest, is := strings.CutPrefix(subject, "promote "+s.Component+" to "); is {
		return strings.CutSuffix(rest, " in "+s.Stage)
	}
	return "", false
}

// fits reports whether a merge of the branch would make the change of the step, only this change,
// and without a conflict. If so, other changes of the file cause no rebuild, which would lose
// reviews.
func (p *Promoter) fits(ctx context.Context, one *proposal, parent string) bool {
	file := one.step.At.File
	before, err := p.Repo.Git().ReadAt(ctx, parent, file)
	if err != nil {
		return false // there was no such file
	}
	after, line, err := edit.Version(before, one.step.Component, one.step.From, one.step.To)
	if err != nil {
		return false
	}
	only, err := p.Repo.Git().Changes(one.head, parent, gitrepo.Commit{Files: map[string][]byte{file: after}})
	return err == nil && only && slices.Equal(around(string(after), line), around(one.content, one.step.At.Line))
}

// around returns the lines near a line; "" stands for lines before the first and after the last.
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

// obsolete returns why a proposed version must not be merged any more, though no other version is
// proposed; empty: it may be merged. A temporary hold closes no request: it was due when it was
// opened, and a person decides.
func (p *Promoter) obsolete(ctx context.Context, f *registry.Fleet, facts Facts, one *proposal) (string, error) {
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
	if sent && (one.head != moved.from || p.Now().Sub(moved.at) > requestsEvery) {
		delete(p.moved, one.branch)
		sent = false
	}
	is := p.known[one.branch]
	switch {
	case sent: // git was not read since the change
		s.PullRequest = is.url
		return false
	case s.To == "":
		return one.gone != "" && one.ours && is.key != one.key()
	case one.head != "" && !one.ours && !one.merged:
		s.stop(fmt.Sprintf("%s waits: branch %s has commits by another author, so Keelson does not change it until it is merged or deleted", s.To, one.branch))
		return false
	case is.key == one.key() && is.because != "":
		s.stop(is.because)
		return false
	case is.key == one.key() && one.fits:
		s.PullRequest = is.url
		return false
	}
	return true
}

// stop clears To, and sets the reason.
func (s *Step) stop(because string) { s.To, s.Because = "", because }

// ours reports whether Keelson wrote a request. It edits only such requests.
func ours(r *forge.Request) bool { return r.Own && strings.Contains(r.Body, marks) }

// decide chooses the action by the existing requests from the branch.
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
	case open != nil && !ours(open): // the request of another author needs the branch
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

// ended clears To if a request for the version was merged, or was refused by a person. A merge is
// not yet seen in git.
func (p *Promoter) ended(one *proposal, all []forge.Request) {
	s := one.step
	for i := range all {
		switch r := &all[i]; {
		case !one.isOf(r) || r.State == forge.RequestOpen:
		case r.State == forge.RequestMerged:
			s.stop(fmt.Sprintf("%s was merged with %s; the branch will have it at the next fetch", s.To, r.URL))
			return
		case !strings.Contains(r.Body, closes):
			s.stop(fmt.Sprintf("%s was refused: %s was closed; a later version is proposed again", s.To, r.URL))
			p.known[one.branch] = known{one.key(), r.URL, s.Because}
			return
		}
	}
}

// Propose executes the actions of [Promoter.Ask], for ten requests at most, and records them in the
// plan. A failure stops no other request; errors are joined.
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

// undone records why nothing was done to the request of a step.
func (s *Step) undone(because string) {
	if s.Action = ""; s.To != "" {
		s.stop(s.To + " waits: " + because)
	}
}

// propose executes the action on one request.
func (p *Promoter) propose(ctx context.Context, plan *Plan, one *proposal) error {
	if one.action == ActionClose {
		return p.retire(ctx, one)
	}
	s, pushed := one.step, false
	if !one.fits {
		made, err := p.Repo.Git().Push(ctx, gitrepo.Push{
			Branch: one.branch, Expect: one.head, Parent: plan.Revision, Force: true, Proposal: true, Credentials: p.Credentials,
			Commits: []gitrepo.Commit{{Files: map[string][]byte{s.At.File: []byte(one.content)}, Message: s.Message()}},
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
	if err := p.Repo.Git().DeleteBranch(ctx, gitrepo.Push{Branch: one.branch, Expect: one.head, Credentials: p.Credentials}); err != nil {
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

// write makes the title and the text. The names in the title contain only letters, digits, dots,
// dashes and plus signs, so no forge interprets them.
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
	text += fmt.Sprintf("\n%s\n%s\n\nA merge promotes it. To reject %s, close this pull request: Keelson does not propose it here again, but proposes later versions. "+
		"Keelson keeps this up to date until another author commits to its branch.\n", line("-", s.Before), line("+", s.After), code(s.To))
	one.title, text = p.Redact(one.title), p.Redact(text)
	digest := sha256.Sum256([]byte(one.title + text))
	one.about = fmt.Sprintf("%s %x -->", one.mark(), digest[:6])
	one.text = one.about + "\n" + text
}
