// Package health decides whether an object is healthy, from its content in the cluster alone, and
// explains why it is not.
//
// A component's rules decide first, then the built-in rules, then kstatus. What can't be evaluated is
// Unknown, never Healthy.
package health

import (
	"fmt"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// Result is the health of one object.
type Result struct {
	ID     differ.ID
	Health v1alpha1.Health
	// Message says what is missing or wrong. For a healthy object it explains the state, if needed.
	Message string
	// Waits: a progressing object waits for a person or for a time, as its spec wants it. So it is never
	// late.
	Waits bool
}

// Of computes an object's health for its current generation: by the first matching rule, then by
// Keelson's built-in rules, then by kstatus. A rule that fails makes the health Unknown, never
// Healthy.
func (r Rules) Of(id differ.ID, live map[string]any) Result {
	if live == nil {
		return Result{ID: id, Health: v1alpha1.HealthProgressing, Message: "it does not exist yet"}
	}
	h, decided := unsettled(id, live)
	if !decided {
		h, decided = r.evaluate(id, live)
	}
	if !decided {
		h, decided = builtinHealth(live)
	}
	if !decided {
		h = byKstatus(live)
	}
	h.ID = id
	return h
}

// unsettled handles objects for which no rule is evaluated: those being deleted, and those whose
// status is about an earlier generation.
func unsettled(id differ.ID, live map[string]any) (Result, bool) {
	u := unstructured.Unstructured{Object: live}
	if u.GetDeletionTimestamp() != nil {
		return progressing("it is being deleted; its finalizers: %v", u.GetFinalizers()), true
	}
	seen, found, err := unstructured.NestedInt64(live, "status", "observedGeneration")
	switch {
	case err != nil:
		return Result{Health: v1alpha1.HealthUnknown, Message: err.Error()}, true
	case found && seen < u.GetGeneration():
		return progressing("its controller has not seen generation %d yet, but %d", u.GetGeneration(), seen), true
	case !found && observed(id):
		return progressing("its controller has not seen it yet"), true
	}
	for _, c := range conditionsOf(live) {
		if c.kind == "Ready" && c.generation != 0 && c.generation < u.GetGeneration() {
			return progressing("its condition Ready is about generation %d, and it has %d", c.generation, u.GetGeneration()), true
		}
	}
	return Result{}, false
}

// observed reports whether the controller of a kind sets observedGeneration as soon as it has seen
// the object. For a StatefulSet without replicas no other field shows this.
func observed(id differ.ID) bool {
	_, workload := workloadKinds()[id.Kind]
	return id.Group == "apps" && (id.Kind == "StatefulSet" || id.Kind == "Deployment" || id.Kind == "DaemonSet") ||
		id.Group == workloadsGroup && workload
}

// byKstatus uses kstatus, the library behind the waiting of kubectl and Flux.
func byKstatus(live map[string]any) Result {
	r, err := status.Compute(&unstructured.Unstructured{Object: live})
	if err != nil {
		return Result{Health: v1alpha1.HealthUnknown, Message: err.Error()}
	}
	h := Result{Health: v1alpha1.HealthUnknown, Message: r.Message}
	switch r.Status {
	case status.CurrentStatus:
		return Result{Health: v1alpha1.HealthHealthy}
	case status.InProgressStatus, status.TerminatingStatus, status.NotFoundStatus:
		h.Health = v1alpha1.HealthProgressing
	case status.FailedStatus:
		h.Health = v1alpha1.HealthDegraded
	case status.UnknownStatus:
	}
	return h
}

func progressing(format string, args ...any) Result {
	return Result{Health: v1alpha1.HealthProgressing, Message: fmt.Sprintf(format, args...)}
}

// condition is one of status.conditions.
type condition struct {
	kind, status, reason, message string
	generation                    int64 // that it is about; 0: not given
}

func conditionsOf(live map[string]any) []condition {
	status, _ := live["status"].(map[string]any)
	list, _ := status["conditions"].([]any)
	out := make([]condition, 0, len(list))
	for _, item := range list {
		c, _ := item.(map[string]any)
		generation, _ := c["observedGeneration"].(int64)
		out = append(out, condition{
			kind: textAt(c, "type"), status: textAt(c, "status"), reason: textAt(c, "reason"), message: textAt(c, "message"),
			generation: generation,
		})
	}
	return out
}

func conditionOf(live map[string]any, kind string) condition {
	for _, c := range conditionsOf(live) {
		if c.kind == kind {
			return c
		}
	}
	return condition{}
}

func (c condition) String() string {
	text := fmt.Sprintf("condition %s is %s", c.kind, c.status)
	if why := strings.Join(nonEmpty(c.reason, c.message), ": "); why != "" {
		text += " (" + why + ")"
	}
	return text
}

func nonEmpty(parts ...string) []string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return out
}

func textAt(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}

// Worst returns the worst health: Degraded before Unknown before Progressing before Healthy. The
// message names the object. If all are healthy, it is the message of the first object that has one.
func Worst(objects []Result) (v1alpha1.Health, string) {
	worst, message := v1alpha1.HealthHealthy, ""
	for _, o := range objects {
		if worse(o.Health, worst) || o.Health == worst && message == "" && o.Message != "" {
			worst, message = o.Health, fmt.Sprintf("%s: %s", o.ID, o.Message)
		}
	}
	return worst, message
}

// Waits reports whether objects are progressing, and all that are wait as their specs want it.
func Waits(objects []Result) bool {
	some := false
	for _, o := range objects {
		if o.Health == v1alpha1.HealthProgressing && !o.Waits {
			return false
		}
		some = some || o.Waits
	}
	return some
}

func worse(a, b v1alpha1.Health) bool {
	rank := map[v1alpha1.Health]int{
		v1alpha1.HealthHealthy: 0, v1alpha1.HealthProgressing: 1, v1alpha1.HealthUnknown: 2, v1alpha1.HealthDegraded: 3,
	}
	return rank[a] > rank[b]
}
