package health_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/differ"
)

// healthOf is the health of an object in YAML.
func healthOf(t *testing.T, rules health.Rules, manifest string) health.Result {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	var u unstructured.Unstructured
	if err := u.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	gvk := schema.FromAPIVersionAndKind(u.GetAPIVersion(), u.GetKind())
	id := differ.ID{Group: gvk.Group, Kind: gvk.Kind, Namespace: u.GetNamespace(), Name: u.GetName()}
	return rules.Of(id, u.Object)
}

func TestHealthWithoutRules(t *testing.T) {
	t.Parallel()
	const (
		healthy, progressing, degraded = v1alpha1.HealthHealthy, v1alpha1.HealthProgressing, v1alpha1.HealthDegraded
		deployment                     = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, generation: 2}, spec: {replicas: 1, progressDeadlineSeconds: 600}, status: "
		available                      = "replicas: 1, updatedReplicas: 1, readyReplicas: 1, availableReplicas: 1, conditions: [{type: Progressing, status: 'True', reason: NewReplicaSetAvailable}, {type: Available, status: 'True'}]}}"
		job                            = "{apiVersion: batch/v1, kind: Job, metadata: {name: a}, status: "
		service                        = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: LoadBalancer, clusterIP: 10.0.0.1}, status: "
		apiService                     = "{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: a}, status: "
		webhook                        = "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: a, annotations: {cert-manager.io/inject-ca-from: a/b}}, webhooks: [{clientConfig: "
	)
	cases := map[string]struct {
		why      string
		manifest string
		want     v1alpha1.Health
		message  string
	}{
		"Deployment":          {"All pods are available at this generation.", deployment + "{observedGeneration: 2, " + available, healthy, ""},
		"DeploymentOld":       {"The status is of the previous generation.", deployment + "{observedGeneration: 1, " + available, progressing, "generation 2 yet, but 1"},
		"DeploymentUnseen":    {"A status that no controller has written says nothing.", deployment + "{" + available, progressing, "has not seen it yet"},
		"DeploymentStuck":     {"After its deadline, a rollout is not expected to finish.", deployment + "{observedGeneration: 2, conditions: [{type: Progressing, status: 'False', reason: ProgressDeadlineExceeded}]}}", degraded, "Progress deadline"},
		"DeploymentOldStuck":  {"The new generation may repair the failure.", deployment + "{observedGeneration: 1, conditions: [{type: Progressing, status: 'False', reason: ProgressDeadlineExceeded}]}}", progressing, ""},
		"Deleted":             {"Components that depend on an object can't use it while it is being deleted.", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [x/y]}}", progressing, "[x/y]"},
		"StatefulSetUnseen":   {"Without replicas kstatus would call it healthy at once.", "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a, generation: 1}, spec: {replicas: 0}}", progressing, "has not seen"},
		"StatefulSetOnDelete": {"kstatus would not count its pods.", "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a}, spec: {replicas: 3, updateStrategy: {type: OnDelete}}, status: {observedGeneration: 1, readyReplicas: 2}}", progressing, "2 of 3 pods are ready"},
		"DaemonSetOnDelete":   {"kstatus would wait until a person deleted every pod.", "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: a}, spec: {updateStrategy: {type: OnDelete}}, status: {observedGeneration: 1, desiredNumberScheduled: 2, numberAvailable: 2, updatedNumberScheduled: 0}}", healthy, ""},
		"JobRuns":             {"kstatus would call it healthy.", job + "{startTime: '2026-01-01T00:00:00Z', active: 1}}", progressing, "1 active"},
		"JobDone":             {"A finished Job.", job + "{conditions: [{type: Complete, status: 'True'}]}}", healthy, ""},
		"JobFailed":           {"The message names the reason of the failure.", job + "{conditions: [{type: Failed, status: 'True', reason: BackoffLimitExceeded, message: too often}]}}", degraded, "BackoffLimitExceeded: too often"},
		"JobNew":              {"No controller has seen the Job.", job + "{}}", progressing, "0 active"},
		"PodFailed":           {"kstatus would call it healthy.", "{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {phase: Failed, reason: Evicted}}", degraded, "Evicted"},
		"PodDone":             {"The pod ended with success.", "{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {phase: Succeeded}}", healthy, ""},
		"ClaimLost":           {"A lost volume does not return.", "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a}, status: {phase: Lost}}", degraded, "lost"},
		"LoadBalancerNew":     {"The load balancer has no address.", service + "{loadBalancer: {}}}", progressing, "no address"},
		"LoadBalancer":        {"The load balancer has an address.", service + "{loadBalancer: {ingress: [{ip: 192.0.2.1}]}}}", healthy, ""},
		"APIServiceNew":       {"The API server has not tried it.", apiService + "{}}", progressing, "no condition Available"},
		"APIServiceDown":      {"The message holds the API server's reason.", apiService + "{conditions: [{type: Available, status: 'False', reason: MissingEndpoints, message: none}]}}", progressing, "Available is False (MissingEndpoints: none)"},
		"APIService":          {"The API service is available.", apiService + "{conditions: [{type: Available, status: 'True'}]}}", healthy, ""},
		"WebhookNew":          {"Without a caBundle the API server can't verify the webhook, so every call would fail.", webhook + "{service: {name: a}}}]}", progressing, "caBundle"},
		"Webhook":             {"cert-manager has set the caBundle.", webhook + "{caBundle: eA==}}]}", healthy, ""},
		"ReadyOld":            {"The condition is of the previous generation.", "{apiVersion: x.io/v1, kind: X, metadata: {name: a, generation: 3}, status: {conditions: [{type: Ready, status: 'True', observedGeneration: 2}]}}", progressing, "about generation 2"},
		"Ready":               {"The condition is of this generation.", "{apiVersion: x.io/v1, kind: X, metadata: {name: a, generation: 3}, status: {conditions: [{type: Ready, status: 'True', observedGeneration: 3}]}}", healthy, ""},
		"Malformed":           {"A status that can't be read is not healthy.", "{apiVersion: x.io/v1, kind: X, metadata: {name: a, generation: 3}, status: {observedGeneration: three}}", v1alpha1.HealthUnknown, "observedGeneration"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := healthOf(t, health.Rules{}, c.manifest)
			if got.Health != c.want || !strings.Contains(got.Message, c.message) || (got.Health == healthy) != (got.Message == "") {
				t.Errorf("%s It is %s: %q", c.why, got.Health, got.Message)
			}
		})
	}
}

func TestHealthRules(t *testing.T) {
	t.Parallel()
	widgets := v1alpha1.ObjectMatch{Group: "x.io", Kinds: []string{"Widget"}}
	full := v1alpha1.HealthRule{
		Match: widgets, Because: "widgets have phases",
		InProgress: "object.status.phase == 'Pending'", Failed: "object.status.phase == 'Broken'",
		Current: "object.status.phase == cluster.labels.expected",
	}
	half := v1alpha1.HealthRule{Match: widgets, Failed: "has(object.status.broken)", Because: "broken widgets stay so"}
	widget := func(status string) string {
		return "{apiVersion: x.io/v1, kind: Widget, metadata: {name: a, generation: 2}, status: " + status + "}"
	}
	cases := map[string]struct {
		why      string
		rule     v1alpha1.HealthRule
		manifest string
		want     v1alpha1.Health
		message  string
	}{
		"Current":    {"As the rule says, with the labels of the cluster.", full, widget("{phase: Up}"), v1alpha1.HealthHealthy, ""},
		"InProgress": {"As the rule says.", full, widget("{phase: Pending}"), v1alpha1.HealthProgressing, "widgets have phases"},
		"Failed":     {"As the rule says.", full, widget("{phase: Broken}"), v1alpha1.HealthDegraded, "widgets have phases"},
		"None":       {"What is not current is on its way.", full, widget("{phase: Turning}"), v1alpha1.HealthProgressing, "widgets have phases"},
		"NoAnswer":   {"What fails is not known, and never healthy.", full, widget("{}"), v1alpha1.HealthUnknown, "inProgress: no such key: phase"},
		"Old":        {"The rule would call it current; its controller has not seen it.", full, widget("{phase: Up, observedGeneration: 1}"), v1alpha1.HealthProgressing, "generation 2 yet"},
		"Half":       {"A rule without current leaves the rest to kstatus.", half, widget("{conditions: [{type: Ready, status: 'False', message: soon}]}"), v1alpha1.HealthProgressing, "soon"},
		"HalfFailed": {"And decides what it is about.", half, widget("{broken: true}"), v1alpha1.HealthDegraded, "broken widgets stay so"},
		"OtherKind":  {"Kstatus decides about others.", full, "{apiVersion: x.io/v1, kind: Gadget, metadata: {name: a}}", v1alpha1.HealthHealthy, ""},
		"Override": {
			"A fleet without load balancers may say so.",
			v1alpha1.HealthRule{Match: v1alpha1.ObjectMatch{Group: "core", Kinds: []string{"Service"}}, Current: "true", Because: "no balancer here"},
			"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: LoadBalancer}}", v1alpha1.HealthHealthy, "",
		},
		"Secret": {
			"A condition sees no data, not even in what it fails with.",
			v1alpha1.HealthRule{Match: v1alpha1.ObjectMatch{Kinds: []string{"Secret"}}, Current: "object.data.key == 1", Because: "keys"},
			"{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {key: Y2FuYXJ5}}", v1alpha1.HealthUnknown, "no such key: data",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules, err := health.NewRules([]v1alpha1.HealthRule{c.rule}, map[string]string{"expected": "Up"})
			if err != nil {
				t.Fatal(err)
			}
			got := healthOf(t, rules, c.manifest)
			if got.Health != c.want || !strings.Contains(got.Message, c.message) {
				t.Errorf("%s It is %s: %q", c.why, got.Health, got.Message)
			}
		})
	}
}

func TestMalformedHealthRules(t *testing.T) {
	t.Parallel()
	match := v1alpha1.ObjectMatch{Kinds: []string{"Widget"}}
	cases := map[string]struct {
		why       string
		rule      v1alpha1.HealthRule
		wantField string
		want      string
	}{
		"Syntax":  {"No CEL.", v1alpha1.HealthRule{Match: match, Current: "object.status ="}, "current", "current: line 1, column"},
		"Type":    {"No condition.", v1alpha1.HealthRule{Match: match, Failed: "1 + 1"}, "failed", "no true or false"},
		"Danger":  {"What danger rules read is not there.", v1alpha1.HealthRule{Match: match, InProgress: "old == new"}, "inProgress", "undeclared reference to 'old'"},
		"Pattern": {"It could never match.", v1alpha1.HealthRule{Match: v1alpha1.ObjectMatch{Kinds: []string{"["}}, Current: "true"}, "", "match \"[\""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good := v1alpha1.HealthRule{Match: match, Current: "true"}
			_, err := health.NewRules([]v1alpha1.HealthRule{good, c.rule}, nil)
			wrong, ok := err.(*health.RuleError) //nolint:errorlint // it is not wrapped
			if !ok || wrong.Rule != 1 || wrong.Field != c.wantField || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s The error is %v", c.why, err)
			}
		})
	}
}
