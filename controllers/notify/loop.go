package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer/redact"
)

const (
	// collect is how long a change waits for the changes that follow it: a cluster that fails takes
	// its deliveries along, one after the other.
	collect = 5 * time.Second
	// firstRetry is the wait after a failure. Each further wait is twice as long, up to lastRetry,
	// plus or minus a quarter.
	firstRetry, lastRetry = time.Second, 10 * time.Minute
	// callTimeout bounds a call to the hub.
	callTimeout = 30 * time.Second
)

// Options are the settings of a [Loop]; all are required.
type Options struct {
	Board  *rollout.Cache
	Hub    typedcorev1.ConfigMapsGetter
	Sender *Sender
	Log    *slog.Logger
	Now    func() time.Time
	// Redactor redacts everything that is sent.
	Redactor *redact.Redactor
	Metrics  *Metrics
	// RecordEvent records a Kubernetes Event.
	RecordEvent func(kind, reason, text string)
}

// Loop sends messages about rollouts and deliveries. One process of a fleet runs it: two would send
// everything twice.
type Loop struct {
	Options

	mu     sync.Mutex
	fleet  *registry.Fleet // nil: git was not read yet
	listed bool            // the Deliveries were read
	// deliveries, troubles and warned are from the hub. Other fleets are left out once fleet is
	// known.
	deliveries map[place]state
	troubles   map[place]trouble
	warned     map[place]warned
	tellers    map[string]*teller // by notification, while it runs
	soon       chan struct{}      // the fleet has changed
}

// NewLoop prepares a loop; it makes no call.
func NewLoop(o Options) *Loop { return &Loop{Options: o, soon: make(chan struct{}, 1)} }

// Fleet sets the state of git.
func (l *Loop) Fleet(f *registry.Fleet) {
	l.mu.Lock()
	l.fleet = f
	l.mu.Unlock()
	poke(l.soon)
	l.Look()
}

// Look schedules a comparison for all notifications: a Rollout has changed. It returns at once.
func (l *Loop) Look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookLocked()
}

func (l *Loop) lookLocked() {
	for _, t := range l.tellers {
		poke(t.soon)
	}
}

func poke(soon chan struct{}) {
	select {
	case soon <- struct{}{}:
	default:
	}
}

// Run works until the context ends. The next process sends what was not taken by then.
func (l *Loop) Run(ctx context.Context) {
	var working sync.WaitGroup
	defer working.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	l.mu.Lock()
	l.deliveries, l.troubles, l.warned, l.listed, l.tellers = nil, nil, nil, false, map[string]*teller{}
	l.mu.Unlock()
	working.Go(func() { l.Board.Deliveries(ctx, l.replace, l.store) })
	for {
		l.assign(ctx, &working)
		select {
		case <-ctx.Done():
			return
		case <-l.soon:
		}
	}
}

// assign starts the notifications that git has, and ends the notifications that git no longer has.
func (l *Loop) assign(ctx context.Context, working *sync.WaitGroup) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fleet == nil {
		return
	}
	gone := maps.Clone(l.tellers)
	for _, n := range l.fleet.Notifications {
		delete(gone, n.Name)
		if l.tellers[n.Name] != nil || len(n.Problems) > 0 {
			continue // a broken notification keeps its record until it is mended
		}
		t := &teller{
			loop: l, name: n.Name, soon: make(chan struct{}, 1), done: make(chan struct{}),
			memory: sentStateStore{configMaps: l.Hub.ConfigMaps(v1alpha1.Namespace), fleet: l.fleet.Spec.Name, name: n.Name},
		}
		var telling context.Context
		telling, t.stop = context.WithCancel(ctx)
		l.tellers[n.Name] = t
		working.Go(func() {
			defer close(t.done)
			t.run(telling)
		})
	}
	for name, t := range gone {
		delete(l.tellers, name)
		t.stop()
		working.Go(func() {
			<-t.done
			l.forget(context.WithoutCancel(ctx), t)
		})
	}
}

// forget ends a notification that git no longer has, and deletes what the hub stores of it.
func (l *Loop) forget(ctx context.Context, t *teller) {
	l.Metrics.delete(t.name)
	l.mu.Lock()
	again := l.tellers[t.name] != nil
	l.mu.Unlock()
	if again {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := t.memory.remove(ctx); err != nil {
		l.Log.Warn("a notification was removed from git, but its record of sent messages stays in the hub", "notification", t.name, "error", err)
	}
}

// replace stores a full list.
func (l *Loop) replace(list []*v1alpha1.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deliveries, l.troubles, l.warned, l.listed = make(map[place]state, len(list)), map[place]trouble{}, map[place]warned{}, true
	for _, d := range list {
		l.setLocked(d)
	}
	l.lookLocked()
}

// store stores one Delivery.
func (l *Loop) store(d *v1alpha1.Delivery, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := placeOf(d)
	before, warning := l.deliveries[at], l.warned[at]
	if gone {
		delete(l.deliveries, at)
		delete(l.troubles, at)
		delete(l.warned, at)
	} else {
		l.setLocked(d)
	}
	if l.deliveries[at] != before || l.warned[at] != warning {
		l.lookLocked()
	}
}

func (l *Loop) setLocked(d *v1alpha1.Delivery) {
	at, is := placeOf(d), troubleOf(&d.Status)
	delete(l.troubles, at)
	delete(l.warned, at)
	if l.fleet != nil && d.Annotations[v1alpha1.AnnotationFleet] != l.fleet.Spec.Name {
		delete(l.deliveries, at) // another fleet's
		return
	}
	l.deliveries[at] = is.state
	if is.state != fine && is.state != between {
		l.troubles[at] = is
	}
	if of := warnedOf(&d.Status); of.key != "" {
		l.warned[at] = of
	}
}

// placeOf returns the place of a Delivery. Equal names share memory.
func placeOf(d *v1alpha1.Delivery) place {
	once := func(text string) string { return unique.Make(text).Value() }
	return place{once(d.Labels[v1alpha1.LabelCluster]), once(d.Labels[v1alpha1.LabelComponent])}
}

// errUnknown reports that the hub was not read yet: nothing is sent.
var errUnknown = errors.New("the Deliveries of the hub are not known yet")

// compare compares the world for a notification. It fails until the hub was read.
func (l *Loop) compare(was sentState, name string) (n *registry.Notification, events []v1alpha1.MessageEvent, next sentState, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.listed || l.fleet == nil {
		return nil, nil, sentState{}, errUnknown
	}
	w := world{fleet: l.fleet, deliveries: l.deliveries, troubles: l.troubles, warned: l.warned}
	if w.rollouts, err = l.Board.Rollouts(l.fleet); err != nil && len(l.fleet.Pipelines) > 0 {
		return nil, nil, sentState{}, err
	}
	n = l.fleet.Notification(name)
	if n == nil || len(n.Problems) > 0 {
		return nil, nil, was, nil
	}
	events, next = compare(was, w, n, l.Now())
	return n, events, next, nil
}

// teller sends one notification.
type teller struct {
	loop   *Loop
	name   string
	memory sentStateStore
	soon   chan struct{} // something may be new
	stop   context.CancelFunc
	done   chan struct{}

	told     sentState
	known    bool // told was read
	saved    bool // told is in the hub
	failures int  // in a row
	// complaint is the last logged failure.
	complaint string
	next      time.Time // no step before
}

// run sends until the context ends.
func (t *teller) run(ctx context.Context) {
	t.loop.Metrics.begins(t.name)
	for {
		waits := t.step(ctx)
		if ctx.Err() != nil {
			return
		}
		if !waits { // nothing to do until a change
			select {
			case <-ctx.Done():
				return
			case <-t.soon:
			}
			if t.known {
				t.next = later(t.next, t.loop.Now().Add(collect))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(t.next.Sub(t.loop.Now())):
		}
	}
}

func later(x, y time.Time) time.Time {
	if x.After(y) {
		return x
	}
	return y
}

// step does what is due now. It reports whether more is due at next, even without a change.
func (t *teller) step(ctx context.Context) (waits bool) {
	if !t.known {
		if err := t.begin(ctx); errors.Is(err, errUnknown) || errors.Is(err, rollout.ErrUnknown) {
			return false // Look is called once it is known
		} else if err != nil {
			return t.failed(ctx, "the record of a notification's sent messages can't be read: nothing is sent", err, 0)
		}
		t.works()
	}
	n, events, next, err := t.loop.compare(t.told, t.name)
	if err != nil || n == nil {
		return false
	}
	if len(events) > 0 {
		next.Serial++
		if !t.send(ctx, n, events) {
			return true
		}
		t.next = t.loop.Now().Add(n.Interval())
	}
	if !next.same(t.told) {
		t.saved = false
	}
	t.told = next
	if waits = t.save(ctx); !waits {
		t.works()
	}
	return waits
}

// begin reads what was sent. If nothing was ever stored, the current state counts as sent.
func (t *teller) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	was, there, err := t.memory.read(ctx)
	if err != nil {
		return err
	}
	if there {
		t.told, t.known, t.saved = was, true, true
		return nil
	}
	_, _, next, err := t.loop.compare(sentState{At: metav1.NewTime(t.loop.Now())}, t.name)
	if err != nil {
		return err
	}
	t.told, t.known = next, true
	t.loop.Log.Info("a notification begins: conditions that already hold are not sent", "notification", t.name, "already", next.summary())
	return nil
}

// send sends a message of events, and reports whether they are done: taken, or refused for good.
func (t *teller) send(ctx context.Context, n *registry.Notification, events []v1alpha1.MessageEvent) bool {
	l := t.loop
	m, err := envelope{t.memory.fleet, n, t.told.Serial, l.Now(), l.Redactor.Text}.message(events)
	if err == nil {
		_, err = l.Sender.Send(ctx, n, m)
	}
	if ctx.Err() != nil {
		return false // the next process sends it
	}
	refusal, answered := errors.AsType[*SendError](err)
	switch {
	case err == nil:
		l.Metrics.messages.WithLabelValues(t.name, resultSent).Inc()
		l.Log.Info("notified", "notification", t.name, "events", len(events), "id", m.ID)
		return true
	case answered && refusal.refused():
		l.Metrics.messages.WithLabelValues(t.name, resultDropped).Inc()
		l.Log.Error("a notification was refused, and is not sent again", "notification", t.name, "events", len(events), "id", m.ID, "error", err)
		l.RecordEvent(corev1.EventTypeWarning, "NotificationRefused", fmt.Sprintf("notification %s: a message of %d events was refused, and is not sent again: %v", t.name, len(events), err))
		return true
	}
	l.Metrics.messages.WithLabelValues(t.name, resultFailed).Inc()
	after := time.Duration(0)
	if answered {
		after = refusal.After
	}
	t.failed(ctx, "a notification can't be sent; trying again", err, after)
	return false
}

// failed records a failure that may pass, and sets next to the time of the retry.
func (t *teller) failed(ctx context.Context, what string, err error, after time.Duration) (waits bool) {
	if ctx.Err() != nil {
		return true
	}
	l := t.loop
	wait := min(firstRetry<<min(t.failures, 20), lastRetry)
	wait += time.Duration((rand.Float64() - 0.5) / 2 * float64(wait)) //nolint:gosec // no secret
	t.failures++
	t.next = l.Now().Add(max(wait, after))
	l.Metrics.failures.WithLabelValues(t.name).Set(float64(t.failures))
	if text := l.Redactor.Text(err.Error()); text != t.complaint {
		t.complaint = text
		l.Log.Warn(what, "notification", t.name, "error", text)
		l.RecordEvent(corev1.EventTypeWarning, "NotificationFailing", fmt.Sprintf("notification %s: %s", t.name, text))
	}
	return true
}

// works records that nothing fails any more.
func (t *teller) works() {
	if t.complaint != "" {
		t.loop.Log.Info("a notification works again", "notification", t.name)
		t.loop.RecordEvent(corev1.EventTypeNormal, "NotificationWorks", "notification "+t.name+" works again")
	}
	t.failures, t.complaint = 0, ""
	t.loop.Metrics.failures.WithLabelValues(t.name).Set(0)
}

// save stores in the hub what was sent.
func (t *teller) save(ctx context.Context) (waits bool) {
	if t.saved {
		return false
	}
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := t.memory.write(bounded, t.told)
	if err == nil {
		t.saved = true
		return false
	}
	// Another process has written, or the response was lost. The ConfigMap is read again, for the
	// next write. The state of this process is kept.
	if _, _, rerr := t.memory.read(bounded); rerr != nil {
		err = errors.Join(err, rerr)
	}
	return t.failed(ctx, "the record of a notification's sent messages can't be written: a restart would send them again", err, 0)
}
