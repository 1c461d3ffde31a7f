package nodes_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

// refused runs kubectl in the namespace. The API server must reject the request with all the words.
func (n *test) refused(input string, args []string, says ...string) {
	n.Helper()
	out, err := n.Kubectl(n.Context(), n.images(input), append([]string{"-n", n.Namespace}, args...)...)
	if err == nil {
		n.Errorf("kubectl %s: allowed: %s", strings.Join(args, " "), out)
		return
	}
	for _, s := range says {
		if !strings.Contains(out, s) {
			n.Errorf("kubectl %s: says nothing of %q: %s", strings.Join(args, " "), s, out)
		}
	}
	n.Log(out)
}

// OpenKruise's v1alpha1 manifests are converted on reads and writes.
func TestConversion(t *testing.T) {
	n := begin(t)
	n.apply(`
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  scaleStrategy: {disablePVCReuse: true}
  updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 1, partition: 1}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: IMAGE/web:v1}]}
`)
	n.Settled("web", 2, 2)
	for path, want := range map[string]string{
		"clonesets.v1beta1.apps.kruise.io {.spec.updateStrategy.type}":                          "RollingUpdate",
		"clonesets.v1beta1.apps.kruise.io {.spec.updateStrategy.rollingUpdate.podUpdatePolicy}": "InPlaceIfPossible",
		"clonesets.v1beta1.apps.kruise.io {.spec.updateStrategy.rollingUpdate.partition}":       "1",
		"clonesets.v1beta1.apps.kruise.io {.spec.scaleStrategy.enablePVCReuse}":                 "false",
		"clonesets.v1alpha1.apps.kruise.io {.spec.updateStrategy.type}":                         "InPlaceIfPossible",
		"clonesets.v1alpha1.apps.kruise.io {.spec.scaleStrategy.disablePVCReuse}":               "true",
		"clonesets.v1alpha1.apps.kruise.io {.status.updatedReplicas}":                           "2",
	} {
		resource, path, _ := strings.Cut(path, " ")
		if got := n.Do("get", resource, "web", "-o", "jsonpath="+path); got != want {
			t.Errorf("%s %s is %q, want %q", resource, path, got, want)
		}
	}
}

// Missing fields get defaults, including the API server's defaults for pods. Invalid objects are
// rejected with the field's name.
func TestComplete(t *testing.T) {
	n := begin(t)
	n.apply(web)
	for path, want := range map[string]string{
		"{.spec.revisionHistoryLimit}":                        "10",
		"{.spec.updateStrategy.rollingUpdate.maxSurge}":       "0",
		"{.spec.updateStrategy.rollingUpdate.partition}":      "0",
		"{.spec.template.spec.restartPolicy}":                 "Always",
		"{.spec.template.spec.containers[0].imagePullPolicy}": "IfNotPresent",
	} {
		if got := n.Do("get", "cloneset", "web", "-o", "jsonpath="+path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	with := func(old, is string) string { return strings.Replace(web, old, is, 1) }
	apply := []string{"apply", "-f", "-"}
	n.refused(with("app: web}}\n  updateStrategy", "app: other}}\n  updateStrategy"), apply, "spec.selector", "immutable")
	n.refused(with("maxUnavailable: 1", "maxUnavailable: half"), apply, "spec.updateStrategy.rollingUpdate.maxUnavailable", "half")
	n.refused(with("InPlaceOnly, maxUnavailable: 1", "InPlaceOnly, maxSurge: 1"), apply, "spec.updateStrategy.rollingUpdate.maxSurge")
	n.refused(with("volumes: [{name: scratch", "hostNetwork: true\n      volumes: [{name: scratch"), apply, "spec.template", "InPlaceOnly")
	n.refused(with("mountPath: /scratch", "mountPath: ''"), apply, "spec.template.spec.containers[0].volumeMounts[0].mountPath")
}

// Protected objects can't be deleted. The error says what is left and how to proceed.
func TestProtection(t *testing.T) {
	n := begin(t)
	const label = "policy.kruise.io/delete-protection"
	n.Do("create", "deployment", "shop", "--image="+n.registry+"/web:v1", "--replicas=2")
	n.Do("rollout", "status", "deployment/shop", "--timeout=3m")
	n.Do("create", "service", "clusterip", "shop", "--tcp=80:8080")
	const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.lab.example, labels: {policy.kruise.io/delete-protection: Cascading}}
spec:
  group: lab.example
  names: {kind: Thing, plural: things}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`
	n.apply(definition)
	n.apply(strings.NewReplacer("things", "others", "Thing", "Other").Replace(definition))
	n.Do("wait", "--for=condition=Established", "crd/things.lab.example", "crd/others.lab.example")
	n.apply("apiVersion: lab.example/v1\nkind: Thing\nmetadata: {name: one}\n")

	const by = "forbidden by ResourcesProtectionDeletion"
	n.Do("label", "namespace", n.Namespace, label+"=Cascading")
	n.refused("", []string{"delete", "namespace", n.Namespace}, by, "2 active pods;", "kubectl label namespaces/protection "+label+"-")
	n.Do("label", "deployment", "shop", label+"=Cascading")
	n.refused("", []string{"delete", "deployment", "shop"}, by, "spec.replicas is 2 with 2 active pods;", "kubectl label deployments.apps/shop "+label+"- -n protection")
	n.Do("label", "service", "shop", label+"=Always")
	n.refused("", []string{"delete", "service", "shop"}, by, label+"=Always")
	n.refused("", []string{"delete", "crd", "things.lab.example"}, by, "1 Thing;")
	n.refused("", []string{"delete", "crd", "others.lab.example"}, by, "can't be listed", "protection.kinds")

	n.Do("scale", "deployment", "shop", "--replicas=0")
	n.Do("delete", "deployment", "shop")
	n.Do("label", "service", "shop", label+"-")
	n.Do("delete", "service", "shop")
	n.Do("delete", "thing", "one")
	n.Do("delete", "crd", "things.lab.example")
	n.Do("label", "crd", "others.lab.example", label+"-")
	n.Do("delete", "crd", "others.lab.example")
	n.Do("wait", "--for=delete", "pods", "--all", "--timeout=3m")
	// Nothing is left, so the namespace can be deleted, as after every test.
}

// Without running webhooks, pods of other workloads are created, workloads are accepted unchanged,
// and protected objects stay. Rollouts wait until the controllers return.
func TestNobodyAnswers(t *testing.T) {
	n := begin(t)
	n.apply(web)
	n.Settled("web", 4, 4)
	before := byName(n.Pods("web"))
	n.Do("create", "configmap", "any")
	n.Do("create", "service", "clusterip", "kept", "--tcp=80:8080")
	n.Do("label", "service", "kept", "policy.kruise.io/delete-protection=Always")

	// A running Keelson would revert the change of its component.
	n.Check(n.fleet.controller.Stop(30 * time.Second))
	const controllers = "deployment/workload-controllers"
	system := func(args ...string) {
		t.Helper()
		if out, err := n.Kubectl(t.Context(), "", append([]string{"-n", "keelson-system"}, args...)...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	system("scale", controllers, "--replicas=0")
	system("wait", "--for=delete", "pods", "-l", "app.kubernetes.io/name=workload-controllers", "--timeout=3m")

	n.Do("create", "deployment", "other", "--image="+n.registry+"/web:v1", "--replicas=2")
	n.Do("rollout", "status", "deployment/other", "--timeout=3m")
	for _, p := range n.Pods("other") {
		if len(p.Spec.ReadinessGates) > 0 || len(p.Finalizers) > 0 {
			t.Errorf("%s was given what is not its own: %+v", p.Name, p.Spec.ReadinessGates)
		}
	}
	n.apply(strings.ReplaceAll(strings.Replace(web, "name: web}", "name: late}", 1), "app: web", "app: late"))
	n.image("clonesets/web", "web:v2")
	n.Do("delete", "configmap", "any")
	n.refused("", []string{"delete", "service", "kept"}, "protect.workloads.keelson.io")
	if err := process.Wait(t.Context(), 3*time.Second); err != nil { // nothing may happen in this time
		t.Fatal(err)
	}
	for name, is := range byName(n.Pods("web")) {
		if is.ResourceVersion != before[name].ResourceVersion && is.Spec.Containers[0].Image != before[name].Spec.Containers[0].Image {
			t.Errorf("%s was updated while no controller was running", name)
		}
	}

	if err := must.Try(n.fleet.follow); err != nil { // Keelson restores the controllers
		t.Fatal(err)
	}
	n.Settled("late", 4, 4)
	n.Settled("web", 4, 4)
	n.kept("web", "web:v2", before)
	for _, p := range n.Pods("late") {
		if len(p.Spec.ReadinessGates) != 1 || p.Spec.ReadinessGates[0].ConditionType != corev1.PodConditionType("InPlaceUpdateReady") {
			t.Errorf("%s: gates %+v", p.Name, p.Spec.ReadinessGates)
		}
	}
	n.Do("label", "service", "kept", "policy.kruise.io/delete-protection-")
	n.untilDo("delete", "service", "kept")
}

// untilDo runs kubectl until it succeeds.
func (n *test) untilDo(args ...string) {
	n.Helper()
	var last string
	err := wait.PollUntilContextTimeout(n.Context(), time.Second, workloadtest.Patience, true, func(ctx context.Context) (bool, error) {
		out, err := n.Kubectl(ctx, "", append([]string{"-n", n.Namespace}, args...)...)
		last = out
		return err == nil, nil
	})
	if err != nil {
		n.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, last)
	}
}
