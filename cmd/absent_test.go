//go:build !race

package cmd_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier/apiservertest"
)

// collectGarbage does the garbage collector's part of a foreground deletion for
// some kinds, until the test ends.
func collectGarbage(t *testing.T, server *rest.Config, kinds ...schema.GroupVersionResource) {
	t.Helper()
	d, err := dynamic.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, gvr := range kinds {
				list, err := d.Resource(gvr).List(ctx, metav1.ListOptions{LabelSelector: "keelson.io/component"})
				for i := 0; err == nil && i < len(list.Items); i++ {
					if u := &list.Items[i]; len(u.GetFinalizers()) == 1 && u.GetFinalizers()[0] == metav1.FinalizerDeleteDependents {
						_, _ = d.Resource(gvr).Namespace(u.GetNamespace()).Patch(ctx, u.GetName(), types.MergePatchType,
							[]byte(`{"metadata":{"finalizers":null,"resourceVersion":"`+u.GetResourceVersion()+`"}}`), metav1.PatchOptions{})
					}
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
}

func hasConfigMap(t *testing.T, c kubernetes.Interface, namespace, name string) types.UID {
	t.Helper()
	m, err := c.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return m.UID
}

// One run prunes what left the chart, in two passes; what moved to another
// component stays what it is, also where the giver has its turn first; and what git
// wants absent goes after what depends on it.
//
// The API server is its own: an apply of another test would tidy records that are empty for a moment.
func TestApplyRemoves(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, versions[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		testApplyRemoves(t, start(t))
	})
}

func testApplyRemoves(t *testing.T, s *apiservertest.Server) {
	t.Helper()
	c, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, "gone")
	if f.kubeconfig, err = writeKubeconfig(s, t.TempDir(), "prod"); err != nil {
		t.Fatal(err)
	}
	gadgets := schema.GroupVersionResource{Group: "gone.example", Version: "v1", Resource: "gadgetsgone"}
	collectGarbage(t, s.Config, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, schema.GroupVersionResource{Version: "v1", Resource: "secrets"},
		schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, gadgets)
	runDeployments(t, c, "webgone")
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "webgone"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.write("components/gadgets/template/templates/more.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more, namespace: web}\n")
	f.write("components/gadgets/template/templates/old.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: old}\n")
	version := func(component, was, is string) {
		t.Helper()
		f.edit("layers/10-base.yaml", component+":\n    version: "+was, component+":\n    version: "+is)
		f.commit()
		f.tag(component + "/" + is)
	}
	version("gadgets", "v1.0.0", "v1.1.0")
	f.keelson("apply", "prod", "--yes", "--timeout", "3m").want(t, 0)
	uid := hasConfigMap(t, c, "webgone", "more")
	if uid == "" || hasConfigMap(t, c, "gadgetsgone", "old") == "" {
		t.Fatal("the ConfigMaps are not there")
	}

	t.Log("both want it: validate says where")
	f.write("components/web/template/templates/more.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n")
	version("web", "v1.0.0", "v1.1.0")
	f.keelson("validate").want(t, 1).says(t, "components/web/template/templates/more.yaml@web/v1.1.0:",
		"ConfigMap web/more: components gadgets and web both want it, the first at components/gadgets/template/templates/more.yaml@gadgets/v1.1.0:")
	f.keelson("apply", "prod", "--yes", "--timeout", "1m").want(t, 1).says(t, "held ConfigMap web/more: rule other-component: component gadgets wants it, too")

	t.Log("one moves, one goes")
	f.write("components/gadgets/template/templates/more.yaml", "# moved to web\n")
	f.write("components/gadgets/template/templates/old.yaml", "# not needed\n")
	version("gadgets", "v1.1.0", "v1.2.0")
	f.keelson("apply", "prod", "gadgets", "--yes", "--timeout", "1m").want(t, 1).says(t,
		"ConfigMap gadgets/old deleted", "waiting: ConfigMap web/more: waits until component web has taken it over")
	got := f.keelson("apply", "prod", "--yes", "--timeout", "3m").want(t, 0).says(t, "ConfigMap web/more configured", "gadgets v1.2.0 synced", "web v1.0.0 → v1.1.0 synced")
	if strings.Contains(got.out, "deleted") || hasConfigMap(t, c, "webgone", "more") != uid || hasConfigMap(t, c, "gadgetsgone", "old") != "" {
		t.Errorf("want one moved as it was, and the other gone:\n%s", got.out)
	}
	f.keelson("diff", "prod").want(t, 0)

	t.Log("absent")
	f.edit("layers/10-base.yaml", "gadgets:\n    version: v1.2.0", "gadgets:\n    version: v1.2.0\n    absent: true")
	f.commit()
	f.keelson("validate").want(t, 1).says(t, "layers/10-base.yaml:7:13: gadgets is absent, and depends on it: web")
	f.edit("layers/10-base.yaml", "web:\n    version: v1.1.0", "web:\n    version: v1.1.0\n    absent: true")
	f.commit()
	f.keelson("validate").want(t, 0)
	f.keelson("explain", "prod", "web").want(t, 0).says(t, "absent", "layers/10-base.yaml:10:13")
	f.keelson("render", "prod", "web").want(t, 0).saysNot(t, "kind:")
	f.keelson("diff", "prod").want(t, 1).says(t, "delete Deployment.apps web/web", "web v1.1.0 (absent): 4 to delete",
		"HELD CustomResourceDefinition.apiextensions.k8s.io gadgets.demo.example")
	f.keelson("apply", "prod", "gadgets", "--yes").want(t, 1).says(t, "gadgets v1.2.0 (absent) waiting: web depends on it, and is not gone yet")
	got = f.keelson("apply", "prod", "--yes", "--timeout", "1m").want(t, 1).says(t,
		"web v1.1.0 (absent) synced", "gadgets v1.2.0 (absent) held")
	if strings.Index(got.out, "webgone v1.1.0 (absent) synced") > strings.Index(got.out, "gadgetsgone v1.2.0 (absent) held") {
		t.Errorf("gadgets went first:\n%s", got.out)
	}
	err = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return hasConfigMap(t, c, "webgone", "more") == "" && hasConfigMap(t, c, "gadgetsgone", "gadgetsgone") == "", nil //nolint:contextcheck // it has the test's
	})
	if err != nil {
		t.Error("a ConfigMap is left")
	}

	t.Log("what deletes all of its kind waits for an approval, and nothing else is left")
	var diff struct {
		Objects []struct{ Kind, Name, Hash string }
	}
	decode(t, f.keelson("diff", "prod", "-o", "json").want(t, 1).out, &diff)
	if len(diff.Objects) != 2 || diff.Objects[1].Kind != "CustomResourceDefinition" {
		t.Fatalf("got %+v, want the CRD, and what is gone and not forgotten yet", diff.Objects)
	}
	f.write("approvals/1.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Approvals\napprovals:\n- cluster: prod\n  component: gadgets\n"+
		"  object: CustomResourceDefinition.apiextensions.k8s.io gadgets.demo.example\n  hash: "+diff.Objects[1].Hash+"\n  because: no gadgets any more\n")
	f.commit()
	f.keelson("apply", "prod", "--yes", "--timeout", "3m").want(t, 0).says(t, "gadgets v1.2.0 (absent) synced")
	secrets, err := c.CoreV1().Secrets("keelson-system").List(t.Context(), metav1.ListOptions{LabelSelector: "keelson.io/record in (webgone,gadgetsgone)"})
	if err != nil || len(secrets.Items) != 0 {
		t.Errorf("%d records are left (%v)", len(secrets.Items), err)
	}
	f.keelson("diff", "prod").want(t, 0).says(t, "prod: 2 components in sync\n")
}
