package cmd_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
)

const fileHeader = "apiVersion: keelson.io/v1alpha1\nkind: "

// newFencedFleet is a fleet whose component web belongs to a team, and whose clusters stand
// in an inventory. The platform team alone writes fleet.yaml, projects/ and inventory/.
func newFencedFleet(t *testing.T, suffix string) *fleet {
	t.Helper()
	f := newFleet(t, suffix)
	f.write("fleet.yaml", fileHeader+`Fleet
name: test
projects: required
danger:
- {name: no-host-network, path: .spec.template.spec.hostNetwork, effect: deny, because: the platform team forbids it}
- {name: replicas, path: .spec.replicas, effect: hold, because: capacity is planned}
`)
	f.write("projects/gadgets.yaml", fileHeader+`Project
components: [gadgets]
objects:
- {namespace: gadgets}
- {group: apiextensions.k8s.io, kinds: [CustomResourceDefinition], name: gadgets.demo.example}
`)
	f.write("projects/web.yaml", fileHeader+`Project
components: [web]
objects:
- {namespace: web}
- {group: demo.example, kinds: [Gadget], name: web}
clusterSelector: {matchExpressions: [{key: stage, operator: In, values: [testing, production]}]}
`)
	f.write("inventory/all.yaml", fileHeader+`Inventory
clusters:
  prod: {connection: {context: prod}, labels: {stage: production}}
  test: {connection: {secret: {name: test}}, labels: {stage: testing}}
`)
	for _, cluster := range []string{"prod", "test"} {
		f.write("clusters/"+cluster+"/cluster.yaml", fileHeader+"Cluster\n")
	}
	f.commit()
	return f
}

// attempt is one to leave a fence: a file that its owner may write, and what is said of it.
type attempt struct{ why, file, content, says string }

// make makes the attempt, and commits it.
func (a attempt) make(f *fleet) {
	f.t.Helper()
	f.write(a.file, a.content)
	if strings.HasPrefix(a.file, "components/") {
		f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
	}
	if strings.HasPrefix(a.file, "components/new/") {
		f.write("components/new/template/Chart.yaml", "apiVersion: v2\nname: new\nversion: 1.0.0\n")
		f.write("clusters/test/new.yaml", fileHeader+"MetaConfig\nversion: HEAD\n")
	}
	f.commit()
}

// ofComponents are the attempts of a component's owner.
func ofComponents() map[string]attempt {
	object := func(apiVersion, kind, metadata string) string {
		return "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: " + metadata + "\n"
	}
	// upgrade is something for which the hooks of an upgrade run.
	upgrade := object("v1", "ConfigMap", "{name: new, namespace: web}") + "---\n"
	const more = "components/web/template/templates/more.yaml"
	const outside = "project web does not let its components have it: it matches no entry of objects in projects/web.yaml"
	return map[string]attempt{
		"OtherNamespace":   {"Another team's namespace.", more, object("v1", "ConfigMap", "{name: x, namespace: gadgets}"), "ConfigMap gadgets/x: " + outside},
		"KubeSystem":       {"The cluster's own.", more, object("v1", "Secret", "{name: x, namespace: kube-system}"), "Secret kube-system/x: " + outside},
		"KeelsonSystem":    {"Keelson's.", more, object("v1", "Secret", "{name: record-gadgets, namespace: keelson-system}"), "Secret keelson-system/record-gadgets is where Keelson itself remembers what it did"},
		"ClusterRole":      {"All rights.", more, object("rbac.authorization.k8s.io/v1", "ClusterRole", "{name: all}"), "ClusterRole.rbac.authorization.k8s.io all: " + outside},
		"Binding":          {"And who has them.", more, object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "{name: all}"), "ClusterRoleBinding.rbac.authorization.k8s.io all: " + outside},
		"Namespace":        {"A namespace of its own making.", more, object("v1", "Namespace", "{name: web-2}"), "Namespace web-2: " + outside},
		"OwnNamespace":     {"Its own namespace's labels are policies, too: Pod Security.", more, object("v1", "Namespace", "{name: web, labels: {pod-security.kubernetes.io/enforce: privileged}}"), "Namespace web: " + outside},
		"Webhook":          {"A webhook sees what all others write.", more, object("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "{name: all}"), "MutatingWebhookConfiguration.admissionregistration.k8s.io all: " + outside},
		"CRD":              {"Another's kind.", more, object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "{name: gizmos.demo.example}"), "CustomResourceDefinition.apiextensions.k8s.io gizmos.demo.example: " + outside},
		"APIService":       {"A whole API.", more, object("apiregistration.k8s.io/v1", "APIService", "{name: v1.demo.example}"), "APIService.apiregistration.k8s.io v1.demo.example: " + outside},
		"PersistentVolume": {"A disk of a node.", more, object("v1", "PersistentVolume", "{name: root}"), "PersistentVolume root: " + outside},
		"OtherGadget":      {"An object of a kind that is allowed, by another name.", more, object("demo.example/v1", "Gadget", "{name: other}"), "Gadget.demo.example other: " + outside},
		"Hook":             {"A hook is an object, too.", more, upgrade + object("v1", "ConfigMap", `{name: x, namespace: gadgets, annotations: {helm.sh/hook: pre-upgrade}}`), "ConfigMap gadgets/x: " + outside},
		"HookCluster":      {"Also one of the cluster.", more, upgrade + object("rbac.authorization.k8s.io/v1", "ClusterRole", `{name: all, annotations: {helm.sh/hook: post-upgrade}}`), "ClusterRole.rbac.authorization.k8s.io all: " + outside},
		"CRDFolder":        {"crds/ is no way around it.", "components/web/template/crds/x.yaml", object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "{name: gizmos.demo.example}"), "CustomResourceDefinition.apiextensions.k8s.io gizmos.demo.example: " + outside},
		"ComponentNamespace": {
			"The namespace of the component.", "components/web/component.yaml", fileHeader + "Component\nnamespace: kube-system\n",
			"components/web/component.yaml:3:1: project web (projects/web.yaml) has no objects in namespace kube-system",
		},
		"Adopt": {
			"Objects that others made.", "components/web/component.yaml", fileHeader + "Component\nnamespace: web\nadopt: true\n",
			"components/web/component.yaml:4:1: project web (projects/web.yaml) does not let web adopt objects",
		},
		"NameOfFleet": {
			"A rule with the name of one of the fleet.", "components/web/component.yaml",
			fileHeader + "Component\nnamespace: web\ndanger:\n- {name: replicas, path: .spec, effect: allow, because: we say so}\n",
			`danger rule "replicas": the component can't replace the rule of this name`,
		},
		"NameOfLocked": {
			"Or of one that denies.", "components/web/component.yaml",
			fileHeader + "Component\nnamespace: web\ndanger:\n- {name: no-host-network, path: .spec, effect: allow, because: we say so}\n",
			`danger rule "no-host-network": the component can't replace the rule of this name`,
		},
		"NameOfBuiltIn": {
			"Or of a built-in one.", "components/web/component.yaml",
			fileHeader + "Component\nnamespace: web\ndanger:\n- {name: delete-PersistentVolumeClaim, path: .spec, effect: allow, because: we say so}\n",
			`danger rule "delete-PersistentVolumeClaim": the component can't replace the rule of this name`,
		},
		"Locked": {
			"Nor lock one of its own.", "components/web/component.yaml",
			fileHeader + "Component\nnamespace: web\ndanger:\n- {name: ours, path: .spec, effect: allow, locked: true, because: we say so}\n",
			"only the rules of fleet.yaml can be locked",
		},
		"OtherComponent": {
			"A component that no project names.", "components/new/component.yaml", fileHeader + "Component\nnamespace: web\n",
			"new belongs to no project, but fleet.yaml requires a project for every component",
		},
	}
}

// The owner of a component can't leave its project: what a tag says never loosens what the
// branch says.
func TestComponentStaysInItsProject(t *testing.T) {
	t.Parallel()
	for name, c := range ofComponents() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFencedFleet(t, "")
			c.make(f)
			f.keelson("validate").want(t, 1).says(t, c.says)
		})
	}
	newFencedFleet(t, "").keelson("validate").want(t, 0)
}

// ofClusters are the attempts of the owner of a cluster's folder.
func ofClusters() map[string]attempt {
	const cluster = fileHeader + "Cluster\n"
	return map[string]attempt{
		"Context":    {"Another cluster, by its context.", "clusters/test/cluster.yaml", cluster + "connection: {context: prod}\n", "the inventory says how cluster test is reached (inventory/all.yaml:5:3)"},
		"Secret":     {"Or by its Secret.", "clusters/test/cluster.yaml", cluster + "connection: {secret: {name: prod}}\n", "the inventory says how cluster test is reached"},
		"Hub":        {"Or the hub, where the credentials of all stand.", "clusters/test/cluster.yaml", cluster + "connection: {hub: true}\n", "the inventory says how cluster test is reached"},
		"Same":       {"Also with the connection that it has: it would go on when the inventory changes.", "clusters/test/cluster.yaml", cluster + "connection: {secret: {name: test}}\n", "the inventory says how cluster test is reached"},
		"Stage":      {"Another stage.", "clusters/prod/cluster.yaml", cluster + "labels: {stage: testing}\n", "label stage is the inventory's"},
		"NewCluster": {"A new name for a cluster.", "clusters/third/cluster.yaml", cluster + "connection: {context: prod}\n", "cluster third is in no inventory, and this fleet has one"},
		"NewHub":     {"A new name for the hub.", "clusters/third/cluster.yaml", cluster + "connection: {hub: true}\n", "cluster third is in no inventory"},
		"NoFile":     {"Taking cluster.yaml away is no new cluster either.", "clusters/third/web.yaml", fileHeader + "MetaConfig\n", "cluster.yaml is missing"},
	}
}

// The owner of a cluster's folder delivers to that cluster alone, and not past what holds
// for it.
func TestClusterStaysInItsInventory(t *testing.T) {
	t.Parallel()
	for name, c := range ofClusters() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFencedFleet(t, "")
			c.make(f)
			f.keelson("validate").want(t, 1).says(t, c.says)
		})
	}
}

// What validate says, the cluster shows: nothing of the component is written that its
// project does not name, and nothing that the fleet denies.
func TestFenceOnACluster(t *testing.T) {
	c := live(t)
	f := newFencedFleet(t, "fenced")
	f.git("rm", "-q", "-r", "clusters/test")
	f.edit("inventory/all.yaml", "  test: {connection: {secret: {name: test}}, labels: {stage: testing}}\n", "")
	f.commit()
	f.keelson("apply", "prod", "gadgets", "--yes", "--timeout", "0s")
	f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
	f.write("components/web/template/templates/more.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: planted, namespace: default}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: hooked, namespace: default, annotations: {helm.sh/hook: pre-install}}\n")
	f.commit()
	f.keelson("diff", "prod", "web").want(t, 1).says(t, "DENIED ConfigMap default/planted", "rule project web")
	f.keelson("apply", "prod", "web", "--yes").want(t, 1).says(t, "1 denied")
	for _, name := range []string{"planted", "hooked"} {
		if _, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{}); err == nil {
			t.Errorf("ConfigMap default/%s was created", name)
		}
	}
	f.write("components/web/template/templates/more.yaml", "")
	f.edit("components/web/component.yaml", "namespace: web\n", "namespace: web\ndanger:\n- {name: ours, path: .spec.template.spec.hostNetwork, effect: allow, because: we say so}\n")
	f.edit("components/web/template/templates/web.yaml", "      containers:", "      hostNetwork: true\n      containers:")
	f.commit()
	f.keelson("diff", "prod", "web").want(t, 1).says(t, "DENIED Deployment.apps", "rule no-host-network: the platform team forbids it")
}

// TestFencesOfAController: what validate refuses, the controller does. It is given one
// attempt after the other, says in a status or in its log what validate says, and writes
// nothing that the projects do not name.
func TestFencesOfAController(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	hub, err := apiservertest.Start(versions[0].Assets, "../components/keelson/template/crds")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Stop(); err != nil {
			t.Error(err)
		}
	})
	api, err := dynamic.NewForConfig(hub.Config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(hub.Config)
	if err != nil {
		t.Fatal(err)
	}
	runDeployments(t, client, "web")
	f := newFencedFleet(t, "")
	c := startController(t, f, hub.Config)
	attempts := ofComponents()
	for name, a := range ofClusters() {
		attempts["Cluster"+name] = a
	}
	for _, name := range slices.Sorted(maps.Keys(attempts)) {
		a := attempts[name]
		logged := len(c.log.String())
		f.git("tag", "before-"+name)
		a.make(f)
		until(t, name+": it says "+a.says, func() bool {
			return slices.ContainsFunc(slices.Concat(statuses(t, api), strings.Split(c.log.String()[logged:], "\n")), a.toldIn)
		})
		f.git("read-tree", "-u", "--reset", "before-"+name) // a branch that went back would be refused
		f.commit()
		until(t, name+": it delivers again", func() bool { return !slices.ContainsFunc(statuses(t, api), a.toldIn) })
	}
	for _, path := range []string{
		"/api/v1/namespaces/gadgets/configmaps/x", "/api/v1/namespaces/kube-system/secrets/x", "/api/v1/namespaces/web-2", "/api/v1/persistentvolumes/root",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/all", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/all",
		"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/all", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gizmos.demo.example",
		"/apis/demo.example/v1/gadgets/other",
	} {
		if err := client.RESTClient().Get().AbsPath(path).Do(t.Context()).Error(); !apierrors.IsNotFound(err) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	namespace, err := client.CoreV1().Namespaces().Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || namespace.Labels["pod-security.kubernetes.io/enforce"] != "" {
		t.Errorf("namespace web has labels %v: %v", namespace.Labels, err)
	}
	for _, w := range c.writes() {
		if strings.Contains(w, "/apiservices/") {
			t.Errorf("it wrote: %s", w)
		}
	}
}

// toldIn reports whether a line tells of the attempt: of a hook it says more between.
func (a attempt) toldIn(line string) bool {
	for part := range strings.SplitSeq(a.says, ": ") {
		if !strings.Contains(line, part) && !strings.Contains(line, strings.ReplaceAll(part, `"`, `\"`)) {
			return false
		}
	}
	return true
}

// statuses are the messages of all deliveries.
func statuses(t *testing.T, hub dynamic.Interface) []string {
	t.Helper()
	list, err := hub.Resource(v1alpha1.GroupVersion.WithResource("deliveries")).Namespace("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i := range list.Items {
		message, _, _ := unstructured.NestedString(list.Items[i].Object, "status", "message")
		out = append(out, message)
	}
	return out
}
