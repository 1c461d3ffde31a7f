package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// statuses are the statuses of a cluster's components. Agent and writer share the pointers, so a
// status is never changed in place.
type statuses map[string]*v1alpha1.DeliveryStatus

// get returns a copy of the status of a component; the zero value if there is none.
func (s statuses) get(component string) v1alpha1.DeliveryStatus {
	if one := s[component]; one != nil {
		return *one
	}
	return v1alpha1.DeliveryStatus{}
}

// heldShown bounds the held changes that a status lists.
const heldShown = 32

// attempt is the result of one reconcile of a component.
type attempt struct {
	sync    v1alpha1.Sync
	message string // the reason if sync is not Synced

	version, revision, targetHash string
	applied                       string // version in the record
	// plan and health are empty if the attempt ended before the plan.
	plan    differ.Plan
	health  []health.Result
	outcome applier.Outcome
	// pin is the pin that the target comes from; nil: the target is git's, or unknown.
	pin *records.Pin
	// wanted is what git wants of a component with a pipeline; nil: no pipeline, or unknown.
	wanted *v1alpha1.WantedDelivery
	// waits is why the target is not released yet; keeps is the delivery that stays meanwhile.
	// unfinished: the objects are not those of that delivery, and stay as they are.
	waits      string
	keeps      records.Delivered
	unfinished bool
	// ungoverned: the component has no pipeline.
	ungoverned bool
	// planned: plan and health are known.
	planned bool
	// diagnosis explains in detail why the component is not healthy; empty if it was not asked for.
	diagnosis string
	// connecting: the cluster, or the hub, has not answered anything yet.
	connecting bool
	// pruning: only deletions are left to do.
	pruning bool
	// aside is a note on the connection.
	aside string
	// gone: no object is left of a component that is not in git.
	gone bool
	// timeout is how long the component may take to become healthy.
	timeout time.Duration
}

// defaultTimeout applies to a component without a timeout.
const defaultTimeout = 5 * time.Minute

// next returns the status after an attempt. Fields that the attempt did not determine stay as they
// were, because unknown does not mean absent.
func next(before v1alpha1.DeliveryStatus, a attempt, now time.Time) v1alpha1.DeliveryStatus {
	s := *before.DeepCopy()
	// The API server stores whole seconds. Fractions would be a difference for ever.
	now = now.Truncate(time.Second)
	s.Sync, s.Message = a.sync, a.message
	if a.version != "" {
		s.Version = a.version
	}
	if a.applied != "" {
		s.AppliedVersion = a.applied
	}
	if a.planned || a.pin != nil {
		s.Pinned = pinnedStatus(a.pin)
	}
	if a.wanted != nil || a.ungoverned {
		s.Wanted = a.wanted
	}
	if a.planned {
		s.Held = held(a.plan)
		s.Warnings = warnings(before, a)
		s.Objects = int32(len(a.health)) //nolint:gosec // bounded by what a render may hold
		var why string
		s.Health, why = health.Worst(a.health)
		why = cmp.Or(a.diagnosis, why)
		if s.Health == v1alpha1.HealthProgressing && waited(before, now) > a.timeout && !a.batchWaits() && !batchWaited(before) {
			s.Health, why = v1alpha1.HealthDegraded, fmt.Sprintf("not healthy after %s: %s", a.timeout, why)
		}
		s.Message = cmp.Or(s.Message, why, a.pin.String(), a.aside)
		if a.targetHash != s.TargetHash || s.Revision == "" {
			s.TargetHash, s.Revision = a.targetHash, a.revision
		}
	}
	leaveOut(&s, a)
	if a.sync == v1alpha1.SyncUnreachable || s.Health == "" {
		s.Health = v1alpha1.HealthUnknown
	}
	if o := a.outcome; o.Wrote() {
		s.LastDiff = &v1alpha1.DiffSummary{
			Time: metav1.NewTime(now), Created: int32(o.Created), Updated: int32(o.Updated), //nolint:gosec // as above
			Deleted: int32(o.Deleted), Restored: int32(o.Restored), //nolint:gosec // as above
		}
	}
	if batchWaited(before) && !a.batchWaits() || before.Sync == v1alpha1.SyncWaiting && s.Sync != v1alpha1.SyncWaiting {
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionReady) // the time to become healthy starts now
	}
	setConditions(&s, now, a.batchWaits())
	return s
}

// leaveOut clears what an attempt found to be absent.
func leaveOut(s *v1alpha1.DeliveryStatus, a attempt) {
	if a.sync == v1alpha1.SyncAbsent {
		s.AppliedVersion, s.Pinned = "", nil
	}
	if a.waits != "" && (a.keeps.TargetHash == "" || a.keeps.Removing()) { // there is no target, or no longer
		s.TargetHash = ""
	}
}

// batchWaits reports whether the component is synced, and an update in batches waits for a release or an
// interval.
func (a *attempt) batchWaits() bool {
	return a.planned && a.sync == v1alpha1.SyncSynced && health.Waits(a.health)
}

// batchWaited reports whether that was so when the status was made.
func batchWaited(s v1alpha1.DeliveryStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
	return c != nil && c.Reason == v1alpha1.ReasonBatchWaits
}

// waited returns how long a delivery has not been ready.
func waited(s v1alpha1.DeliveryStatus, now time.Time) time.Duration {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.Status == metav1.ConditionTrue {
		return 0
	}
	return now.Sub(c.LastTransitionTime.Time)
}

func held(p differ.Plan) []v1alpha1.HeldChange {
	var out []v1alpha1.HeldChange
	add := func(c *differ.Change, path, rule, because, fix string) {
		if len(out) < heldShown {
			one := v1alpha1.HeldChange{Object: c.ID.String(), Path: path, Rule: rule, Because: because, Fix: fix}
			if c.Approvable() {
				one.Hash = c.Hash
				one.Because = strings.Join(append([]string{one.Because}, c.Missed...), "; ")
			}
			out = append(out, one)
		}
	}
	for i := range p.Changes {
		c := &p.Changes[i]
		if c.State != differ.StateHeld && c.State != differ.StateDenied {
			continue
		}
		if c.Rule != "" {
			add(c, "", c.Rule, c.Because, c.Fix)
		}
		for _, f := range c.Fields {
			if f.Action == differ.ActionHold || f.Action == differ.ActionDeny {
				add(c, f.Path, f.Rule, f.Because, f.Fix)
			}
		}
	}
	return out
}

// warnings returns the warnings of an attempt's plan, and those of the plans before it with the same
// target. A change takes several passes: the last one, which only deletes, has no warnings.
func warnings(before v1alpha1.DeliveryStatus, a attempt) []v1alpha1.ChangeWarning {
	var first, more []v1alpha1.ChangeWarning // every rule comes once before any rule comes twice
	seen := map[string]bool{}
	for i := range a.plan.Changes {
		c := &a.plan.Changes[i]
		for _, w := range c.Warnings {
			one := v1alpha1.ChangeWarning{Object: c.ID.String(), Rule: w.Rule, Because: w.Because, Fix: w.Fix}
			if len(w.Paths) > 0 {
				one.Path = w.Paths[0]
			}
			if seen[w.Rule] {
				more = append(more, one)
				continue
			}
			seen[w.Rule] = true
			first = append(first, one)
		}
	}
	out := append(first, more...)
	if a.targetHash == before.TargetHash {
		if len(out) == 0 {
			return before.Warnings
		}
		for _, w := range before.Warnings {
			if !slices.ContainsFunc(out, func(o v1alpha1.ChangeWarning) bool { return o.Object == w.Object && o.Rule == w.Rule }) {
				out = append(out, w)
			}
		}
	}
	return out[:min(len(out), heldShown)]
}

// setConditions follows kstatus: Ready is always present, Reconciling and Stalled only while they
// are True.
func setConditions(s *v1alpha1.DeliveryStatus, now time.Time, waits bool) {
	reason := string(s.Sync)
	if waits {
		reason = v1alpha1.ReasonBatchWaits
	}
	set := func(kind string, on metav1.ConditionStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: kind, Status: on, Reason: reason, Message: s.Message, LastTransitionTime: metav1.NewTime(now),
		})
	}
	ready := s.Sync == v1alpha1.SyncSynced && s.Health == v1alpha1.HealthHealthy || s.Sync == v1alpha1.SyncAbsent
	set(v1alpha1.ConditionReady, map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[ready])
	for kind, on := range map[string]bool{
		v1alpha1.ConditionReconciling: !ready && !stalled(s),
		v1alpha1.ConditionStalled:     stalled(s),
	} {
		if on {
			set(kind, metav1.ConditionTrue)
		} else {
			meta.RemoveStatusCondition(&s.Conditions, kind)
		}
	}
}

// stalled reports whether a person is needed.
func stalled(s *v1alpha1.DeliveryStatus) bool {
	switch s.Sync {
	case v1alpha1.SyncHeld, v1alpha1.SyncDenied, v1alpha1.SyncBlocked, v1alpha1.SyncOrphaned:
		return true
	case v1alpha1.SyncSynced:
		return s.Health == v1alpha1.HealthDegraded
	case v1alpha1.SyncProgressing, v1alpha1.SyncFailed, v1alpha1.SyncWaiting, v1alpha1.SyncPaused, v1alpha1.SyncUnreachable,
		v1alpha1.SyncAbsent:
	}
	return false
}

// syncOf returns the state of a component after its plan was carried out, and the reason.
func syncOf(p differ.Plan) (v1alpha1.Sync, string) {
	sync, message := v1alpha1.SyncSynced, ""
	for i := range p.Changes {
		c := &p.Changes[i]
		switch {
		case c.State == differ.StateDenied:
			return v1alpha1.SyncDenied, stopMessage(c)
		case c.State == differ.StateHeld && sync != v1alpha1.SyncHeld:
			sync, message = v1alpha1.SyncHeld, stopMessage(c)
		case c.Op == differ.OpDelete && sync == v1alpha1.SyncSynced:
			sync, message = v1alpha1.SyncProgressing, fmt.Sprintf("%s is being deleted", c.ID)
		case c.Op == differ.OpNone && c.State == differ.StateChanged && sync == v1alpha1.SyncSynced:
			sync, message = v1alpha1.SyncProgressing, fmt.Sprintf("%s: %s", c.ID, c.Because)
		}
	}
	return sync, message
}

func stopMessage(c *differ.Change) string {
	for _, f := range c.Fields {
		if f.Action == differ.ActionHold || f.Action == differ.ActionDeny {
			return fmt.Sprintf("%s: %s: %s", c.ID, f.Path, reason(f.Rule, f.Because))
		}
	}
	return fmt.Sprintf("%s: %s", c.ID, reason(c.Rule, c.Because))
}

func reason(rule, because string) string {
	if rule == "" {
		return because
	}
	return because + " (rule " + rule + ")"
}
