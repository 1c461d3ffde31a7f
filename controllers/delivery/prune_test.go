package delivery_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const metaConfig = "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\n"

// deleting reports whether an object is gone or going. What is going counts as gone:
// only the API server runs here, and no garbage collector.
func (f *fleet) deleting(gvr schema.GroupVersionResource, name string) bool {
	f.t.Helper()
	objects := f.dynamic.Resource(gvr).Namespace(f.name)
	u, err := objects.Get(f.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true
	}
	if err != nil {
		f.t.Fatal(err)
	}
	if u.GetDeletionTimestamp() == nil {
		return false
	}
	_, err = objects.Patch(f.t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if client.IgnoreNotFound(err) != nil {
		f.t.Fatal(err)
	}
	return true
}

// web is the ConfigMap of that name.
func (f *fleet) web() *unstructured.Unstructured {
	f.t.Helper()
	u, err := f.dynamic.Resource(configMaps).Namespace(f.name).Get(f.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return u
}

// delivered is the status of a component, zero without a Delivery.
func (f *fleet) delivered(component string) v1alpha1.DeliveryStatus {
	f.t.Helper()
	var d v1alpha1.Delivery
	err := f.hub.Get(f.t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: f.name + "." + component}, &d)
	if client.IgnoreNotFound(err) != nil {
		f.t.Fatal(err)
	}
	return d.Status
}

// component adds a component of one ConfigMap to the cluster, at the branch.
func (f *fleet) component(name, configMap string) {
	f.t.Helper()
	f.write("components/"+name+"/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: CLUSTER\n")
	f.write("components/"+name+"/template/Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\n")
	f.write("components/"+name+"/template/templates/c.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+configMap+"}\n")
	f.write("clusters/CLUSTER/"+name+".yaml", metaConfig+"version: HEAD\n")
}

// withoutConfigMap publishes web v1.1.0, which has the Deployment alone.
func (f *fleet) withoutConfigMap() {
	f.t.Helper()
	const file = "components/CLUSTER-web/template/templates/web.yaml"
	f.write(file, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "web:v1", ports: [{containerPort: 80}]}]}
`)
	f.commit("web v1.1.0")
	f.git("tag", f.name+"-web/v1.1.0")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", metaConfig+"version: v1.1.0\n")
	f.commit("use web v1.1.0")
}

// What leaves the chart goes, in two passes that need no commit and no poll
// between them, and the delivery is in sync when it is gone.
func TestPruned(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.withoutConfigMap()
	f.eventually("the ConfigMap goes", func() bool { return f.deleting(configMaps, "web") })
	f.sync(v1alpha1.SyncSynced, "")
	f.eventually("its deletion is counted, once", func() bool { d := f.status().LastDiff; return d != nil && d.Deleted == 1 })
	if got := f.field(deployments, "spec", "replicas"); got != "2" {
		t.Errorf("the Deployment: replicas are %s", got)
	}
}

// As long as another component can't be rendered, it may want what leaves this one.
func TestPruneWaitsForUnknown(t *testing.T) {
	f := newFleet(t)
	f.component("CLUSTER-other", "other")
	f.commit("another component")
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.write("components/CLUSTER-other/template/templates/c.yaml", "{{ fail \"broken\" }}")
	f.withoutConfigMap()
	f.sync(v1alpha1.SyncProgressing, "waits until it is known whether component "+f.name+"-other wants it")
	if f.deleting(configMaps, "web") {
		t.Fatal("it was deleted")
	}
	f.write("components/CLUSTER-other/template/templates/c.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n")
	f.commit("mended")
	f.eventually("the ConfigMap goes", func() bool { return f.deleting(configMaps, "web") })
	f.sync(v1alpha1.SyncSynced, "")
}

// An object moves to another component with one commit: it stays what it is.
func TestObjectMoves(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	uid := f.web().GetUID()
	f.component("CLUSTER-a", "web")
	f.withoutConfigMap()
	f.eventually("it belongs to the other component", func() bool {
		return f.web().GetLabels()[v1alpha1.LabelComponent] == f.name+"-a" && f.delivered(f.name+"-a").Sync == v1alpha1.SyncSynced
	})
	f.sync(v1alpha1.SyncSynced, "")
	if f.web().GetUID() != uid || f.deleting(configMaps, "web") {
		t.Error("it was deleted on its way")
	}
}

// A component gets another name: its objects stay what they are, and nothing is
// left of the old name, neither in the cluster nor in the hub.
func TestComponentRenamed(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	uid := f.web().GetUID()
	f.git("mv", "components/"+f.name+"-web", "components/"+f.name+"-site")
	f.git("mv", "clusters/"+f.name+"/"+f.name+"-web.yaml", "clusters/"+f.name+"/"+f.name+"-site.yaml")
	f.commit("rename")
	f.git("tag", f.name+"-site/v1.0.0")
	f.eventually("it runs under its new name", func() bool { return f.delivered(f.name+"-site").Sync == v1alpha1.SyncSynced })
	f.eventually("nothing tells of the old name", func() bool { return f.delivered(f.name+"-web").Sync == "" })
	f.eventually("its record is gone", func() bool {
		_, err := f.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(v1alpha1.Namespace).
			Get(t.Context(), "record-"+f.name+"-web", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if f.web().GetUID() != uid {
		t.Error("an object was made anew")
	}
}

// Absent in git: the objects go, what depends on them first, then the record. The
// Delivery tells of it until git does so no more.
func TestAbsent(t *testing.T) {
	f := newFleet(t)
	f.component("CLUSTER-child", "child")
	f.write("components/CLUSTER-child/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: CLUSTER\ndependsOn: [CLUSTER-web]\n")
	f.commit("a component that depends on web")
	stop := f.start(nil)
	f.eventually("web is in sync", func() bool { return f.status().Sync == v1alpha1.SyncSynced })
	// No kubelet runs here: web never gets healthy, and child waits for it.
	f.eventually("child waits", func() bool { return f.delivered(f.name+"-child").Sync == v1alpha1.SyncWaiting })
	f.write("components/CLUSTER-child/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: CLUSTER\n")
	f.commit("not yet")
	f.eventually("child is in sync", func() bool { return f.delivered(f.name+"-child").Sync == v1alpha1.SyncSynced })
	f.write("components/CLUSTER-child/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: CLUSTER\ndependsOn: [CLUSTER-web]\n")

	t.Log("what others depend on can't go")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", metaConfig+"version: v1.0.0\nabsent: true\nvalues: {text: hello}\n")
	f.commit("web absent")
	f.sync(v1alpha1.SyncBlocked, "absent, and depends on it: "+f.name+"-child")

	t.Log("with them it goes, after them")
	f.write("clusters/CLUSTER/CLUSTER-child.yaml", metaConfig+"version: HEAD\nabsent: true\n")
	f.commit("child absent, too")
	f.sync(v1alpha1.SyncWaiting, "waits until "+f.name+"-child is gone, which depends on it")
	if f.deleting(configMaps, "web") || f.deleting(deployments, "web") {
		t.Error("it went first")
	}
	f.eventually("child goes", func() bool { return f.deleting(configMaps, "child") })
	f.eventually("web goes", func() bool { return f.deleting(configMaps, "web") && f.deleting(deployments, "web") })
	f.sync(v1alpha1.SyncAbsent, "")
	if s := f.status(); s.AppliedVersion != "" || s.Objects != 0 || s.Health != v1alpha1.HealthHealthy {
		t.Errorf("the status tells of what is not there: %+v", s)
	}

	t.Log("a controller that starts again changes nothing about it, and forgets it with git")
	stop()
	f.git("rm", "-q", "clusters/"+f.name+"/"+f.name+"-web.yaml")
	f.commit("not even a word of it")
	f.start(nil)
	f.eventually("no Delivery is left", func() bool { return f.status().Sync == "" })
	f.eventually("child is absent still", func() bool { return f.delivered(f.name+"-child").Sync == v1alpha1.SyncAbsent })
	if text := f.logged(); strings.Contains(text, "level=ERROR") {
		t.Errorf("the log has errors:\n%s", text)
	}
}
