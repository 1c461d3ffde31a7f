package forge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keelson-io/keelson/controllers/pace"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
)

const (
	// previewTime bounds one preview.
	previewTime = 3 * time.Minute
	// longPreview is more than most previews take.
	longPreview = 10 * time.Second
	// writeTime bounds the writing of comment and status after a preview.
	writeTime = 30 * time.Second
	// firstRetry is the wait after a failure that may pass; each next one is twice as
	// long, up to the last.
	firstRetry, lastRetry = time.Second / 2, 30 * time.Minute
)

// LoopOptions are the settings of a [Loop]; all are required but Revision
// and Time.
type LoopOptions struct {
	Forge Forge
	// Repo is the fleet repository, opened with Proposals, in a clone of its own: proposals by
	// strangers must not disturb deliveries.
	Repo *registry.Repo
	// Revision is the delivered branch; empty: the default branch. Pull requests into other
	// branches get no preview.
	Revision string
	// Preview is [Judge], in a process that a change may end. base and head are commits in Repo.
	// The error wraps [renderer.ErrTaskMemory] if the change needs more memory than is allowed. Any
	// other error may be temporary.
	Preview func(ctx context.Context, base, head string) (Verdict, error)
	// Version of this program: another version may write another preview.
	Version  string
	Interval time.Duration
	// Time that one preview may take; 0: three minutes.
	Time     time.Duration
	Log      *slog.Logger
	Now      func() time.Time
	Registry prometheus.Registerer
	// Told is called with the error when the forge, or the repository behind it, stops answering,
	// and with nil when it answers again.
	Told func(error)
}

// Loop maintains the previews on the pull requests of one repository. One process of a fleet runs
// it: of two processes, each would delete the second comment of the other.
type Loop struct {
	LoopOptions
	pace *pace.Pace
	// seen are the open pull requests, by number.
	seen map[int64]*seen

	open     prometheus.Gauge
	lastRead prometheus.Gauge
	previews *prometheus.CounterVec
	took     prometheus.Histogram
}

// seen is the state of a pull request.
type seen struct {
	head, tip, base string    // tip of the branch, and its merge base with head
	tags            string    // of the repository, see [gitrepo.Repo.Tags]
	state           State     // empty: there was no status yet
	asked           bool      // the status was checked for an earlier process
	begun           bool      // this process has begun the preview
	refused         error     // the commit is too large, and is not fetched again
	failures        int       // in a row
	next            time.Time // when it is retried
	complaint       string    // the last logged failure
}

// NewLoop prepares a loop; it makes no call.
func NewLoop(o LoopOptions) (*Loop, error) {
	o.Time = cmp.Or(o.Time, previewTime)
	l := &Loop{
		LoopOptions: o, pace: pace.New(o.Interval), seen: map[int64]*seen{},
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keelson_pull_requests", Help: "Open pull requests into the branch that is delivered, at most 100.",
		}),
		lastRead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keelson_forge_last_read_timestamp_seconds", Help: "When the open pull requests were last read.",
		}),
		previews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_previews_total", Help: "Previews of pull requests by the status that they gave the commit.",
		}, []string{"state"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "keelson_preview_duration_seconds", Help: "How long a preview of a pull request took, from its fetch to its status.",
			Buckets: prometheus.ExponentialBuckets(0.1, 2, 12),
		}),
	}
	for _, c := range []prometheus.Collector{l.open, l.lastRead, l.previews, l.took} {
		if err := o.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return l, nil
}

// Soon schedules a pass now, or a second after the last pass. It returns at once.
func (l *Loop) Soon() { l.pace.Soon() }

// Run works until the context ends.
func (l *Loop) Run(ctx context.Context) {
	for failing := false; ; {
		err := l.pass(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			l.Log.Error("pull requests can't be read; they keep the previews that they have", "error", err)
		} else if err == nil && failing {
			l.Log.Info("pull requests can be read again")
		}
		if failing != (err != nil) {
			l.Told(err)
		}
		failing = err != nil
		if !l.pace.Wait(ctx) {
			return
		}
	}
}

// pass handles all pull requests once. The error concerns the forge, or the repository as a whole.
// Errors of single pull requests are logged.
func (l *Loop) pass(ctx context.Context) error {
	if err := l.Repo.Git().Fetch(ctx); err != nil {
		return err
	}
	branch := l.Repo.Git().Branch(l.Revision)
	if branch == "" {
		return fmt.Errorf("%q is no branch, and has no pull requests", l.Revision)
	}
	tip, err := l.Repo.Git().Resolve(branch)
	if err != nil {
		return err
	}
	tags := l.Repo.Git().Tags()
	open, err := l.Forge.PullRequests(ctx, branch)
	if err != nil {
		return err
	}
	l.open.Set(float64(len(open)))
	l.lastRead.Set(float64(l.Now().Unix()))
	before := l.seen
	l.seen = map[int64]*seen{}
	var due []PullRequest
	for _, pr := range open {
		s := before[pr.Number]
		if s == nil || s.head != pr.Head {
			s = &seen{head: pr.Head}
		}
		l.seen[pr.Number] = s
		if s.due(tip, tags, l.Now()) {
			due = append(due, pr)
		}
	}
	// Failed previews come last. After a retry that took long, new pull requests are read first.
	slices.SortStableFunc(due, func(a, b PullRequest) int {
		return min(1, l.seen[a.Number].failures) - min(1, l.seen[b.Number].failures)
	})
	for _, pr := range due {
		again, began := l.seen[pr.Number].failures > 0, l.Now()
		l.process(ctx, pr, tip, tags)
		if again && l.Now().Sub(began) > longPreview {
			l.pace.Soon()
			return nil
		}
	}
	return nil
}

// due reports whether the preview may be outdated.
func (s *seen) due(tip, tags string, now time.Time) bool {
	switch {
	case s.failures > 0:
		return !now.Before(s.next)
	case s.tip != tip:
		return true
	}
	// A new tag may bring what was missing.
	return s.state != Success && s.tags != tags
}

// process brings one pull request up to date.
func (l *Loop) process(ctx context.Context, pr PullRequest, tip, tags string) {
	s := l.seen[pr.Number]
	v, err := l.one(ctx, pr, s, tip, tags)
	if ctx.Err() != nil {
		return
	}
	if err == nil && (v.Status.State != Error || v.Final) {
		s.tip, s.tags, s.state, s.failures, s.complaint = tip, tags, v.Status.State, 0, ""
		return
	}
	wait := min(firstRetry<<min(s.failures, 20), lastRetry)
	if errors.Is(err, errBegun) {
		wait = max(wait, begunRetry)
	}
	s.failures++
	s.next = l.Now().Add(wait)
	time.AfterFunc(wait, l.pace.Soon)
	if err != nil && s.complaint != err.Error() {
		s.complaint = err.Error()
		l.Log.Warn("a pull request has no preview; it is tried again", "pullRequest", pr.Number, "head", pr.Head, "error", err)
	}
}

// ErrTooManySecrets is the error of a preview that would have to hide too many values.
var ErrTooManySecrets = errors.New("the Secrets of the branch and of this change hold more values than a preview can hide: see the change with keelson preview")

// errMoved reports that the forge names another commit than its repository has: one of them is
// late.
var errMoved = errors.New("the pull request is moving")

// errBegun reports that an earlier process began the preview, and did not finish it. The preview
// may have ended that process.
var errBegun = errors.New("an earlier process began with the preview, and did not finish it")

const (
	// begunRetry is the shortest wait before a preview that an earlier process began.
	begunRetry = time.Minute
	// mostBegun bounds the attempts in a row that don't finish.
	mostBegun = 5
)

// begun is the status of a commit at the nth attempt of its preview in a row. It is set before the
// attempt, so that the next process knows of it if the attempt ends this process.
func begun(n int) Status {
	if n == 1 {
		return Status{Pending, "the preview is being made"}
	}
	return Status{Pending, fmt.Sprintf("the preview is being made, attempt %d", n)}
}

// attempts returns the number of the attempt in the status of a commit; 0: there is none.
func attempts(is Status) int {
	for n := 1; n <= mostBegun; n++ {
		if is == begun(n) {
			return n
		}
	}
	return 0
}

// one updates the preview of a pull request. The error is from the forge, or from fetching: nothing
// is known, and the existing preview stays.
func (l *Loop) one(ctx context.Context, pr PullRequest, s *seen, tip, tags string) (Verdict, error) {
	base, wrong := "", s.refused
	if wrong == nil {
		base, wrong = l.parts(ctx, pr, tip)
	}
	if errors.Is(wrong, gitrepo.ErrTooMuch) {
		s.refused = wrong
	}
	if wrong != nil && !errors.Is(wrong, gitrepo.ErrUnrelated) && !errors.Is(wrong, gitrepo.ErrTooMuch) {
		return Verdict{}, wrong
	}
	if s.base == base && (s.state == Success || s.state != "" && s.tags == tags) {
		return Verdict{Status: Status{State: s.state}, Final: true}, nil // the branch moved, but the merge base is the same
	}
	began := l.Now()
	has, err := l.Forge.Comments(ctx, pr.Number)
	if err != nil {
		return Verdict{}, err
	}
	is, err := l.Forge.Status(ctx, pr.Head)
	if err != nil {
		return Verdict{}, err
	}
	about := between(base, pr.Head, l.Version)
	if ours := marked(has); len(ours) == 1 && is.State == Success && strings.Contains(ours[0].Body, about) {
		s.base = base
		return Verdict{Status: is}, nil // another process did it
	}
	v, is, err := l.begin(ctx, pr.Head, s, is)
	if err != nil {
		return Verdict{}, err
	}
	if v.Status.State == "" {
		v = l.verdict(ctx, base, pr.Head, wrong)
	}
	if ctx.Err() != nil {
		return Verdict{}, ctx.Err()
	}
	writing, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if err := l.write(writing, pr, marked(has), v, about); err != nil {
		return Verdict{}, err
	}
	if is != v.Status {
		if err := l.Forge.SetStatus(writing, pr.Head, v.Status); err != nil {
			return Verdict{}, err
		}
	}
	s.base = base
	l.previews.WithLabelValues(string(v.Status.State)).Inc()
	l.took.Observe(l.Now().Sub(began).Seconds())
	// No text of the pull request: the log hides the secrets of the whole process.
	l.Log.Info("previewed a pull request", "pullRequest", pr.Number, "head", pr.Head, "state", v.Status.State)
	return v, nil
}

// begin records, once in a process, that a preview begins. It returns the current status of the
// commit. A verdict with a state means that there must be no preview.
func (l *Loop) begin(ctx context.Context, head string, s *seen, is Status) (Verdict, Status, error) {
	first, n := !s.asked, attempts(is)
	s.asked = true
	switch {
	case first && (n > 0 || is.State == Error):
		return Verdict{}, is, errBegun
	case s.begun:
		return Verdict{}, is, nil
	case n == mostBegun:
		v := failed(Error, "The preview could not be made",
			fmt.Sprintf("the process that makes it has ended %d times before it was done: see the change with keelson preview", mostBegun))
		v.Final = true
		return v, is, nil
	}
	is = begun(n + 1)
	if err := l.Forge.SetStatus(ctx, head, is); err != nil {
		return Verdict{}, is, err
	}
	s.begun = true
	return Verdict{}, is, nil
}

// parts returns the merge base of a pull request and the branch. It fetches the commit if it is
// missing.
func (l *Loop) parts(ctx context.Context, pr PullRequest, tip string) (string, error) {
	base, err := l.Repo.Git().MergeBase(ctx, tip, pr.Head)
	if err == nil || errors.Is(err, gitrepo.ErrUnrelated) {
		return base, err
	}
	got, err := l.Repo.Git().FetchProposal(ctx, pr.Ref)
	switch {
	case err != nil:
		return "", err
	case got != pr.Head:
		return "", fmt.Errorf("%w: git has %s at %.12s, the forge has it at %.12s", errMoved, pr.Ref, got, pr.Head)
	}
	return l.Repo.Git().MergeBase(ctx, tip, pr.Head)
}

// verdict makes the preview, unless something is wrong with the commits.
func (l *Loop) verdict(ctx context.Context, base, head string, wrong error) Verdict {
	if wrong != nil {
		return failed(Failure, "The branch can't be previewed", wrong.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, l.Time)
	defer cancel()
	v, err := l.Preview(ctx, base, head)
	switch {
	case tooMuch(err):
		v = failed(Error, "The change is too much to preview", err.Error()+": split it, by component or by cluster, or give previews more (--preview-memory)")
		v.Final = true
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return failed(Error, fmt.Sprintf("The preview takes longer than %s", l.Time), "the change may be too large to render")
	case err != nil:
		// The reason concerns this process alone, and may name its internals.
		l.Log.Error("a preview could not be made", "head", head, "error", err)
		return failed(Error, "The preview could not be made", "the reason is in the log of the controller; it is tried again")
	}
	if v.Log != "" {
		l.Log.Error("a preview could not be made", "head", head, "error", v.Log)
	}
	return v
}

// marked returns the comments that this loop has written.
func marked(comments []Comment) []Comment {
	var out []Comment
	for _, c := range comments {
		if strings.HasPrefix(strings.TrimSpace(c.Body), marker) {
			out = append(out, c)
		}
	}
	return out
}

// write updates the one comment. A change that needs no comment gets none.
func (l *Loop) write(ctx context.Context, pr PullRequest, has []Comment, v Verdict, about string) error {
	want := Comment{Body: body(v, about)}
	switch {
	case len(has) == 0 && !v.Changes:
		return nil
	case len(has) > 0:
		want.ID = has[0].ID
	}
	if len(has) == 0 || !same(has[0].Body, want.Body) {
		if err := l.Forge.SetComment(ctx, pr.Number, want); err != nil {
			return err
		}
	}
	for _, extra := range has[min(1, len(has)):] { // two processes may have written at once
		if err := l.Forge.DeleteComment(ctx, pr.Number, extra.ID); err != nil {
			return err
		}
	}
	return nil
}
