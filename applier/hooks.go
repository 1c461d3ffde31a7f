package applier

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// The events at which hooks run, and the policies by which they are deleted, as
// Helm names them. Rollbacks are applies of what git says, so that rollback hooks
// never run.
const (
	preInstall  = "pre-install"
	postInstall = "post-install"
	preUpgrade  = "pre-upgrade"
	postUpgrade = "post-upgrade"
	preDelete   = "pre-delete"
	postDelete  = "post-delete"

	annotationHook       = "helm.sh/hook"
	annotationHookWeight = "helm.sh/hook-weight"
	annotationHookDelete = "helm.sh/hook-delete-policy"

	deleteBefore    = "before-hook-creation"
	deleteSucceeded = "hook-succeeded"
	deleteFailed    = "hook-failed"
)

// A hook that failed runs again after a pause, which doubles from the first to
// the last: it is a migration more often than not, and may not be harmless.
const firstHookPause, lastHookPause = time.Minute, time.Hour

// HookState is how far a hook came. The zero HookState is: not begun.
type HookState string

// The values of [HookState].
const (
	HookIntended  HookState = "intended" // about to be created: it may or may not exist
	HookRunning   HookState = "running"
	HookSucceeded HookState = "succeeded"
	HookFailed    HookState = "failed"
)

// RecordedHook is how far a hook of a target came that is not applied as a whole
// yet, or what is left of one to delete.
type RecordedHook struct {
	differ.ID  `json:",inline"`
	APIVersion string `json:"apiVersion"`
	Event      string `json:"event"`
	TargetHash string `json:"targetHash"`
	// Attempt counts the runs of the hook for the target, from 1.
	Attempt int       `json:"attempt"`
	State   HookState `json:"state"`
	// At is when the apply began that recorded the state.
	At time.Time `json:"at"`
	// UID is empty where it is not known that the object exists.
	UID string `json:"uid,omitempty"`
	// Policies say when the object is deleted.
	Policies []string `json:"policies,omitempty"`
	// Contested: a session that was replaced may still create the object. It
	// stays, since it keeps that creation from running the hook again.
	Contested bool `json:"contested,omitempty"`
	// Message says why the hook failed.
	Message string `json:"message,omitempty"`
}

// run tells one run of a hook from every other; its object carries it.
func (r *RecordedHook) run() string {
	sum := sha256.Sum256([]byte(fmt.Sprintf("%s %s %s %d", r.TargetHash, r.Event, r.ID, r.Attempt)))
	return hex.EncodeToString(sum[:8])
}

// HookError says that a hook did not come to a good end. The apply went no
// further.
type HookError struct {
	Event string
	ID    differ.ID
	// Running: the time was up and the hook goes on. The next apply waits on.
	Running bool
	Attempt int
	// Again is how long it is until the hook may run again; 0: now.
	Again time.Duration
	// Message says why: condition, pod, exit code, message and events.
	Message string
}

func (e *HookError) Error() string {
	switch {
	case e.Running:
		return fmt.Sprintf("hook %s %s has not come to its end: %s", e.Event, e.ID, e.Message)
	case e.Again > 0:
		return fmt.Sprintf("hook %s %s failed, attempt %d; it runs again in %s at the earliest: %s",
			e.Event, e.ID, e.Attempt, e.Again.Round(time.Second), e.Message)
	}
	return fmt.Sprintf("hook %s %s failed: %s", e.Event, e.ID, e.Message)
}

// hook is a hook of a target at one event.
type hook struct {
	id       differ.ID
	gvk      schema.GroupVersionKind
	event    string
	weight   int
	policies []string
	object   *renderer.Object
}

// hooksOf are the hooks of a target at an event, in the order in which they run:
// by weight, then in the order of kinds in which Helm installs, which the target
// has already, then by name.
func hooksOf(t *renderer.Target, event string) []hook {
	var out []hook
	kinds := map[string]int{}
	for i, o := range t.Hooks {
		u := unstructured.Unstructured{Object: o.Content}
		annotations := u.GetAnnotations()
		id, gvk := differ.Identify(o.Content)
		if _, ok := kinds[id.Kind]; !ok {
			kinds[id.Kind] = i
		}
		if !slices.Contains(words(annotations[annotationHook]), event) {
			continue
		}
		weight, _ := strconv.Atoi(annotations[annotationHookWeight]) // as in Helm: what is no number is 0
		policies := words(annotations[annotationHookDelete])
		if len(policies) == 0 {
			policies = []string{deleteBefore}
		}
		out = append(out, hook{id: id, gvk: gvk, event: event, weight: weight, policies: policies, object: o})
	}
	slices.SortStableFunc(out, func(x, y hook) int {
		return cmp.Or(cmp.Compare(x.weight, y.weight), cmp.Compare(kinds[x.id.Kind], kinds[y.id.Kind]), cmp.Compare(x.id.Name, y.id.Name))
	})
	return out
}

// words splits a list as Helm does.
func words(list string) []string {
	var out []string
	for word := range strings.SplitSeq(list, ",") {
		if word = strings.ToLower(strings.TrimSpace(word)); word != "" {
			out = append(out, word)
		}
	}
	return out
}

// events are those before and after the component's own objects; empty when no
// hooks are due. Restoring drift is no event.
//
// Of a component that goes, those after run when all else of it is gone; see
// [applying.remove].
func (p *Prepared) events() (before, after string) {
	switch {
	case p.record.TargetHash == p.want.Target.Hash:
		return "", ""
	case p.want.Absent:
		return preDelete, ""
	case p.record.TargetHash == "":
		return preInstall, postInstall
	}
	return preUpgrade, postUpgrade
}

// hooksPending reports whether a hook of some events has not come to a good end
// for this target, or is yet to be deleted.
func (p *Prepared) hooksPending(events ...string) bool {
	for _, event := range events {
		for _, h := range hooksOf(p.want.Target, event) {
			if r := p.recordedIn(p.record.Hooks, h); r.State != HookSucceeded || r.removable() {
				return true
			}
		}
	}
	return false
}

// Hook is one that an apply runs, at an event.
type Hook struct {
	Event string
	ID    differ.ID
	// Replaces: the component has an object of this name, which was no hook before. It is
	// deleted before the hook is created, and the plan says whether that is held.
	Replaces bool
}

// Hooks are those that an apply of the plan runs, in order; also those of them
// that have run already, if an apply of the same target was cut off.
func (p *Prepared) Hooks() []Hook {
	var out []Hook
	before, after := p.events()
	if before == preDelete {
		after = postDelete
	}
	for _, event := range []string{before, after} {
		for _, h := range hooksOf(p.want.Target, event) {
			c, _ := p.planned(h.id)
			out = append(out, Hook{Event: event, ID: h.id, Replaces: c != nil && c.Live != nil})
		}
	}
	return out
}
