package kwok_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
	"github.com/keelson-io/keelson/lab/harness"
)

// policy says how six pods are updated. An empty field is not in the manifest.
type policy struct{ paused, partition, maxUnavailable, batches string }

// fields returns the fields of the policy that have a value, as YAML between braces.
func (p policy) fields(maxUnavailable string) string {
	var all []string
	for _, f := range [][2]string{{"paused", p.paused}, {"partition", p.partition}, {maxUnavailable, p.maxUnavailable}, {"batches", p.batches}} {
		if f[0] != "" && f[1] != "" {
			all = append(all, f[0]+": "+f[1])
		}
	}
	return strings.Join(all, ", ")
}

// divided is a kind of workload whose updates have partitions and batches.
type divided struct {
	kind     string // as 'keelson workload' names it
	path     string // of the objects in the API
	manifest func(image string, p policy) string
}

const podTemplate = `
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {%s containers: [{name: web, image: "%s"}]}
`

// deployment returns a Deployment of six pods. strategy is that of its own fields.
func deployment(image, annotation, strategy string) string {
	return fmt.Sprintf("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, annotations: {workloads.keelson.io/update-strategy: '{%s}'}}\nspec:\n  replicas: 6\n  strategy: {rollingUpdate: {%s}}"+podTemplate,
		annotation, strategy, "", image)
}

// dividedKinds returns the kinds of workloads whose updates have partitions and batches.
func dividedKinds() map[string]divided {
	kruise := func(kind, spec, node string) func(string, policy) string {
		return func(image string, p policy) string {
			return fmt.Sprintf("apiVersion: apps.kruise.io/v1beta1\nkind: %s\nmetadata: {name: web}\nspec:\n  %s\n  updateStrategy: {type: RollingUpdate, rollingUpdate: {%s}}"+podTemplate,
				kind, spec, p.fields("maxUnavailable"), node, image)
		}
	}
	const six = `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [` +
		`{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [kwok-node-0, kwok-node-1, kwok-node-2, kwok-node-3, kwok-node-4, kwok-node-5]}]}]}}},`
	return map[string]divided{
		"Deployment": {"deployment", "apis/apps/v1/namespaces/%s/deployments/web", func(image string, p policy) string {
			strategy := "maxSurge: 0, maxUnavailable: 1"
			if p.maxUnavailable != "" {
				strategy = "maxSurge: 0, maxUnavailable: " + p.maxUnavailable
			}
			return deployment(image, p.fields(""), strategy)
		}},
		"StatefulSet": {"asts", "apis/apps.kruise.io/v1beta1/namespaces/%s/statefulsets/web", kruise("StatefulSet", "replicas: 6\n  podManagementPolicy: Parallel", "")},
		"DaemonSet":   {"daemon", "apis/apps.kruise.io/v1beta1/namespaces/%s/daemonsets/web", kruise("DaemonSet", "minReadySeconds: 0", six)},
		"CloneSet":    {"cloneset", "apis/apps.kruise.io/v1beta1/namespaces/%s/clonesets/web", kruise("CloneSet", "replicas: 6", "")},
	}
}

// progress is what a workload says of its update.
type progress struct {
	Reason, Message string
	// seen: its controller has seen the newest spec.
	seen bool
	// paused and waiting are fields of a Deployment: spec.paused, and whether no step is under way.
	paused, waiting bool
	available       int64
}

// progressOf reads the progress of a workload.
func (n *test) progressOf(ctx context.Context, k divided) (progress, error) {
	var o struct {
		Metadata struct {
			Generation  int64
			Annotations map[string]string
		}
		Spec struct {
			Paused          bool
			MinReadySeconds int64
		}
		Status workloadtest.Status
	}
	text, err := n.Client.CoreV1().RESTClient().Get().AbsPath(fmt.Sprintf(k.path, n.Namespace)).DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		return progress{}, fmt.Errorf("read the workload: %w", err)
	}
	p := progress{Reason: o.Status.Batches.Reason, Message: o.Status.Batches.Message, seen: o.Status.ObservedGeneration == o.Metadata.Generation}
	if k.kind == "deployment" {
		var is struct {
			ObservedGeneration int64
			Refused            string
			Batches            struct{ Reason, Message string }
		}
		if text := o.Metadata.Annotations["workloads.keelson.io/update-status"]; text != "" {
			n.Check(json.Unmarshal([]byte(text), &is))
		}
		p.Reason, p.Message, p.seen = is.Batches.Reason, is.Batches.Message, p.seen && is.ObservedGeneration == o.Metadata.Generation
		if is.Refused != "" {
			p.Reason, p.Message = "Refused", is.Refused
		}
		p.paused, p.waiting, p.available = o.Spec.Paused, o.Spec.MinReadySeconds == 0, o.Status.AvailableReplicas
	}
	return p, nil
}

// says waits until the controller of a workload has seen its spec, and its progress is as wanted.
func (n *test) says(k divided, what string, is func(progress) bool) progress {
	n.Helper()
	var last progress
	err := wait.PollUntilContextTimeout(n.Context(), workloadtest.Poll, workloadtest.Patience, true, func(ctx context.Context) (bool, error) {
		var err error
		last, err = n.progressOf(ctx, k)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return last.seen && is(last), err
	})
	if err != nil {
		n.Fatalf("the %s never says %s: %v: %+v", k.kind, what, err, last)
	}
	return last
}

func reason(want string) func(progress) bool {
	return func(p progress) bool { return p.Reason == want }
}

// served waits until six pods serve, and as many of them run an image.
func (r *record) served(image string, updated int) {
	r.Helper()
	r.until(fmt.Sprintf("six pods serve, %d of them %s", updated, image), func(now world) bool {
		return len(now) == 6 && now.count(serves) == 6 && now.count(runs(image)) == updated
	})
}

// keelson runs 'keelson workload' for a workload.
func (n *test) keelson(command string, k divided) {
	n.Helper()
	args := []string{"workload", command, k.kind + "/web", "-n", n.Namespace, "--kubeconfig", n.Kubeconfig}
	if out, err := harness.Run(n.Context(), n.TempDir(), os.Getenv("KEELSON_BINARY"), args...); err != nil {
		n.Fatalf("%v\n%s", err, out)
	}
}

// TestPolicies updates six pods of each kind by each policy. The watch judges each event.
func TestPolicies(t *testing.T) {
	policies := map[string]func(*record, divided){
		"pause":          (*record).pauses,
		"maxunavailable": (*record).limits,
		"partition":      (*record).partitions,
		"canary":         (*record).canary,
		"batches":        (*record).batches,
	}
	for name, k := range dividedKinds() {
		for policyName, check := range policies {
			t.Run(strings.ToLower(name)+"/"+policyName, func(t *testing.T) {
				n := begin(t)
				n.Apply(k.manifest("web:v1", policy{}))
				n.says(k, "that it has seen it", func(progress) bool { return true })
				r := n.follow()
				r.served("web:v1", 6)
				r.replay(func(world, watch.Event) {}) // nothing is judged before the update
				check(r, k)
			})
		}
	}
}

// updated returns how many pods run the new image.
func updated(now world) int { return now.count(runs("web:v2")) }

func (r *record) pauses(k divided) {
	r.Apply(k.manifest("web:v2", policy{paused: "true"}))
	r.says(k, "that it has seen it", func(p progress) bool { return k.kind != "deployment" || p.Reason == "Paused" })
	r.replay(func(now world, _ watch.Event) {
		if updated(now) > 0 || now.count(serves) < 6 {
			r.Errorf("it is paused, and %d pods are updated, %d serve", updated(now), now.count(serves))
		}
	})
	r.keelson("resume", k)
	r.served("web:v2", 6)
	r.keelson("pause", k)
	r.says(k, "that it is done", func(p progress) bool { return k.kind != "deployment" || p.Reason == "Done" })
}

func (r *record) limits(k divided) {
	r.Apply(k.manifest("web:v2", policy{maxUnavailable: "2"}))
	r.served("web:v2", 6)
	least := 6
	r.replay(func(now world, _ watch.Event) { least = min(least, now.count(serves)) })
	if least < 4 || least == 6 {
		r.Errorf("%d of six pods serve, and maxUnavailable is 2", least)
	}
}

func (r *record) partitions(k divided) {
	r.Apply(k.manifest("web:v2", policy{partition: "4"}))
	r.served("web:v2", 2)
	r.says(k, "that it is at its partition", func(p progress) bool { return k.kind != "deployment" || p.Reason == "Partition" && p.waiting })
	r.most(2)
	r.Apply(k.manifest("web:v2", policy{partition: "0"}))
	r.served("web:v2", 6)
}

// most checks that no more pods were updated since the last call.
func (r *record) most(pods int) {
	r.Helper()
	most := 0
	r.replay(func(now world, _ watch.Event) { most = max(most, updated(now)) })
	if most != pods {
		r.Errorf("%d pods are updated, and %d are to be", most, pods)
	}
}

func (r *record) canary(k divided) {
	r.Apply(k.manifest("web:v2", policy{batches: "{sizes: [1, 100%]}"}))
	r.says(k, "that it waits for a release", reason("Approval"))
	r.served("web:v2", 1)
	r.most(1)
	r.keelson("next-batch", k)
	r.says(k, "that it is done", reason("Done"))
	r.served("web:v2", 6)
}

func (r *record) batches(k divided) {
	r.Apply(k.manifest("web:v2", policy{batches: "{sizes: [30%, 70%], auto: true}"}))
	r.says(k, "that it is done", reason("Done"))
	r.served("web:v2", 6)
	r.inBatches(2, 6)
}

// inBatches checks that a batch begins when all pods of the batches before it serve.
func (r *record) inBatches(ends ...int) {
	r.Helper()
	serving := func(p *corev1.Pod) bool { return runs("web:v2")(p) && serves(p) }
	before := 0
	r.replay(func(now world, _ watch.Event) {
		is := updated(now)
		for _, end := range ends {
			if before <= end && is > end && now.count(serving) < end {
				r.Errorf("%d pods are updated, while %d of the first %d serve", is, now.count(serving), end)
			}
		}
		before = is
	})
	if before != ends[len(ends)-1] {
		r.Errorf("%d pods are updated in the end", before)
	}
}
