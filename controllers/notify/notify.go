// Package notify sends messages about rollouts and deliveries to other servers, as the files under
// notifications/ in the fleet repository say.
//
// A message holds the difference between what a destination was sent last, and what the hub shows
// now. So a destination that does not answer has no queue that could run full. Hundreds of clusters
// that fail at once are one message. A failure that recovers before it is sent is not sent at all.
// The hub stores what was sent, after each message that was taken. A process that is killed in
// between sends the same message again, under the same ID.
//
// A [Loop] does this in one process of a fleet. Nothing waits for it.
package notify

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// place is a component on a cluster.
type place struct{ cluster, component string }

// state is the state of a delivery, as far as messages distinguish it.
type state uint8

// The values of [state].
const (
	// between is a transition to another state: the state that was sent before still holds.
	between state = iota
	fine
	failing
	held
	blocked
)

// event returns the event of a delivery that enters a state.
func (s state) event() v1alpha1.NotificationEvent {
	return map[state]v1alpha1.NotificationEvent{
		fine: v1alpha1.DeliveryRecovered, failing: v1alpha1.DeliveryFailing, held: v1alpha1.DeliveryHeld, blocked: v1alpha1.DeliveryBlocked,
	}[s]
}

// stateOf returns the state of a delivery.
func stateOf(s *v1alpha1.DeliveryStatus) state {
	switch s.Sync {
	case v1alpha1.SyncHeld:
		return held
	case v1alpha1.SyncBlocked, v1alpha1.SyncDenied:
		return blocked
	case v1alpha1.SyncFailed, v1alpha1.SyncUnreachable:
		return failing
	case v1alpha1.SyncPaused, v1alpha1.SyncOrphaned: // Keelson does not work on it
		return between
	case v1alpha1.SyncAbsent:
		return fine
	case v1alpha1.SyncSynced, v1alpha1.SyncProgressing, v1alpha1.SyncWaiting:
	}
	switch {
	case s.Health == v1alpha1.HealthDegraded:
		return failing
	case s.Health == v1alpha1.HealthHealthy && s.Sync != v1alpha1.SyncProgressing && s.Sync != "":
		return fine
	}
	return between
}

// trouble describes a delivery that is not fine.
type trouble struct {
	state                           state
	version, revision, reason, hash string
}

func troubleOf(s *v1alpha1.DeliveryStatus) trouble {
	t := trouble{state: stateOf(s), version: s.Version, revision: s.Revision, reason: s.Message}
	for _, h := range s.Held {
		t.hash = cmp.Or(t.hash, h.Hash)
	}
	return t
}

// world is what the hub shows of a fleet.
type world struct {
	fleet *registry.Fleet
	// rollouts by component; nil: they are unknown, and what was sent about them stays.
	rollouts map[string]*v1alpha1.Rollout
	// deliveries are all deliveries. troubles are the deliveries that are neither fine nor between.
	deliveries map[place]state
	troubles   map[place]trouble
	// warned are the deliveries with a change of which a danger rule warns.
	warned map[place]warned
}

// compare returns what a notification has to send about the world, after what it has sent. next is
// what it has sent when that was taken. Arguments are not modified.
func compare(was sentState, w world, n *registry.Notification, now time.Time) (events []v1alpha1.MessageEvent, next sentState) {
	next = sentState{At: metav1.NewTime(now.Truncate(time.Second)), Serial: was.Serial, Rollouts: map[string]sentRollout{}, Deliveries: map[place]state{}, Warned: map[place]string{}}
	events = slices.Concat(rolloutEvents(was, w, n, next), deliveryEvents(was, w, n, next), warningEvents(was, w, n, next))
	return slices.DeleteFunc(events, func(e v1alpha1.MessageEvent) bool { return !wanted(n, e) }), next
}

// wanted reports whether a notification is about an event.
func wanted(n *registry.Notification, e v1alpha1.MessageEvent) bool {
	return (len(n.Spec.Events) == 0 || slices.Contains(n.Spec.Events, e.Event)) && n.Spec.AsSevere(e.Event)
}

// deliveryEvents returns the events of deliveries, and adds their states to next.
func deliveryEvents(was sentState, w world, n *registry.Notification, next sentState) []v1alpha1.MessageEvent {
	var events []v1alpha1.MessageEvent
	tell := func(at place, t trouble) {
		events = append(events, v1alpha1.MessageEvent{
			Event: t.state.event(), Component: at.component, Clusters: []string{at.cluster}, Count: 1, Pipeline: pipelineOf(w.fleet, at.component),
			Version: t.version, Revision: t.revision, Hash: t.hash, Reason: t.reason,
		})
	}
	for at, t := range w.troubles {
		before := was.Deliveries[at]
		switch selected, known := selects(n, w.fleet, at); {
		case !known && before != between:
			next.Deliveries[at] = before
		case selected && known:
			next.Deliveries[at] = t.state
			if t.state != before {
				tell(at, t)
			}
		}
	}
	for at, before := range was.Deliveries {
		is, there := w.deliveries[at]
		if _, troubled := w.troubles[at]; troubled {
			continue
		}
		switch selected, known := selects(n, w.fleet, at); {
		case !there && known && !inGit(w.fleet, at): // nothing is left to send
		case !known || selected && (is == between || !there):
			next.Deliveries[at] = before
		case selected:
			tell(at, trouble{state: fine})
		}
	}
	slices.SortFunc(events, func(x, y v1alpha1.MessageEvent) int {
		return cmp.Or(cmp.Compare(x.Event, y.Event), cmp.Compare(x.Component, y.Component), slices.Compare(x.Clusters, y.Clusters))
	})
	return severe(events)
}

// inGit reports whether git has a component on a cluster.
func inGit(f *registry.Fleet, at place) bool {
	c := f.Cluster(at.cluster)
	return c != nil && c.Delivery(at.component) != nil
}

// severe sets the severity of events.
func severe(events []v1alpha1.MessageEvent) []v1alpha1.MessageEvent {
	of := v1alpha1.NotificationEvents()
	for i := range events {
		events[i].Severity = of[events[i].Event]
	}
	return events
}

// selects reports whether a notification is about a delivery. It is not known if files can't be
// read: what was sent about the delivery stays.
func selects(n *registry.Notification, f *registry.Fleet, at place) (selected, known bool) {
	c, p := f.Cluster(at.cluster), f.PipelineOf(at.component)
	switch {
	case c == nil:
		return false, true
	case c.Unread || p != nil && p.Name == "":
		return false, false
	}
	return n.Selects(at.component, pipelineOf(f, at.component), c.Spec.Labels), true
}

func pipelineOf(f *registry.Fleet, component string) string {
	if p := f.PipelineOf(component); p != nil {
		return p.Name
	}
	return ""
}

// sentRollout is what was sent about a rollout.
type sentRollout struct {
	// Change is the revision and the begin of the change.
	Change string                `json:"change"`
	Phase  v1alpha1.RolloutPhase `json:"phase"`
	// Failed is why the rollout failed. Paused names the person who paused it.
	Failed string `json:"failed,omitempty"`
	Paused string `json:"paused,omitempty"`
	// Stages by name, with the time, the person or the evidence of what happened to each.
	Opened    map[string]string `json:"opened,omitempty"`
	Passed    map[string]string `json:"passed,omitempty"`
	Promoted  map[string]string `json:"promoted,omitempty"`
	Approvals map[string]string `json:"approvals,omitempty"`
}

// approval is an approval for which a stage waits.
type approval struct{ hash, reason string }

// approvals returns the approvals for which a rollout waits, by stage.
func approvals(f *registry.Fleet, s *v1alpha1.RolloutStatus) map[string]approval {
	out := map[string]approval{}
	p := f.PipelineOf(s.Component)
	if p == nil || s.Phase != v1alpha1.RolloutProgressing {
		return out
	}
	for _, stage := range s.Stages {
		i := slices.IndexFunc(p.Stages, func(is *registry.Stage) bool { return is.Spec.Name == stage.Name })
		if i < 0 {
			continue
		}
		for _, c := range stage.Checks {
			of := p.Stages[i].Spec.Before
			if c.After {
				of = p.Stages[i].Spec.After
			}
			asks := slices.ContainsFunc(of, func(is v1alpha1.Check) bool { return is.Name == c.Name && is.Approval != nil })
			if asks && c.Passed == nil && c.Failed == nil {
				out[stage.Name] = approval{hash: stage.Evidence, reason: c.Message}
			}
		}
	}
	return out
}

func sentRolloutOf(f *registry.Fleet, s *v1alpha1.RolloutStatus) sentRollout {
	m := sentRollout{
		Change: s.Revision + "@" + stamp(s.Begun), Phase: s.Phase, Paused: s.Paused,
		Opened: map[string]string{}, Passed: map[string]string{}, Promoted: map[string]string{}, Approvals: map[string]string{},
	}
	if s.Phase == v1alpha1.RolloutRollingBack || s.Phase == v1alpha1.RolloutPaused && s.Because != s.Paused {
		m.Failed = s.Because
	}
	for _, stage := range s.Stages {
		for to, text := range map[*map[string]string]string{&m.Opened: stamp(stage.Opened), &m.Passed: stamp(stage.Passed), &m.Promoted: stage.Promoted} {
			if text != "" {
				(*to)[stage.Name] = text
			}
		}
	}
	for stage, a := range approvals(f, s) {
		m.Approvals[stage] = a.hash
	}
	return m
}

func stamp(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// rolloutEvents returns the events of rollouts, and adds what was sent about them to next.
func rolloutEvents(was sentState, w world, n *registry.Notification, next sentState) []v1alpha1.MessageEvent {
	if w.rollouts == nil {
		maps.Copy(next.Rollouts, was.Rollouts)
		return nil
	}
	var events []v1alpha1.MessageEvent
	for component, r := range w.rollouts {
		before, had := was.Rollouts[component]
		stages, known := concerned(n, w.fleet, &r.Status)
		switch {
		case had && (!known || r.Status.Change == ""):
			next.Rollouts[component] = before
			continue
		case len(stages) == 0 || r.Status.Change == "":
			continue
		}
		now := sentRolloutOf(w.fleet, &r.Status)
		next.Rollouts[component] = now
		if begun := r.Status.Begun; !had && begun != nil && begun.Add(lag).Before(was.At.Time) {
			continue // it began before this notification was about it
		}
		events = append(events, steps(before, now, &r.Status, w.fleet, stages)...)
	}
	slices.SortStableFunc(events, func(x, y v1alpha1.MessageEvent) int { return cmp.Compare(x.Component, y.Component) })
	return severe(events)
}

// lag bounds how late the hub's watch may report a rollout that has begun.
const lag = 5 * time.Minute

// concerned returns the stages of a rollout that a notification is about.
func concerned(n *registry.Notification, f *registry.Fleet, s *v1alpha1.RolloutStatus) (stages map[string]bool, known bool) {
	stages, known = map[string]bool{}, true
	for _, c := range s.Clusters {
		selected, readable := selects(n, f, place{c.Name, s.Component})
		if selected {
			stages[c.Stage] = true
		}
		known = known && readable
	}
	return stages, known || len(stages) > 0
}

// steps returns the events of one rollout, in their order.
func steps(before, now sentRollout, s *v1alpha1.RolloutStatus, f *registry.Fleet, stages map[string]bool) []v1alpha1.MessageEvent {
	var out []v1alpha1.MessageEvent
	tell := func(event v1alpha1.NotificationEvent, e v1alpha1.MessageEvent) {
		e.Event, e.Component, e.Pipeline, e.From, e.Version, e.Revision = event, s.Component, s.Pipeline, s.From, s.To, s.Revision
		out = append(out, e)
	}
	if event, reason := moves(before, now, s.Back); event != "" {
		tell(event, v1alpha1.MessageEvent{Reason: reason})
	}
	fresh := before.Change != now.Change
	waits := approvals(f, s)
	for _, stage := range s.Stages {
		for _, is := range []struct {
			before, now map[string]string
			event       v1alpha1.NotificationEvent
			hash, why   string
		}{
			{before.Approvals, now.Approvals, v1alpha1.RolloutApprovalNeeded, waits[stage.Name].hash, waits[stage.Name].reason},
			{before.Promoted, now.Promoted, v1alpha1.RolloutStagePromoted, "", stage.Promoted},
			{before.Opened, now.Opened, v1alpha1.RolloutStageOpened, "", ""},
			{before.Passed, now.Passed, v1alpha1.RolloutStagePassed, "", ""},
		} {
			if stages[stage.Name] && is.now[stage.Name] != "" && is.before[stage.Name] != is.now[stage.Name] {
				tell(is.event, v1alpha1.MessageEvent{Stage: stage.Name, Hash: is.hash, Reason: is.why})
			}
		}
	}
	if now.Paused != "" && (fresh || now.Paused != before.Paused) {
		tell(v1alpha1.RolloutWasPaused, v1alpha1.MessageEvent{Stage: s.Stage, Reason: s.Paused})
	}
	if now.Failed != "" && (fresh || now.Failed != before.Failed) {
		tell(v1alpha1.RolloutFailed, v1alpha1.MessageEvent{Stage: s.Stage, Reason: s.Because})
	}
	if ends := fresh || before.Phase != now.Phase; ends && now.Phase == v1alpha1.RolloutRolledBack {
		tell(v1alpha1.RolloutWasRolledBack, v1alpha1.MessageEvent{Stage: s.Stage, Reason: s.Because})
	} else if ends && now.Phase == v1alpha1.RolloutComplete {
		tell(v1alpha1.RolloutFinished, v1alpha1.MessageEvent{Reason: s.Progress})
	}
	return out
}

// moves returns the event of a rollout that begins, or that had stopped and continues.
func moves(before, now sentRollout, back bool) (event v1alpha1.NotificationEvent, reason string) {
	fresh := before.Change != now.Change
	stopped := before.Paused != "" || before.Failed != "" || before.Phase == v1alpha1.RolloutRolledBack
	goesOn := now.Phase == v1alpha1.RolloutProgressing || now.Phase == v1alpha1.RolloutComplete
	switch {
	case fresh && back:
		return v1alpha1.RolloutStarted, "it reverts the change before it"
	case fresh && before.Change != "" && before.Phase != v1alpha1.RolloutComplete:
		return v1alpha1.RolloutSuperseded, ""
	case fresh:
		return v1alpha1.RolloutStarted, ""
	case stopped && goesOn && now.Paused == "":
		return v1alpha1.RolloutResumed, ""
	}
	return "", ""
}

// join joins names with commas.
func join(names []string) string { return strings.Join(names, ", ") }
