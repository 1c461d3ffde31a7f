package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/expr"
)

// Rules decide when objects are healthy. The zero value has only the rules of Keelson and
// kstatus.
type Rules struct {
	rules  []rule
	labels map[string]string // of the cluster
}

type rule struct {
	match                       v1alpha1.ObjectMatch
	current, inProgress, failed expr.Condition
	because                     string
	text                        v1alpha1.HealthRule // the rule's source
}

func (r rule) readsCluster() bool {
	return slices.ContainsFunc([]string{r.text.InProgress, r.text.Failed, r.text.Current}, differ.ReadsCluster)
}

// RuleError reports which condition of which rule is invalid.
type RuleError struct {
	Rule  int    // index, from 0
	Field string // current, inProgress or failed; "": the rule itself
	Err   error
}

func (e *RuleError) Error() string {
	return fmt.Sprintf("health rule %d: %v", e.Rule+1, e.Err)
}

// Unwrap returns the cause.
func (e *RuleError) Unwrap() error { return e.Err }

// NewRules compiles the health rules of a component, for a cluster with labels. The error is
// a [*RuleError]: an object must not count as healthy because of a typing mistake.
func NewRules(rules []v1alpha1.HealthRule, labels map[string]string) (Rules, error) {
	out := Rules{labels: labels}
	language := expr.NewConditions()
	for i, r := range rules {
		if err := differ.CheckMatch(r.Match); err != nil {
			return Rules{}, &RuleError{Rule: i, Err: err}
		}
		compiled := rule{match: r.Match, because: r.Because, text: r}
		for _, field := range []struct {
			name, text string
			into       *expr.Condition
		}{
			{"inProgress", r.InProgress, &compiled.inProgress},
			{"failed", r.Failed, &compiled.failed},
			{"current", r.Current, &compiled.current},
		} {
			var err error
			if *field.into, err = language.Compile(field.name, field.text); err != nil {
				return Rules{}, &RuleError{Rule: i, Field: field.name, Err: err}
			}
		}
		out.rules = append(out.rules, compiled)
	}
	return out, nil
}

// On returns the same rules for a cluster with labels.
func (r Rules) On(labels map[string]string) Rules {
	r.labels = labels
	return r
}

// AddTo adds the rules to a fingerprint. Different rules add different texts.
func (r Rules) AddTo(h fingerprint.Hash) {
	for i := range r.rules {
		rule := &r.rules[i]
		h.Add(rule.text.InProgress, rule.text.Failed, rule.text.Current, rule.because,
			rule.match.Group, rule.match.Namespace, rule.match.Name, fmt.Sprint(rule.match.Kinds))
	}
	if !slices.ContainsFunc(r.rules, rule.readsCluster) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(r.labels)) {
		h.Add(name, r.labels[name])
	}
}

// evaluate evaluates the first rule that matches the object. decided is false without such a rule, or if
// it leaves the rest to later checks.
func (r Rules) evaluate(id differ.ID, live map[string]any) (h Result, decided bool) {
	for i := range r.rules {
		if rule := &r.rules[i]; differ.Matches(rule.match, id) {
			return rule.evaluate(live, r.labels)
		}
	}
	return Result{}, false
}

func (r *rule) evaluate(live map[string]any, labels map[string]string) (h Result, decided bool) {
	for _, c := range []struct {
		condition expr.Condition
		health    v1alpha1.Health
	}{
		{r.inProgress, v1alpha1.HealthProgressing},
		{r.failed, v1alpha1.HealthDegraded},
		{r.current, v1alpha1.HealthHealthy},
	} {
		if !c.condition.Set() {
			continue
		}
		yes, err := c.condition.Holds(live, labels)
		if err != nil {
			return Result{
				Health:  v1alpha1.HealthUnknown,
				Message: fmt.Sprintf("%s (how it is, is not known: %v)", r.because, err),
			}, true
		}
		switch {
		case yes && c.health == v1alpha1.HealthHealthy:
			return Result{Health: c.health}, true
		case yes:
			return Result{Health: c.health, Message: r.because}, true
		}
	}
	return Result{Health: v1alpha1.HealthProgressing, Message: r.because}, r.current.Set()
}

// builtinHealth returns the health of objects that kstatus reports as healthy too early, or never.
func builtinHealth(live map[string]any) (h Result, decided bool) {
	group, _, _ := strings.Cut(textAt(live, "apiVersion"), "/")
	if group == textAt(live, "apiVersion") {
		group = "" // v1
	}
	kind := textAt(live, "kind")
	if w, is := workloadKinds()[kind]; is && group == workloadsGroup {
		return workloadHealth(w, live), true
	}
	if group == "apps" && kind == "Deployment" && hasUpdateStrategy(live) {
		return updateHealth(live), true
	}
	switch {
	case group == "batch" && kind == "Job":
		return jobHealth(live), true
	case group == "" && kind == "Pod" && statusText(live, "phase") == "Failed":
		return degraded("the pod failed: %s", strings.Join(nonEmpty(statusText(live, "reason"), statusText(live, "message")), ": ")), true
	case group == "" && kind == "PersistentVolumeClaim" && statusText(live, "phase") == "Lost":
		return degraded("its volume is lost"), true
	case group == "" && kind == "Service" && withoutAddress(live):
		return progressing("no address yet: nothing has given the load balancer one"), true
	case group == "apps" && kind == "DaemonSet" && onDelete(live):
		return counted(live, "status", "desiredNumberScheduled", "numberAvailable"), true
	case group == "apps" && kind == "StatefulSet" && onDelete(live):
		return counted(live, "spec", "replicas", "readyReplicas"), true
	case group == "apiregistration.k8s.io" && kind == "APIService":
		return awaited(live, "Available"), true
	case group == "admissionregistration.k8s.io" && injected(live):
		return progressing("a webhook has no caBundle yet: the API server can't call it"), true
	}
	return Result{}, false
}

func degraded(format string, args ...any) Result {
	return Result{Health: v1alpha1.HealthDegraded, Message: fmt.Sprintf(format, args...)}
}

// jobHealth is needed because kstatus reports a running Job as healthy.
func jobHealth(live map[string]any) Result {
	for _, kind := range []string{"Failed", "FailureTarget"} {
		if c := conditionOf(live, kind); c.status == "True" {
			return degraded("the Job failed: %s", strings.Join(nonEmpty(c.reason, c.message), ": "))
		}
	}
	for _, kind := range []string{"Complete", "SuccessCriteriaMet"} {
		if conditionOf(live, kind).status == "True" {
			return Result{Health: v1alpha1.HealthHealthy}
		}
	}
	if c := conditionOf(live, "Suspended"); c.status == "True" {
		return progressing("the Job is suspended")
	}
	return progressing("the Job runs: %d succeeded, %d active, %d failed",
		numberAt(live, "status", "succeeded"), numberAt(live, "status", "active"), numberAt(live, "status", "failed"))
}

// awaited returns the health of an object with a condition that must be true. Without the
// condition, its controller has not seen the object.
func awaited(live map[string]any, kind string) Result {
	switch c := conditionOf(live, kind); c.status {
	case "True":
		return Result{Health: v1alpha1.HealthHealthy}
	case "":
		return progressing("it has no condition %s yet", kind)
	default:
		return Result{Health: v1alpha1.HealthProgressing, Message: c.String()}
	}
}

// onDelete reports whether a person, or another controller, deletes the pods of the old template.
// Then pods that are not updated are no sign of bad health.
func onDelete(live map[string]any) bool {
	spec, _ := live["spec"].(map[string]any)
	strategy, _ := spec["updateStrategy"].(map[string]any)
	return strategy["type"] == "OnDelete"
}

func counted(live map[string]any, in, wanted, there string) Result {
	want, have := numberAt(live, in, wanted), numberAt(live, "status", there)
	if have < want {
		return progressing("%d of %d pods are ready", have, want)
	}
	return Result{Health: v1alpha1.HealthHealthy}
}

// withoutAddress reports whether a load balancer has no address yet.
func withoutAddress(live map[string]any) bool {
	spec, _ := live["spec"].(map[string]any)
	status, _ := live["status"].(map[string]any)
	balancer, _ := status["loadBalancer"].(map[string]any)
	ingress, _ := balancer["ingress"].([]any)
	return spec["type"] == "LoadBalancer" && len(ingress) == 0
}

// injected reports whether a webhook waits for its caBundle from cert-manager.
func injected(live map[string]any) bool {
	metadata, _ := live["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	waits := false
	for name := range annotations {
		waits = waits || strings.HasPrefix(name, "cert-manager.io/inject-")
	}
	if !waits {
		return false
	}
	webhooks, _ := live["webhooks"].([]any)
	for _, item := range webhooks {
		webhook, _ := item.(map[string]any)
		client, _ := webhook["clientConfig"].(map[string]any)
		if textAt(client, "caBundle") == "" {
			return true
		}
	}
	return false
}

func statusText(live map[string]any, field string) string {
	status, _ := live["status"].(map[string]any)
	return textAt(status, field)
}

func numberAt(live map[string]any, section, field string) int64 {
	m, _ := live[section].(map[string]any)
	n, _ := m[field].(int64)
	return n
}
