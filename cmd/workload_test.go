package cmd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd"
	"github.com/keelson-io/keelson/controllers/workload"
	"github.com/keelson-io/keelson/controllers/workload/kubelettest"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// shop is a namespace in which 'keelson workload' is run.
type shop struct {
	*testing.T
	api       kubernetes.Interface
	client    client.Client
	namespace string
}

func newShop(t *testing.T) *shop {
	t.Helper()
	api := live(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(server, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{T: t, api: api, client: c, namespace: strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))}
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})
	s.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "default"}})
	return s
}

func (s *shop) create(o client.Object) {
	s.Helper()
	if err := s.client.Create(s.Context(), o, client.FieldOwner("kubectl-create")); err != nil {
		s.Fatal(err)
	}
}

// run has the controllers and a kubelet work in the namespace.
func (s *shop) run() {
	s.Helper()
	c, err := workload.New(server, workload.Options{Namespace: s.namespace, Workers: 1, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	s.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Error(err)
		}
	})
	kubelettest.Start(s.T, s.api, s.namespace)
}

// keelson runs 'keelson workload' in the namespace.
func (s *shop) keelson(args ...string) result {
	s.Helper()
	return world{now: time.Now()}.run(s.T, append([]string{"workload", "--kubeconfig", kubeconfig, "--context", "prod", "-n", s.namespace}, args...)...)
}

func cloneSet(namespace string) *v1beta1.CloneSet {
	set := &v1beta1.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	set.Spec = v1beta1.CloneSetSpec{
		Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		UpdateStrategy: v1beta1.CloneSetUpdateStrategy{RollingUpdate: &v1beta1.CloneSetRollingUpdateStrategy{PodUpdatePolicy: v1beta1.PodUpdateInPlaceIfPossible}},
	}
	set.Spec.Template.Labels = map[string]string{"app": "web"}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "web:v1"}}
	return set
}

func (s *shop) get() *v1beta1.CloneSet {
	s.Helper()
	var set v1beta1.CloneSet
	if err := s.client.Get(s.Context(), client.ObjectKey{Namespace: s.namespace, Name: "web"}, &set); err != nil {
		s.Fatal(err)
	}
	return &set
}

func (s *shop) change(change func(*v1beta1.CloneSetSpec)) {
	s.Helper()
	set := s.get()
	before := set.DeepCopy()
	change(&set.Spec)
	if err := s.client.Patch(s.Context(), set, client.MergeFrom(before)); err != nil {
		s.Fatal(err)
	}
}

// images counts the pods of each.
func (s *shop) images() map[string]int {
	s.Helper()
	pods, err := s.api.CoreV1().Pods(s.namespace).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	out := map[string]int{}
	for i := range pods.Items {
		out[pods.Items[i].Spec.Containers[0].Image]++
	}
	return out
}

type shownWorkload struct {
	Kind, Name, Health, Message, Partition, Revision string
	Paused                                           bool
	Pods                                             struct{ Wanted, Total, Available, Updated int }
	Revisions                                        []struct {
		Name   string
		Number int
		Images []string
		Pods   []struct{ Name, State string }
	}
}

// The life of a CloneSet as a person sees and steers it: it comes up, stops at its
// partition, is paused, resumed, and rolled back, with the controllers that ship.
func TestWorkload(t *testing.T) {
	s := newShop(t)
	s.run()
	s.create(cloneSet(s.namespace))
	s.keelson("status", "web", "--watch", "--timeout", "3m").want(t, 0).says(t, "CloneSet workload/web: Healthy\n")
	s.keelson("status", "web").want(t, 0).says(t, "CloneSet workload/web: Healthy\n", "pods: 3 wanted, 3 there, 3 ready, 3 available, 3 updated\n",
		"update: InPlaceIfPossible, to revision ", "1         web-", "web:v1", "available\n").saysNot(t, "delivered by Keelson", "from ")
	s.keelson("rollback", "web").want(t, 2).says(t, "CloneSet workload/web has no other revision to go back to")

	t.Log("up to a partition")
	s.change(func(spec *v1beta1.CloneSetSpec) {
		spec.Template.Spec.Containers[0].Image = "web:v2"
		spec.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromInt32(2))
	})
	s.keelson("status", "web", "--watch", "--timeout", "3m").want(t, 0).says(t, "Healthy: 1 of 3 pods updated: partition 2\n")
	var shown shownWorkload
	decode(t, s.keelson("status", "cloneset/web", "-o", "json").want(t, 0).out, &shown)
	if len(shown.Revisions) != 2 || shown.Revisions[0].Number != 2 || len(shown.Revisions[0].Pods) != 1 || len(shown.Revisions[1].Pods) != 2 ||
		shown.Revisions[0].Images[0] != "web:v2" || shown.Revisions[1].Pods[0].State != "available" {
		t.Errorf("pods by revision: %+v", shown.Revisions)
	}
	if shown.Kind != "CloneSet" || shown.Health != "Healthy" || shown.Partition != "2" || shown.Pods.Updated != 1 || shown.Pods.Wanted != 3 || shown.Revision != shown.Revisions[0].Name {
		t.Errorf("got %+v", shown)
	}
	s.keelson("status", "web").want(t, 0).says(t, "partition 2, to revision "+revision.Hash(shown.Revision)+", from "+revision.Hash(shown.Revisions[1].Name)+"\n")

	t.Log("paused")
	s.keelson("pause", "web").want(t, 0).says(t, "CloneSet workload/web is paused\n").saysNot(t, "git does not know")
	s.keelson("pause", "clone/web", "-o", "json").want(t, 0).says(t, `"paused": true`, `"changed": false`)
	if set := s.get(); !set.Spec.UpdateStrategy.RollingUpdate.Paused || set.Spec.UpdateStrategy.RollingUpdate.PodUpdatePolicy != v1beta1.PodUpdateInPlaceIfPossible || manager(set, `"f:paused"`) != v1alpha1.WorkloadManager {
		t.Errorf("paused: %+v, by %s", set.Spec.UpdateStrategy.RollingUpdate, manager(set, `"f:paused"`))
	}
	s.change(func(spec *v1beta1.CloneSetSpec) { spec.UpdateStrategy.RollingUpdate.Partition = nil })
	s.keelson("status", "web", "--watch", "--timeout", "2s").want(t, 1).says(t, "Progressing: paused: 1 of 3 pods updated\n", "is not done after 2s: paused: 1 of 3 pods updated")
	s.keelson("status", "web").want(t, 1).says(t, "Progressing: paused: 1 of 3 pods updated\n", "InPlaceIfPossible, paused, to revision")
	if got := s.images(); got["web:v1"] != 2 || got["web:v2"] != 1 {
		t.Errorf("while it is paused there are %v", got)
	}
	s.keelson("resume", "web").want(t, 0).says(t, "CloneSet workload/web is not paused\n")
	s.keelson("resume", "web").want(t, 0).says(t, "CloneSet workload/web is not paused already\n")
	s.keelson("status", "web", "--watch", "--timeout", "3m").want(t, 0)
	if got := s.images(); got["web:v2"] != 3 {
		t.Errorf("after it there are %v", got)
	}

	t.Log("and back")
	s.keelson("rollback", "web", "--list").want(t, 0).says(t, "REVISION  NAME", "2         web-", "1         web-", "web:v1")
	s.keelson("rollback", "web", "--to", "7").want(t, 2).says(t, `CloneSet workload/web has no revision "7": see 'keelson workload rollback cloneset/web -n workload --list'`)
	s.keelson("rollback", "web", "--to", "2").want(t, 2).says(t, "has the template of revision 2 (web-", "already")
	before := s.get()
	s.keelson("rollback", "web").want(t, 0).says(t, "CloneSet workload/web has the template of revision 1 (web-", "again: web:v2 → web:v1\n", "status cloneset/web -n workload --watch")
	s.keelson("status", "web", "--watch", "--timeout", "3m").want(t, 0)
	after := s.get()
	if got := s.images(); got["web:v1"] != 3 || after.Status.UpdateRevision != shown.Revisions[1].Name {
		t.Errorf("there are %v, and it is at %s", got, after.Status.UpdateRevision)
	}
	before.Spec.Template.Spec.Containers[0].Image = "web:v1"
	if diff := cmp.Diff(before.Spec, after.Spec); diff != "" {
		t.Errorf("it changed more than the template (-want +got):\n%s", diff)
	}
	s.keelson("rollback", "web", "--to", revision.Hash(shown.Revision), "-o", "json").want(t, 0).says(t, `"web:v2"`, `"revision": "`+shown.Revision+`"`)
	s.keelson("status", "web", "--watch", "--timeout", "3m").want(t, 0)

	t.Log("what fails, and what goes")
	s.change(func(spec *v1beta1.CloneSetSpec) {
		spec.UpdateStrategy.RollingUpdate.Partition = new(intstr.FromString("half"))
	})
	s.keelson("status", "web", "--watch", "--timeout", "3m").want(t, 1).says(t, "Degraded: SpecRefused: ")
	s.keelson("status", "web").want(t, 1).says(t, "FailedScale  True", "SpecRefused")
}

// manager is who owns a field, by its part of managedFields.
func manager(o client.Object, field string) string {
	for _, e := range o.GetManagedFields() {
		if e.FieldsV1 != nil && strings.Contains(string(e.FieldsV1.GetRawBytes()), field) {
			return e.Manager
		}
	}
	return ""
}

// daemonSet is one of three nodes, with two revisions, as a controller would have left it.
func (s *shop) daemonSet(name string, change func(*v1beta1.DaemonSet)) *v1beta1.DaemonSet {
	s.Helper()
	set := &v1beta1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	set.Spec.Template.Labels = map[string]string{"app": name}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "agent", Image: "agent:v2"}}
	if change != nil {
		change(set)
	}
	s.create(set)
	owner := revision.Owner{Object: set, Kind: v1beta1.GroupVersion.WithKind("DaemonSet"), Labels: set.Spec.Selector.MatchLabels}
	for i, image := range []string{"agent:v1", "agent:v2"} {
		template := set.Spec.Template.DeepCopy()
		template.Spec.Containers[0].Image = image
		r, err := revision.New(owner, template, int64(i+1))
		if err != nil {
			s.Fatal(err)
		}
		s.create(r)
	}
	set.Status = v1beta1.DaemonSetStatus{ObservedGeneration: set.Generation, DesiredNumberScheduled: 3, CurrentNumberScheduled: 3, NumberReady: 3, NumberAvailable: 3, UpdatedNumberScheduled: 1}
	if err := s.client.Status().Update(s.Context(), set); err != nil {
		s.Fatal(err)
	}
	return set
}

// A DaemonSet is paused, resumed and rolled back as a CloneSet is, and found by its name
// where that is enough.
func TestWorkloadDaemon(t *testing.T) {
	s := newShop(t)
	s.daemonSet("agent", nil)
	s.keelson("status", "agent").want(t, 1).says(t, "DaemonSet workloaddaemon/agent: Progressing: 1 of 3 pods updated\n", "pods: 3 wanted", "update: Standard", "no pods\n")
	s.keelson("pause", "ads/agent").want(t, 0)
	get := func() *v1beta1.DaemonSet {
		t.Helper()
		var set v1beta1.DaemonSet
		if err := s.client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "agent"}, &set); err != nil {
			t.Fatal(err)
		}
		return &set
	}
	if u := get().Spec.UpdateStrategy.RollingUpdate; u == nil || u.Paused == nil || !*u.Paused {
		t.Errorf("paused: %+v", u)
	}
	s.keelson("rollback", "agent").want(t, 0).says(t, "agent:v2 → agent:v1\n", "its pods stay as they are while it is paused: 'keelson workload resume daemon/agent -n workloaddaemon'")
	if set := get(); set.Spec.Template.Spec.Containers[0].Image != "agent:v1" || manager(set, `"f:containers"`) != v1alpha1.WorkloadManager {
		t.Errorf("rolled back: %+v, by %s", set.Spec.Template.Spec.Containers, manager(set, `"f:containers"`))
	}
	s.keelson("status", "agent").want(t, 1).says(t, "its controller has not seen generation 3 yet, but 1")
	s.keelson("resume", "agent").want(t, 0)
	if u := get().Spec.UpdateStrategy.RollingUpdate; u.Paused != nil {
		t.Errorf("resumed: %+v", u)
	}

	t.Log("names")
	s.create(cloneSet(s.namespace))
	both := &v1beta1.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "agent"}, Spec: cloneSet("").Spec}
	s.create(both)
	s.keelson("status", "agent").want(t, 2).says(t, "has several workloads agent: say cloneset/agent or daemon/agent")
	s.keelson("pause", "agent").want(t, 2).says(t, "say cloneset/agent")
	s.keelson("status", "daemon/agent").want(t, 1).says(t, "DaemonSet workloaddaemon/agent")
	s.keelson("status", "agent", "--kind", "CloneSet").want(t, 1).says(t, "CloneSet workloaddaemon/agent: Progressing: its controller has not seen it yet\n", "no revisions\n")
	s.keelson("status", "cloneset.apps.kruise.io/agent", "--kind", "daemonset").want(t, 2).says(t, "is a CloneSet, and --kind says DaemonSet")
	s.keelson("status", "job/agent").want(t, 2).says(t, `"job" is no kind of workload: give CloneSet, DaemonSet, Deployment, StatefulSet`)
	s.keelson("status", "daemonset.apps.kruise.io/agent").want(t, 1).says(t, "DaemonSet workloaddaemon/agent")
	s.keelson("status", "daemonset.apps/agent").want(t, 2).says(t, `has no DaemonSet "agent"`)
	s.keelson("status", "cloneset/").want(t, 2).says(t, "names no workload")
	s.keelson("status", "nothing").want(t, 2).says(t, `namespace workloaddaemon has no workload "nothing": there are cloneset/agent, cloneset/web, daemon/agent`)
	s.keelson("status", "daemon/web").want(t, 2).says(t, `has no DaemonSet "web": there are daemon/agent`)
	s.keelson("status", "web", "--watch", "-o", "json").want(t, 2).says(t, "--watch prints text")
	s.keelson("status", "web", "--timeout", "1s").want(t, 2).says(t, "--timeout is for --watch")
	s.keelson("rollback", "web", "--list", "--force").want(t, 2).says(t, "--list only shows")

	t.Log("completion")
	complete := func(args ...string) []string {
		t.Helper()
		out := world{}.run(t, append([]string{"__complete", "workload", "--kubeconfig", kubeconfig, "--context", "prod", "-n", s.namespace}, args...)...).want(t, 0).out
		lines := strings.Split(strings.TrimSpace(out), "\n")
		return lines[:len(lines)-1] // the last one is for the shell
	}
	for _, c := range []struct{ args, want []string }{
		{[]string{"status", ""}, []string{"cloneset/agent", "daemon/agent", "web"}},
		{[]string{"status", "--kind", "CloneSet", ""}, []string{"agent", "web"}},
		{[]string{"pause", "cloneset/"}, []string{"cloneset/agent", "cloneset/web"}},
		{[]string{"pause", "web", ""}, []string{}},
		{[]string{"status", "--kind", ""}, []string{"CloneSet", "DaemonSet", "Deployment", "StatefulSet"}},
		{[]string{"rollback", "daemon/agent", "--to", ""}, []string{"2\tagent:v2", "1\tagent:v1"}},
	} {
		if diff := cmp.Diff(c.want, complete(c.args...)); diff != "" {
			t.Errorf("completing %q (-want +got):\n%s", c.args, diff)
		}
	}
	if got := complete("status", "-n", ""); !slices.Contains(got, s.namespace) {
		t.Errorf("namespaces: %q", got)
	}
}

// A watch sees what comes, and ends when the workload is done, or gone.
func TestWorkloadWatch(t *testing.T) {
	s := newShop(t)
	s.create(cloneSet(s.namespace))
	set := s.get()
	say := func(change func(*v1beta1.CloneSetStatus)) {
		t.Helper()
		change(&set.Status)
		if err := s.client.Status().Update(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	watch := func() (said *buffer, ended chan int) {
		t.Helper()
		said, ended = &buffer{}, make(chan int, 1)
		go func() {
			ended <- runInto(t.Context(), said, "workload", "status", "web", "-n", s.namespace, "--kubeconfig", kubeconfig, "--context", "prod", "--watch")
		}()
		return said, ended
	}
	hears := func(said *buffer, text string) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 3*time.Minute, true, func(context.Context) (bool, error) {
			return strings.Contains(said.String(), text), nil
		})
		if err != nil {
			t.Fatalf("it never says %q:\n%s", text, said)
		}
	}
	ends := func(said *buffer, ended chan int, code int) {
		t.Helper()
		select {
		case got := <-ended:
			if got != code {
				t.Fatalf("exit code %d, want %d:\n%s", got, code, said)
			}
		case <-time.After(3 * time.Minute):
			t.Fatalf("it goes on:\n%s", said)
		}
	}
	said, ended := watch()
	hears(said, "Progressing: its controller has not seen it yet\n")
	say(func(st *v1beta1.CloneSetStatus) {
		*st = v1beta1.CloneSetStatus{ObservedGeneration: set.Generation, Replicas: 3, AvailableReplicas: 3, ExpectedUpdatedReplicas: 3, UpdatedReplicas: 1, UpdatedAvailableReplicas: 1}
	})
	hears(said, "Progressing: 1 of 3 pods updated\n")
	say(func(st *v1beta1.CloneSetStatus) { st.UpdatedReplicas, st.UpdatedAvailableReplicas = 3, 3 })
	ends(said, ended, 0)
	hears(said, "CloneSet workloadwatch/web: Healthy\n")

	say(func(st *v1beta1.CloneSetStatus) { st.AvailableReplicas, st.UpdatedAvailableReplicas = 2, 2 })
	said, ended = watch()
	hears(said, "2 of 3 updated pods are available")
	if err := s.client.Delete(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	ends(said, ended, 2)
	hears(said, "CloneSet workloadwatch/web was deleted while it was watched")
}

// What Keelson delivers is refused, with what to do instead; --force is told what becomes
// of it, and that is so: the next apply sets back what git says.
func TestWorkloadDelivered(t *testing.T) {
	s := newShop(t)
	f := newFleet(t, "kruised")
	ns := "webkruised"
	f.write("components/web/template/templates/clone.yaml", `
apiVersion: apps.kruise.io/v1beta1
kind: CloneSet
metadata: {name: front}
spec:
  replicas: 1
  selector: {matchLabels: {app: front}}
  updateStrategy: {type: RollingUpdate, rollingUpdate: {paused: false}}
  template:
    metadata: {labels: {app: front}}
    spec: {containers: [{name: front, image: "front:v2"}]}
`)
	f.commit()
	f.tag("web/v1.1.0")
	f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: v1.1.0")
	f.commit()
	f.keelson("apply", "prod", "--yes", "--no-wait").want(t, 0)

	set := &v1beta1.CloneSet{}
	read := func() *v1beta1.CloneSet {
		t.Helper()
		if err := s.client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "front"}, set); err != nil {
			t.Fatal(err)
		}
		return set
	}
	owner := revision.Owner{Object: read(), Kind: v1beta1.GroupVersion.WithKind("CloneSet"), Labels: map[string]string{"app": "front"}}
	template := set.Spec.Template.DeepCopy()
	template.Spec.Containers[0].Image = "front:v1"
	r, err := revision.New(owner, template, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.create(r)

	s.namespace = ns
	for verb, does := range map[string]string{"pause": "paused", "rollback": "rolled back"} {
		s.keelson(verb, "front").want(t, 2).says(t, "CloneSet webkruised/front is not to be "+does+": Keelson delivers it as part of component webkruised, and git is the source of truth",
			"'keelson pause CLUSTER webkruised' in git", "--force")
	}
	if set := read(); set.Spec.UpdateStrategy.RollingUpdate.Paused || set.Spec.Template.Spec.Containers[0].Image != "front:v2" {
		t.Errorf("it was refused, and is %+v", set.Spec)
	}
	s.keelson("status", "front").want(t, 1).says(t, "delivered by Keelson: component webkruised\n")
	f.keelson("diff", "prod", "web").want(t, 0)

	s.keelson("pause", "front", "--force").want(t, 0).says(t, "front is paused\n", "is delivered by Keelson, and git does not have this change: what git sets is set back")
	s.keelson("rollback", "front", "--force").want(t, 0).says(t, "front:v2 → front:v1", "git does not have this change")
	s.keelson("resume", "front").want(t, 2).says(t, "is not to be resumed")
	if set := read(); !set.Spec.UpdateStrategy.RollingUpdate.Paused || set.Spec.Template.Spec.Containers[0].Image != "front:v1" {
		t.Errorf("it was forced, and is %+v", set.Spec)
	}
	f.keelson("diff", "prod", "web").want(t, 1).says(t, "a person changed it").saysNot(t, "an unknown client")
	f.keelson("apply", "prod", "--yes", "--no-wait").want(t, 0)
	if set := read(); set.Spec.UpdateStrategy.RollingUpdate.Paused || set.Spec.Template.Spec.Containers[0].Image != "front:v2" {
		t.Errorf("git says otherwise, and it is %+v", set.Spec)
	}

	t.Log("without the label its fields tell")
	if err := s.client.Patch(t.Context(), read(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+v1alpha1.LabelComponent+`":null}}}`))); err != nil {
		t.Fatal(err)
	}
	s.keelson("pause", "front").want(t, 2).says(t, "Keelson delivers it as part of a component, and", "'keelson pause CLUSTER COMPONENT'")
}

// A write that meets another one is made anew where that was a status, and not where the
// spec is another one by now.
func TestWorkloadConflict(t *testing.T) {
	s := newShop(t)
	set := s.daemonSet("agent", nil)
	between := func(change func(*v1beta1.DaemonSet, int)) result {
		t.Helper()
		n := 0
		proxied := s.proxied(func(r *http.Request) {
			if r.Method != http.MethodPatch {
				return
			}
			var now v1beta1.DaemonSet
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(set), &now); err != nil {
				t.Error(err)
			}
			change(&now, n)
			n++
		})
		return world{}.run(t, "workload", "rollback", "agent", "-n", s.namespace, "--kubeconfig", proxied)
	}
	image := func() string {
		t.Helper()
		var now v1beta1.DaemonSet
		if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(set), &now); err != nil {
			t.Fatal(err)
		}
		return now.Spec.Template.Spec.Containers[0].Image
	}
	between(func(now *v1beta1.DaemonSet, n int) {
		now.Spec.MinReadySeconds = int32(n + 1)
		if err := s.client.Update(t.Context(), now); err != nil {
			t.Error(err)
		}
	}).want(t, 2).says(t, "DaemonSet workloadconflict/agent: its spec was changed meanwhile: look at it, and try again")
	if got := image(); got != "agent:v2" {
		t.Errorf("the spec was another one, and it is rolled back to %s", got)
	}
	between(func(now *v1beta1.DaemonSet, n int) {
		if n > 1 {
			return
		}
		now.Status.NumberReady = int32(n)
		if err := s.client.Status().Update(t.Context(), now); err != nil {
			t.Error(err)
		}
	}).want(t, 0)
	if got := image(); got != "agent:v1" {
		t.Errorf("only its status was another one, and it is %s", got)
	}
}

// proxied is a kubeconfig of the API server in which something happens before requests.
func (s *shop) proxied(before func(*http.Request)) string {
	s.Helper()
	transport, err := transportOf(server)
	if err != nil {
		s.Fatal(err)
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before(r)
		forward(w, r, server.Host, transport)
	}))
	s.Cleanup(front.Close)
	return s.kubeconfigOf(front.URL)
}

func (s *shop) kubeconfigOf(url string) string {
	s.Helper()
	config := map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "a",
		"contexts": []any{map[string]any{"name": "a", "context": map[string]any{"cluster": "a", "user": "a"}}},
		"clusters": []any{map[string]any{"name": "a", "cluster": map[string]any{"server": url}}},
		"users":    []any{map[string]any{"name": "a", "user": map[string]any{}}},
	}
	data, err := json.Marshal(config)
	if err != nil {
		s.Fatal(err)
	}
	return write(s.T, "kubeconfig", string(data))
}

// A cluster without the CRDs is told apart from one without the workload, and from one
// that does not answer.
func TestWorkloadElsewhere(t *testing.T) {
	t.Parallel()
	s := &shop{T: t, namespace: "shop"}
	answers := func(code int) string {
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch {
			case code != http.StatusOK:
				w.WriteHeader(code)
				fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"not now","reason":"InternalError","code":%d}`, code)
			case r.URL.Path == "/apis":
				fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
			case r.URL.Path == "/api":
				fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
			default:
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","code":404}`)
			}
		}))
		t.Cleanup(front.Close)
		return s.kubeconfigOf(front.URL)
	}
	keelson(t, "workload", "status", "web", "--kubeconfig", answers(http.StatusOK)).want(t, 2).
		says(t, "the cluster serves no CloneSets or DaemonSets or Deployments or StatefulSets: --kubeconfig and --context may name another cluster")
	keelson(t, "workload", "status", "cloneset/web", "--kubeconfig", answers(http.StatusOK)).want(t, 2).
		says(t, "the cluster serves no CloneSets: either their CRDs are not installed (components/workload-controllers has them), or --kubeconfig and --context name another cluster")
	keelson(t, "workload", "status", "web", "--kubeconfig", answers(http.StatusInternalServerError)).want(t, 2).says(t, "read CloneSet default/web: ").saysNot(t, "serves no")
	keelson(t, "workload", "status", "web", "--kubeconfig", filepath.Join(t.TempDir(), "none")).want(t, 2).says(t, "keelson: ")
}

// runInto runs a command that writes to one place what it has to say.
func runInto(ctx context.Context, said *buffer, args ...string) int {
	return cmd.Run(ctx, cmd.Env{In: strings.NewReader(""), Out: said, Err: said, Now: time.Now, Version: "v1.2.3"}, args)
}

func transportOf(c *rest.Config) (http.RoundTripper, error) { return rest.TransportFor(c) }

// forward answers a request as a server does.
func forward(w http.ResponseWriter, r *http.Request, host string, through http.RoundTripper) {
	to, err := url.Parse(host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = through
	proxy.ServeHTTP(w, r)
}
