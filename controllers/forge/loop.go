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
)

const (
	// previewTime bounds one preview.
	previewTime = 3 * time.Minute
	// longPreview is what few previews take.
	longPreview = 10 * time.Second
	// writeTime is what is left to say that it was not enough.
	writeTime = 30 * time.Second
	// firstRetry is the wait after a failure that may pass; each next one is twice as
	// long, up to the last.
	firstRetry, lastRetry = time.Second / 2, 30 * time.Minute
)

// LoopOptions are the settings of a [Loop]; all are required but Revision
// and Time.
type LoopOptions struct {
	Forge Forge
	// Repo is the fleet repository, opened with Proposals, in a clone of its own: what
	// a stranger proposes must not be in the way of what is delivered.
	Repo *registry.Repo
	// Revision is the branch that is delivered; empty: the default branch. Pull
	// requests into others get no preview.
	Revision string
	// Preview is [Judge], in a process that a change may end. Base and head are commits
	// that Repo has. The error wraps [renderer.ErrTaskMemory] where the change needs more
	// memory than it may; any other error may pass.
	Preview func(ctx context.Context, base, head string) (Verdict, error)
	// Version is this program's: another one may write another preview.
	Version  string
	Interval time.Duration
	// Time that one preview may take; 0: three minutes.
	Time     time.Duration
	Log      *slog.Logger
	Now      func() time.Time
	Registry prometheus.Registerer
	// Told is told when the forge, or the repository behind it, stops to answer, and
	// with nil when it does again.
	Told func(error)
}

// Loop keeps previews on the pull requests of one repository. It is for one process of
// a fleet; of two, each would undo what the other has written twice.
type Loop struct {
	LoopOptions
	pace *pace.Pace
	// seen are the pull requests that are open, by number.
	seen map[int64]*seen

	open     prometheus.Gauge
	lastRead prometheus.Gauge
	previews *prometheus.CounterVec
	took     prometheus.Histogram
}

// seen is what was said of a pull request.
type seen struct {
	head, tip, base string    // the tip is the branch's, the base where they part
	tags            string    // that the repository had, see [registry.Repo.Tags]
	state           State     // empty: nothing was said yet
	asked           bool      // whether an earlier process began with it
	begun           bool      // by this process
	refused         error     // the commit is too much to fetch, and not fetched again
	failures        int       // in a row
	next            time.Time // when it is tried again
	complaint       string    // that was logged
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

// Soon has the pull requests looked at now, or a second after they were last. It
// returns at once.
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

// pass looks at all pull requests once. The error is that of the forge or of the
// repository as a whole; those of single pull requests are logged.
func (l *Loop) pass(ctx context.Context) error {
	if err := l.Repo.Fetch(ctx); err != nil {
		return err
	}
	branch := l.Repo.Branch(l.Revision)
	if branch == "" {
		return fmt.Errorf("%q is no branch, and has no pull requests", l.Revision)
	}
	tip, err := l.Repo.Resolve(branch)
	if err != nil {
		return err
	}
	tags := l.Repo.Tags()
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
	// Those that failed come last. After one that took long again, new ones are looked for.
	slices.SortStableFunc(due, func(a, b PullRequest) int {
		return min(1, l.seen[a.Number].failures) - min(1, l.seen[b.Number].failures)
	})
	for _, pr := range due {
		again, began := l.seen[pr.Number].failures > 0, l.Now()
		l.look(ctx, pr, tip, tags)
		if again && l.Now().Sub(began) > longPreview {
			l.pace.Soon()
			return nil
		}
	}
	return nil
}

// due reports whether there may be something new to say.
func (s *seen) due(tip, tags string, now time.Time) bool {
	switch {
	case s.failures > 0:
		return !now.Before(s.next)
	case s.tip != tip:
		return true
	}
	// What was missing may have come with a tag.
	return s.state != Success && s.tags != tags
}

// look brings one pull request up to date.
func (l *Loop) look(ctx context.Context, pr PullRequest, tip, tags string) {
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

// ErrTooManySecrets is the error of a preview that would have to hide too much.
var ErrTooManySecrets = errors.New("the Secrets of the branch and of this change hold more values than a preview can hide: see the change with keelson preview")

// errMoved says that the forge told of another commit than its repository has: one of
// both is about to follow.
var errMoved = errors.New("the pull request is moving")

// errBegun says that a process began with the preview before this one did, and did not
// finish: it may be what ended that process.
var errBegun = errors.New("an earlier process began with the preview, and did not finish it")

const (
	// begunRetry is the least wait before a preview that an earlier process began with.
	begunRetry = time.Minute
	// mostBegun is how often a preview is begun in a row without being finished.
	mostBegun = 5
)

// begun is the status of a commit whose preview is begun for the nth time in a row. It is
// set before, so that the next process knows if this one does not live to finish it.
func begun(n int) Status {
	if n == 1 {
		return Status{Pending, "the preview is being made"}
	}
	return Status{Pending, fmt.Sprintf("the preview is being made, attempt %d", n)}
}

// attempts is how often a preview was begun, by the status of the commit.
func attempts(is Status) int {
	for n := 1; n <= mostBegun; n++ {
		if is == begun(n) {
			return n
		}
	}
	return 0
}

// one says what a pull request would change. The error is one of the forge, or of
// fetching: nothing is known, and what is there stays.
func (l *Loop) one(ctx context.Context, pr PullRequest, s *seen, tip, tags string) (Verdict, error) {
	base, wrong := "", s.refused
	if wrong == nil {
		base, wrong = l.parts(ctx, pr, tip)
	}
	if errors.Is(wrong, registry.ErrTooMuch) {
		s.refused = wrong
	}
	if wrong != nil && !errors.Is(wrong, registry.ErrUnrelated) && !errors.Is(wrong, registry.ErrTooMuch) {
		return Verdict{}, wrong
	}
	if s.base == base && (s.state == Success || s.state != "" && s.tags == tags) {
		return Verdict{Status: Status{State: s.state}, Final: true}, nil // the branch moved on, and this does not change from where
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

// begin records that a preview is begun, by a process for the first time, and returns the
// status that the commit has now. With a verdict there is to be no preview.
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

// parts is where a pull request left the branch. Its commit is fetched if it is not
// there.
func (l *Loop) parts(ctx context.Context, pr PullRequest, tip string) (string, error) {
	base, err := l.Repo.MergeBase(ctx, tip, pr.Head)
	if err == nil || errors.Is(err, registry.ErrUnrelated) {
		return base, err
	}
	got, err := l.Repo.FetchProposal(ctx, pr.Ref)
	switch {
	case err != nil:
		return "", err
	case got != pr.Head:
		return "", fmt.Errorf("%w: %s is at %.12s, and the forge says %.12s", errMoved, pr.Ref, got, pr.Head)
	}
	return l.Repo.MergeBase(ctx, tip, pr.Head)
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
		return failed(Error, fmt.Sprintf("The preview takes longer than %s", l.Time), "what is in this change may be too much to render")
	case err != nil:
		// What went wrong is the process's own affair, and may name what it works with.
		l.Log.Error("a preview could not be made", "head", head, "error", err)
		return failed(Error, "The preview could not be made", "the reason is in the log of the controller; it is tried again")
	}
	if v.Log != "" {
		l.Log.Error("a preview could not be made", "head", head, "error", v.Log)
	}
	return v
}

// marked are the comments that this loop has written.
func marked(comments []Comment) []Comment {
	var out []Comment
	for _, c := range comments {
		if strings.HasPrefix(strings.TrimSpace(c.Body), marker) {
			out = append(out, c)
		}
	}
	return out
}

// write makes the one comment say what it should: a change that needs none gets none.
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
	for _, extra := range has[min(1, len(has)):] { // of two processes, for a moment
		if err := l.Forge.DeleteComment(ctx, pr.Number, extra.ID); err != nil {
			return err
		}
	}
	return nil
}
