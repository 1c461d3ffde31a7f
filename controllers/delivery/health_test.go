package delivery_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const headVersion = "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: HEAD\nvalues: {text: hello}\n"

func (f *fleet) create(gvr schema.GroupVersionResource, namespace string, object map[string]any) {
	f.t.Helper()
	_, err := f.dynamic.Resource(gvr).Namespace(namespace).Create(f.t.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
}

// waitingPod creates the namespace, and in it a pod of web whose image is missing.
func (f *fleet) waitingPod() {
	f.t.Helper()
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	f.create(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": f.name},
	})
	f.create(pods, f.name, map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "web-1", "labels": map[string]any{"app": "web"}},
		"spec": map[string]any{"containers": []any{map[string]any{"name": "web", "image": "web:v1"}}},
	})
	_, err := f.dynamic.Resource(pods).Namespace(f.name).Patch(f.t.Context(), "web-1", types.MergePatchType, []byte(`{"status": {"containerStatuses": [
		{"name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]}}`),
		metav1.PatchOptions{}, "status")
	if err != nil {
		f.t.Fatal(err)
	}
}

// What is not healthy in time says why: object, condition, and the pod that is
// worst off.
func TestNotHealthyInTime(t *testing.T) {
	f := newFleet(t)
	f.write("components/CLUSTER-web/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: CLUSTER\ntimeout: 1s\n")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", headVersion)
	f.commit("a short timeout")
	f.waitingPod()
	f.start(nil)
	f.eventually("it says what is wrong", func() bool {
		s := f.status()
		// Time may run out between the diagnosis and the status: then the next one says why.
		return s.Health == v1alpha1.HealthDegraded && s.Sync == v1alpha1.SyncSynced && strings.Contains(s.Message, "; pod ")
	})
	const want = "/web: its controller has not seen it yet; pod web-1: container web waits: ImagePullBackOff: no such image"
	// Where reading the pod's events took too long, the message goes on with that.
	if m := f.status().Message; !strings.HasPrefix(m, "not healthy after 1s: Deployment.apps ") || !strings.Contains(m, want) {
		t.Errorf("the message is %q", m)
	}
}

// A pod that does not start is told while there is time left: its image has to be mended,
// whether that takes five minutes or a day.
func TestPodThatDoesNotStart(t *testing.T) {
	f := newFleet(t)
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", headVersion)
	f.commit("HEAD")
	f.waitingPod()
	f.start(nil)
	f.eventually("it says which pod", func() bool {
		s := f.status()
		return s.Health == v1alpha1.HealthProgressing && s.Sync == v1alpha1.SyncSynced &&
			strings.HasPrefix(s.Message, "Deployment.apps ") && strings.HasSuffix(s.Message, "; pod web-1: container web waits: ImagePullBackOff: no such image")
	})
}

// The hooks of a chart run with its upgrade, and one that can't says so.
func TestHooksRun(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	hook := func(name string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", annotations: {helm.sh/hook: 'pre-upgrade'}}\n"
	}
	f.write("components/CLUSTER-web/template/templates/hook.yaml", hook("before"))
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", headVersion)
	f.commit("a hook")
	exists := func(name string) bool {
		_, err := f.dynamic.Resource(configMaps).Namespace(f.name).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	}
	f.eventually("the hook runs", func() bool { return exists("before") })
	f.eventually("the target is applied as a whole", func() bool { return f.status().AppliedVersion == "HEAD" })

	f.create(configMaps, f.name, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "taken"}})
	f.write("components/CLUSTER-web/template/templates/hook.yaml", hook("taken"))
	f.commit("a hook whose name is taken")
	f.sync(v1alpha1.SyncFailed, "hook pre-upgrade ConfigMap "+f.name+"/taken failed: an object of this name exists, and it is no hook of this component")
}
