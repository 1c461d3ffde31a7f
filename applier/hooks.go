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

	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// The events at which hooks run, and their delete policies, as Helm names them. A rollback is an
// ordinary apply, so rollback hooks never run.
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

// A failed hook runs again after a backoff, which doubles from the first to the last. Most hooks are
// migrations, which may do harm when repeated.
const firstHookBackoff, lastHookBackoff = time.Minute, time.Hour

// runIDOf identifies one run of a hook; its object carries the value.
func runIDOf(r *records.Hook) string {
	sum := sha256.Sum256([]byte(fmt.Sprintf("%s %s %s %d", r.TargetHash, r.Event, r.ID, r.Attempt)))
	return hex.EncodeToString(sum[:8])
}

// HookError reports that a hook did not succeed. The apply stopped there.
type HookError struct {
	Event string
	ID    differ.ID
	// Running: the time was up and the hook still runs. The next apply waits for it again.
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

// hooksOf returns the hooks of a target at an event, in the order in which they run: by weight,
// then by kind in Helm's install order, which the target already has, then by name.
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
		weight, _ := strconv.Atoi(annotations[annotationHookWeight]) // as in Helm: anything but a number is 0
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

// events returns the hook events before and after the component's own objects; empty when no hooks
// are due. Correcting drift is no event.
//
// For a component to be removed, the hooks after run when all its objects are gone; see
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

// hooksPending reports whether a hook of some events has not succeeded for this target, or whether
// its object has yet to be deleted.
func (p *Prepared) hooksPending(events ...string) bool {
	for _, event := range events {
		for _, h := range hooksOf(p.want.Target, event) {
			if r := p.recordedIn(p.record.Hooks, h); r.State != records.HookSucceeded || removable(&r) {
				return true
			}
		}
	}
	return false
}

// Hook is a hook that an apply runs, at an event.
type Hook struct {
	Event string
	ID    differ.ID
	// Replaces: the component has an object of this name, which was no hook before. It is deleted
	// before the hook is created. The plan shows whether the deletion is held.
	Replaces bool
}

// Hooks returns the hooks that an apply of the plan runs, in order. It includes hooks that already
// ran, if an earlier apply of the same target was interrupted.
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
