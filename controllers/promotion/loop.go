package promotion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/pace"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
)

const (
	// requestsEvery is the interval of passes for changes by time alone: a freeze ends, or a server
	// takes pushes again.
	requestsEvery = time.Minute
	// pushGap is the shortest time between two pushes.
	pushGap = 10 * time.Second
	// askAgain is the wait for facts that are not known yet.
	askAgain = time.Second
)

// LoopOptions are the settings of a [Loop]; all are required but Gap.
type LoopOptions struct {
	Promoter *Promoter
	// Gap is the shortest time between two pushes; 0: ten seconds.
	Gap      time.Duration
	Log      *slog.Logger
	Registry prometheus.Registerer
	// Pushed is called when git has to be read again.
	Pushed func()
	// Told is called with the error when promotions fail, and with nil when they work again.
	Told func(error)
}

// Loop promotes a fleet's components again and again. One process of a fleet runs it: two loops
// would race for each push.
type Loop struct {
	LoopOptions
	pace   *pace.Pace
	pushes *prometheus.CounterVec

	mu    sync.Mutex
	fleet *registry.Fleet // nil: nothing was read yet

	pushed  string // the revision below the last pushed commits: it is outdated
	last    time.Time
	failing string // the last reported failure
}

// NewLoop prepares a loop; it makes no call.
func NewLoop(o LoopOptions) (*Loop, error) {
	o.Gap = cmp.Or(o.Gap, pushGap)
	l := &Loop{LoopOptions: o, pace: pace.New(requestsEvery), pushes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keelson_promotions_total", Help: "Commits that move a version on in a stage, pull requests with them, and rounds that failed.",
	}, []string{"result"})}
	if err := o.Registry.Register(l.pushes); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return l, nil
}

// Fleet sets the state of git, and schedules a pass. It returns at once.
func (l *Loop) Fleet(f *registry.Fleet) {
	l.mu.Lock()
	l.fleet = f
	l.mu.Unlock()
	l.Look()
}

// Look schedules a pass over all components. It returns at once.
func (l *Loop) Look() { l.pace.Soon() }

// Run works until the context ends. stand returns the progress of a component of a fleet.
func (l *Loop) Run(ctx context.Context, stand func(f *registry.Fleet, component string) (rollout.Progress, error)) {
	for {
		err := l.pass(ctx, stand)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, rollout.ErrUnknown):
			time.AfterFunc(askAgain, l.Look)
		case errors.Is(err, ErrSoon):
			l.Log.Info("a pull request can't be opened yet", "error", err)
			l.Pushed()
		case errors.Is(err, gitrepo.ErrMoved):
			l.Log.Info("another push came before the promotion; trying again", "error", err)
			l.Pushed()
		default:
			l.report(err)
		}
		if !l.pace.Wait(ctx) {
			return
		}
	}
}

// report logs, counts and reports a failure, once.
func (l *Loop) report(err error) {
	is := ""
	if err != nil {
		is = err.Error()
	}
	if is == l.failing {
		return
	}
	if err != nil {
		l.pushes.WithLabelValues("failed").Inc()
		l.Log.Error("promotions fail; trying again", "error", err)
	} else {
		l.Log.Info("promotions work again")
	}
	l.failing = is
	l.Told(err)
}

// pass handles all components once.
func (l *Loop) pass(ctx context.Context, stand func(f *registry.Fleet, component string) (rollout.Progress, error)) error {
	l.mu.Lock()
	fleet := l.fleet
	l.mu.Unlock()
	if fleet == nil || fleet.Revision == l.pushed {
		return nil // the reader of git calls Fleet
	}
	components := fleet.Promoted()
	if len(components) == 0 && !l.Promoter.proposes() {
		return nil
	}
	if wait := l.Gap - l.Promoter.Now().Sub(l.last); wait > 0 && !l.last.IsZero() {
		time.AfterFunc(wait, l.Look)
		return nil
	}
	plan, err := l.Promoter.Plan(ctx, fleet, components, func(component string) (rollout.Progress, error) { return stand(fleet, component) })
	if err != nil {
		return err
	}
	// Pull requests come first: a push starts a rollout, which takes their evidence away. A forge
	// that is down stops no push.
	err = l.Promoter.Ask(ctx, fleet, &plan)
	if err == nil {
		err = l.Promoter.Propose(ctx, &plan)
	}
	err = errors.Join(err, l.Promoter.Push(ctx, &plan), l.Promoter.noForge(&plan))
	l.note(&plan)
	if plan.unread || errors.Is(err, ErrSoon) {
		time.AfterFunc(askAgain, l.Look)
	}
	return err
}

// note logs and counts the steps that were done, and has git read again.
func (l *Loop) note(plan *Plan) {
	did := false
	for _, s := range plan.Steps {
		result, told := "pushed", "promoted"
		switch {
		case s.Action != "":
			result, told = s.Action.Done(), "a pull request was "+s.Action.Done()
		case s.Commit == "" || s.By != v1alpha1.ByPush:
			continue
		default:
			l.pushed = plan.Revision
		}
		did = true
		l.pushes.WithLabelValues(result).Inc()
		l.Log.Info(told, "component", s.Component, "stage", s.Stage, "from", s.From, "to", s.To, "because", s.Because, "commit", s.Commit, "branch", plan.Branch, "pullRequest", s.PullRequest)
	}
	if did {
		l.last = l.Promoter.Now()
		time.AfterFunc(l.Gap, l.Look) // one round may not take all steps
		l.Pushed()
	}
}
