package delivery_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// besides gives the fleet a second cluster, CLUSTER-b, with a component like web.
func (f *fleet) besides() {
	f.t.Helper()
	f.write("clusters/CLUSTER-b/cluster.yaml", head+"Cluster\nconnection: {context: b}\n")
	f.write("clusters/CLUSTER-b/CLUSTER-b-web.yaml", head+"MetaConfig\nversion: HEAD\n")
	f.write("components/CLUSTER-b-web/component.yaml", head+"Component\nnamespace: CLUSTER-b\n")
	f.write("components/CLUSTER-b-web/template/Chart.yaml", "apiVersion: v2\nname: web\nversion: 1.0.0\n")
	f.write("components/CLUSTER-b-web/template/templates/web.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: hello}\n")
	f.commit("a second cluster")
}

// of is the Delivery of the second cluster; false: there is none.
func (f *fleet) second() (v1alpha1.DeliveryStatus, bool) {
	var d v1alpha1.Delivery
	err := f.hub.Get(f.t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: f.name + "-b." + f.name + "-b-web"}, &d)
	return d.Status, err == nil
}

// series counts those of a cluster.
func (f *fleet) series(cluster string) int {
	f.t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	n := 0
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "cluster" && l.GetValue() == cluster {
					n++
				}
			}
		}
	}
	return n
}

// goroutines are the stacks of those that work for a cluster, without the connections
// of the HTTP client, which rest for a while.
func goroutines(t *testing.T, cluster string) []string {
	t.Helper()
	var text bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&text, 1); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Split(text.String(), "\n\n"), func(stack string) bool {
		return !strings.Contains(stack, fmt.Sprintf("%q:%q", "cluster", cluster)) || strings.Contains(stack, "http.(*persistConn)") ||
			strings.Contains(stack, "http2ClientConn") || strings.Contains(stack, "http2.(*ClientConn)") || strings.Contains(stack, "http2clientConnReadLoop")
	})
}

// A cluster that leaves git takes with it what tells of it: Deliveries, series,
// goroutines. What is in the cluster stays, and when it comes again nothing of it is
// written.
func TestClusterLeavesAndReturns(t *testing.T) {
	f := newFleet(t)
	f.besides()
	l := &line{about: f.name + "-b"}
	f.start(l.connect)
	f.eventually("both are delivered", func() bool {
		b, _ := f.second()
		return b.Sync == v1alpha1.SyncSynced && f.status().Sync == v1alpha1.SyncSynced
	})
	if n, s := len(goroutines(t, f.name+"-b")), f.series(f.name+"-b"); n == 0 || s == 0 {
		t.Fatalf("%d goroutines and %d series: nothing would be tested", n, s)
	}
	f.git("rm", "-q", "-r", "clusters/"+f.name+"-b")
	f.commit("the second leaves")
	f.eventually("its Delivery goes", func() bool { _, there := f.second(); return !there })
	f.eventually("its series go", func() bool { return f.series(f.name+"-b") == 0 })
	f.eventually("its goroutines end", func() bool { return len(goroutines(t, f.name+"-b")) == 0 })
	u, err := f.dynamic.Resource(configMaps).Namespace(f.name+"-b").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || u.GetLabels()[v1alpha1.LabelComponent] != f.name+"-b-web" {
		t.Errorf("what is in the cluster does not stay as it was: %v, %v", u.GetLabels(), err)
	}
	var record corev1.Secret
	if err := f.hub.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "record-" + f.name + "-b-web"}, &record); err != nil {
		t.Errorf("its record: %v", err)
	}
	f.sync(v1alpha1.SyncSynced, "")

	l.since()
	f.git("revert", "--no-edit", "HEAD")
	f.eventually("it is delivered again", func() bool { b, _ := f.second(); return b.Sync == v1alpha1.SyncSynced && b.AppliedVersion == "HEAD" })
	for _, asked := range l.since() {
		if !strings.HasPrefix(asked, http.MethodGet) && !strings.Contains(asked, "deliveries") {
			t.Errorf("nothing had changed, and it wrote: %s", asked)
		}
	}
	if f.series(f.name+"-b") == 0 {
		t.Error("it has no series")
	}
}

// A cluster that hangs is removed like any other: the removal does not wait for its answer.
func TestHungClusterLeaves(t *testing.T) {
	f := newFleet(t)
	f.besides()
	hung, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hung.Close() })
	f.start(func(_ context.Context, c v1alpha1.Connection) (*rest.Config, error) {
		if c.Context == "b" {
			return &rest.Config{Host: "http://" + hung.Addr().String()}, nil
		}
		return server, nil
	})
	f.eventually("it is told that it hangs", func() bool { b, _ := f.second(); return b.Sync == v1alpha1.SyncUnreachable })
	f.git("rm", "-q", "-r", "clusters/"+f.name+"-b")
	f.commit("the second leaves")
	f.eventually("its Delivery goes", func() bool { _, there := f.second(); return !there })
	f.eventually("its goroutines end", func() bool { return len(goroutines(t, f.name+"-b")) == 0 })
	f.eventually("its series go", func() bool { return f.series(f.name+"-b") == 0 })
	f.sync(v1alpha1.SyncSynced, "")
}

// A component that leaves git, or is to be absent, while its cluster hangs: git's word
// is told at once, and done when the cluster answers.
func TestComponentLeavesWhileHung(t *testing.T) {
	f, l := resting(t)
	l.set(true)
	f.write("clusters/CLUSTER/CLUSTER-more.yaml", head+"MetaConfig\nversion: HEAD\n")
	f.write("components/CLUSTER-more/component.yaml", head+"Component\nnamespace: CLUSTER\n")
	f.write("components/CLUSTER-more/template/Chart.yaml", "apiVersion: v2\nname: more\nversion: 1.0.0\n")
	f.write("components/CLUSTER-more/template/templates/more.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n")
	f.commit("another, which has the silence noticed")
	f.sync(v1alpha1.SyncUnreachable, "cut")
	f.git("rm", "-q", "clusters/"+f.name+"/"+f.name+"-web.yaml")
	f.commit("web leaves")
	f.sync(v1alpha1.SyncOrphaned, "left in place")
	l.set(false)
	f.eventually("the other is delivered", func() bool { return f.delivered(f.name+"-more").Sync == v1alpha1.SyncSynced })
	f.sync(v1alpha1.SyncOrphaned, "left in place")
	if f.text() != "hello" {
		t.Errorf("the text is %q", f.text())
	}

	t.Log("it comes again, and nothing of it is written")
	l.since()
	f.git("revert", "--no-edit", "HEAD")
	f.sync(v1alpha1.SyncSynced, "")
	for _, asked := range l.since() {
		if !strings.HasPrefix(asked, http.MethodGet) && strings.Contains(asked, "web") {
			t.Errorf("nothing had changed, and it wrote: %s", asked)
		}
	}

	t.Log("absent while the cluster hangs")
	l.set(true)
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.0\nabsent: true\nvalues: {text: hello}\n")
	f.write("components/CLUSTER-more/template/templates/more.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\ndata: {a: b}\n")
	f.commit("web is to go")
	f.sync(v1alpha1.SyncUnreachable, "cut")
	l.set(false)
	f.eventually("it goes", func() bool { return f.deleting(configMaps, "web") && f.deleting(deployments, "web") })
	f.sync(v1alpha1.SyncAbsent, "")
	f.git("rm", "-q", "clusters/"+f.name+"/"+f.name+"-web.yaml")
	f.commit("not even a word of it")
	f.eventually("no Delivery is left", func() bool { return f.status().Sync == "" })
	f.eventually("no record is left", func() bool {
		var record corev1.Secret
		return client.IgnoreNotFound(f.hub.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "record-" + f.name + "-web"}, &record)) == nil && record.Name == ""
	})
}

// A cluster that left git while no controller ran has no Delivery afterwards.
func TestClusterLeavesUnseen(t *testing.T) {
	f := newFleet(t)
	f.besides()
	stop := f.start(nil)
	f.eventually("both are delivered", func() bool {
		b, _ := f.second()
		return b.Sync == v1alpha1.SyncSynced && f.status().Sync == v1alpha1.SyncSynced
	})
	stop()
	f.git("rm", "-q", "-r", "clusters/"+f.name+"-b")
	f.commit("the second leaves")
	f.start(nil)
	f.eventually("its Delivery goes", func() bool { _, there := f.second(); return !there })
	f.sync(v1alpha1.SyncSynced, "")
}

// A component at rest, which git wants to be absent with no other word changed, goes
// as any other does.
func TestAbsentAtRest(t *testing.T) {
	f, _ := resting(t)
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.0\nabsent: true\nvalues: {text: hello}\n")
	f.commit("web is to go")
	f.eventually("it goes", func() bool { return f.deleting(configMaps, "web") && f.deleting(deployments, "web") })
	f.sync(v1alpha1.SyncAbsent, "")
}
