package applier_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

var podsResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// kubelet does a node's part: it brings pods to an end, and takes away what is
// deleted. Only the API server runs here.
type kubelet struct {
	w *world
	// status is what a pod is to become; nil: it goes on running.
	status func(name string) map[string]any

	mu      sync.Mutex
	started []string          // pods in the order of their creation
	created map[string]uint64 // resourceVersions
	ended   map[string]uint64
}

func succeeded(string) map[string]any { return map[string]any{"phase": "Succeeded"} }

func startKubelet(w *world, status func(string) map[string]any) *kubelet {
	w.t.Helper()
	n := &kubelet{w: w, status: status, created: map[string]uint64{}, ended: map[string]uint64{}}
	if err := w.namespace(); err != nil {
		w.t.Fatal(err)
	}
	pods := w.resource(podsResource)
	list, err := pods.List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	watched := apiservertest.Watch(w.t, list.GetResourceVersion(), func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return pods.Watch(ctx, o)
	})
	for i := range list.Items {
		if err := n.handle(watch.Added, &list.Items[i]); err != nil {
			w.t.Fatal(err)
		}
	}
	var done sync.WaitGroup
	w.t.Cleanup(done.Wait)
	w.t.Cleanup(watched.Stop)
	done.Go(func() {
		for e := range watched.ResultChan() {
			if u, ok := e.Object.(*unstructured.Unstructured); ok {
				if err := n.handle(e.Type, u); err != nil {
					w.t.Error(err)
				}
			}
		}
	})
	return n
}

// inOrder reports whether a pod was created when another had come to its end.
func (n *kubelet) inOrder(ended, created string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ended[ended] < n.created[created]
}

func (n *kubelet) handle(event watch.EventType, u *unstructured.Unstructured) error {
	ctx, pods := context.WithoutCancel(n.w.t.Context()), n.w.resource(podsResource)
	if u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) > 0 {
		_, err := pods.Patch(ctx, u.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) { // seen twice
			return nil
		}
		return err
	}
	if event != watch.Added {
		return nil
	}
	n.mu.Lock()
	n.started = append(n.started, u.GetName())
	n.created[u.GetName()] = versionOf(u)
	n.mu.Unlock()
	status := n.status(u.GetName())
	if status == nil {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	answer, err := pods.Patch(ctx, u.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubelet"}, "status")
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended[u.GetName()] = versionOf(answer)
	return nil
}

func versionOf(u *unstructured.Unstructured) uint64 {
	v, _ := strconv.ParseUint(u.GetResourceVersion(), 10, 64)
	return v
}

func (n *kubelet) runs() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.started)
}

// pod is a hook that comes to an end.
func pod(name, annotations string) string {
	return `
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `, namespace: NS, annotations: {` + annotations + `}}
spec: {restartPolicy: Never, containers: [{name: main, image: migrate}]}
`
}

func hookOn(events string, more ...string) string {
	return strings.Join(append([]string{"helm.sh/hook: '" + events + "'"}, more...), ", ")
}

// withHooks adds hooks to a target.
func (w *world) withHooks(want applier.Desired, manifests ...string) applier.Desired {
	w.t.Helper()
	hooks := w.want(want.Version, manifests...)
	target := *want.Target
	target.Hash += hooks.Target.Hash
	for _, o := range hooks.Target.Objects {
		target.Hooks = append(target.Hooks, &renderer.Object{Content: o.Content})
	}
	want.Target = &target
	return want
}

// try applies until nothing changed meanwhile, and returns the error.
func (w *world) try(ctx context.Context, want applier.Desired, o applier.ApplyOptions) error {
	w.t.Helper()
	if o.Now.IsZero() {
		o.Now = time.Unix(1, 0)
	}
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	for {
		p, err := w.cluster.Plan(ctx, want)
		if err != nil {
			return err
		}
		if _, err = w.cluster.Apply(ctx, p, o); !errors.Is(err, applier.ErrStale) {
			return err
		}
	}
}

func TestHooks(t *testing.T) {
	w := newWorld(t)
	n := startKubelet(w, succeeded)
	var mu sync.Mutex
	var steps []string
	connect := func() {
		c, err := applier.New(applier.Options{Name: "test", Config: server, Progress: func(s applier.Step) {
			mu.Lock()
			defer mu.Unlock()
			steps = append(steps, strings.TrimSpace(s.Hook+" "+s.ID.Name))
		}})
		if err != nil {
			t.Fatal(err)
		}
		w.cluster = c
	}
	connect()
	expect := func(why string, want ...string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if d := cmp.Diff(want, steps); d != "" {
			t.Errorf("%s (-want +got):\n%s", why, d)
		}
		steps = nil
	}
	hooks := []string{
		configMap("scripts", "a"), // made a hook below
		pod("b-second", hookOn("pre-install,pre-upgrade", "helm.sh/hook-weight: '5'")),
		pod("a-second", hookOn("pre-install", "helm.sh/hook-weight: '5'")),
		pod("first", hookOn("pre-install", "helm.sh/hook-weight: '-5'")),
		pod("after", hookOn("post-install, post-upgrade")),
		pod("tested", hookOn("test")),
		pod("removal", hookOn("pre-delete,post-delete")),
		pod("back", hookOn("pre-rollback")),
	}
	hooks[0] = strings.Replace(hooks[0], "namespace: NS", "namespace: NS, annotations: {"+hookOn("pre-install", "helm.sh/hook-weight: '5'")+"}", 1)
	v1 := w.withHooks(w.want("v1", configMap("own", "one")), hooks...)
	if err := w.try(t.Context(), v1, applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("by weight, kind and name, then the objects, then what comes after",
		"pre-install first", "pre-install scripts", "pre-install a-second", "pre-install b-second", "own", "post-install after")
	for _, order := range [][2]string{{"first", "a-second"}, {"a-second", "b-second"}, {"b-second", "after"}} {
		if !n.inOrder(order[0], order[1]) {
			t.Errorf("%s was created before %s had come to its end", order[1], order[0])
		}
	}
	rec, err := w.cluster.Record(t.Context(), w.component)
	if err != nil || len(rec.Hooks) != 0 || len(rec.Objects) != 1 || rec.TargetHash != v1.Target.Hash {
		t.Errorf("the record has %d hooks, %d objects, target %s, error %v", len(rec.Hooks), len(rec.Objects), rec.TargetHash, err)
	}

	connect()
	w.settled(v1)
	connect()
	if err := w.resource(configMaps).Delete(t.Context(), "own", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.try(t.Context(), v1, applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("what drifted is brought back without hooks", "own")

	v2 := w.withHooks(w.want("v2", configMap("own", "two")), hooks...)
	if err := w.try(t.Context(), v2, applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("an upgrade has hooks of its own, and replaces what earlier runs left", "pre-upgrade b-second", "own", "post-upgrade after")

	v3 := w.withHooks(w.want("v3", configMap("own", "two")), append(hooks, pod("new", hookOn("post-upgrade", "helm.sh/hook-weight: '9'")))...)
	if err := w.try(t.Context(), v3, applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("a target whose hooks alone changed is another target", "pre-upgrade b-second", "post-upgrade after", "post-upgrade new")
}

func TestHookFails(t *testing.T) {
	w := newWorld(t)
	fails := true
	var mu sync.Mutex
	n := startKubelet(w, func(string) map[string]any {
		mu.Lock()
		defer mu.Unlock()
		if !fails {
			return succeeded("")
		}
		return map[string]any{"phase": "Failed", "containerStatuses": []any{map[string]any{
			"name": "main", "image": "migrate", "imageID": "", "ready": false, "restartCount": 0,
			"state": map[string]any{"terminated": map[string]any{"exitCode": 3, "reason": "Error", "message": "no\nsuch table"}},
		}}}
	})
	want := w.withHooks(w.want("v1", configMap("own", "one")), pod("migrate", hookOn("pre-install")))
	at := time.Unix(1, 0)
	steps := []struct {
		why     string
		options applier.ApplyOptions
		runs    int
		message string
	}{
		{"It says which, and why.", applier.ApplyOptions{Now: at}, 1, "container main ended with exit code 3 (Error: no such table)"},
		{"It rests, and still says why.", applier.ApplyOptions{Now: at.Add(20 * time.Second)}, 1, "attempt 1; it runs again in 40s at the earliest: the pod failed"},
		{"A person need not wait.", applier.ApplyOptions{Now: at.Add(30 * time.Second), RetryHooks: true}, 2, "exit code 3"},
		{"It rests longer each time.", applier.ApplyOptions{Now: at.Add(2 * time.Minute)}, 2, "attempt 2; it runs again in 30s"},
		{"Then it runs again.", applier.ApplyOptions{Now: at.Add(3 * time.Minute)}, 3, "exit code 3"},
	}
	for _, s := range steps {
		w.reconnect() // what it knows is in the cluster
		err := w.try(t.Context(), want, s.options)
		var failed *applier.HookError
		if !errors.As(err, &failed) || failed.ID.Name != "migrate" || failed.Event != "pre-install" || !strings.Contains(err.Error(), s.message) {
			t.Errorf("%s The error is %v", s.why, err)
		}
		if runs := n.runs(); len(runs) != s.runs {
			t.Errorf("%s It ran %d times, not %d", s.why, len(runs), s.runs)
		}
		if _, err := w.resource(configMaps).Get(t.Context(), "own", metav1.GetOptions{}); err == nil {
			t.Errorf("%s The component's objects were created behind a hook that failed", s.why)
		}
		if left, err := w.cluster.Tidy(t.Context(), w.component, func(string) bool { return false }); err != nil || left != 1 {
			t.Errorf("%s A client whose commit has not this component left %d of its hooks (%v), want 1: the record alone tells what ran", s.why, left, err)
		}
	}
	mu.Lock()
	fails = false
	mu.Unlock()
	if err := w.try(t.Context(), want, applier.ApplyOptions{Now: at.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	w.settled(want)
}

// A hook that takes too long is not killed: the next apply waits on.
func TestHookTakesLong(t *testing.T) {
	w := newWorld(t)
	n := startKubelet(w, func(string) map[string]any { return nil })
	want := w.withHooks(w.want("v1", configMap("own", "one")), pod("slow", hookOn("pre-install")))
	err := w.try(t.Context(), want, applier.ApplyOptions{Timeout: time.Second})
	var failed *applier.HookError
	if !errors.As(err, &failed) || !failed.Running || !strings.Contains(err.Error(), "it runs for longer than 1s") {
		t.Fatalf("the error is %v", err)
	}
	w.reconnect()
	done := make(chan error)
	go func() { done <- w.try(t.Context(), want, applier.ApplyOptions{}) }()
	if _, err := w.resource(podsResource).Patch(t.Context(), "slow", types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"slow"}, n.runs()); d != "" {
		t.Errorf("runs (-want +got):\n%s", d)
	}
}

// A Job that is gone as soon as it is done has come to its end all the same: its
// last state was seen. One that was deleted before that has not.
func TestJobHooks(t *testing.T) {
	w := newWorld(t)
	if err := w.namespace(); err != nil {
		t.Fatal(err)
	}
	want := w.withHooks(w.want("v1", configMap("own", "one")), `
apiVersion: batch/v1
kind: Job
metadata: {name: migrate, namespace: NS, annotations: {`+hookOn("pre-install")+`}}
spec: {ttlSecondsAfterFinished: 0, template: {spec: {restartPolicy: Never, containers: [{name: main, image: migrate}]}}}
`)
	// ends brings the next Job to its end, or not, and deletes it.
	ends := func(status string) <-chan error {
		watched, err := w.resource(jobs).Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			defer watched.Stop()
			e := <-watched.ResultChan()
			name := e.Object.(*unstructured.Unstructured).GetName() //nolint:forcetypeassert // a panic fails the test
			if status != "" {
				_, err := w.resource(jobs).Patch(t.Context(), name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
				if err != nil {
					ended <- err
					return
				}
			}
			background := metav1.DeletePropagationBackground
			ended <- w.resource(jobs).Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &background})
		}()
		return ended
	}
	cases := []struct {
		why, status, message string
	}{
		{"The Job was deleted before it ended.", "", "it was deleted while it ran"},
		{
			"The Job failed, then it was deleted.",
			`{"status": {"startTime": "2026-01-01T00:00:00Z", "failed": 1, "conditions": [
				{"type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often", "lastTransitionTime": "2026-01-01T00:00:01Z"},
				{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often", "lastTransitionTime": "2026-01-01T00:00:01Z"}]}}`,
			"BackoffLimitExceeded: too often",
		},
		{
			"The Job succeeded, then it was deleted.",
			`{"status": {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:01Z", "succeeded": 1, "conditions": [
				{"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
				{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}]}}`,
			"",
		},
	}
	for _, c := range cases {
		ended := ends(c.status)
		err := w.try(t.Context(), want, applier.ApplyOptions{RetryHooks: true})
		select {
		case derr := <-ended:
			if derr != nil {
				t.Fatal(derr)
			}
		case <-time.After(patience):
			t.Fatalf("%s No Job was created. The error is %v", c.why, err)
		}
		if (err == nil) != (c.message == "") || err != nil && !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s The error is %v", c.why, err)
		}
	}
	w.settled(want)
}

func TestHookDeletePolicies(t *testing.T) {
	cases := map[string]struct {
		why     string
		policy  string
		fails   bool
		wantPod bool
		again   string // what a second run of another target says; empty: it runs
	}{
		"Default":         {"What ran can be looked at until it runs again.", "", false, true, ""},
		"Succeeded":       {"It goes when all hooks of the event are done.", "hook-succeeded", false, false, ""},
		"SucceededFailed": {"What failed is what one wants to look at; it was not said that it may go.", "hook-succeeded", true, true, "does not let it be replaced"},
		"Failed":          {"It goes because it failed.", "hook-failed", true, false, ""},
		"FailedSucceeded": {"It stays, and nothing says that it may go.", "hook-failed", false, true, "does not let it be replaced"},
		"Both":            {"It goes either way.", "before-hook-creation, hook-succeeded", false, false, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			status := succeeded("")
			if c.fails {
				status = map[string]any{"phase": "Failed"}
			}
			startKubelet(w, func(string) map[string]any { return status })
			more := []string{}
			if c.policy != "" {
				more = append(more, "helm.sh/hook-delete-policy: '"+c.policy+"'")
			}
			hook := pod("hook", hookOn("pre-install,pre-upgrade", more...))
			err := w.try(t.Context(), w.withHooks(w.want("v1", configMap("own", "one")), hook), applier.ApplyOptions{})
			if (err != nil) != c.fails {
				t.Fatal(err)
			}
			u, err := w.resource(podsResource).Get(t.Context(), "hook", metav1.GetOptions{})
			if there := err == nil && u.GetDeletionTimestamp() == nil; there != c.wantPod {
				t.Errorf("%s The pod is there: %v (%v)", c.why, there, err)
			}
			err = w.try(t.Context(), w.withHooks(w.want("v2", configMap("own", "two")), hook), applier.ApplyOptions{})
			switch {
			case c.again != "" && (err == nil || !strings.Contains(err.Error(), c.again)):
				t.Errorf("%s The second run: %v", c.why, err)
			case c.again == "" && (err != nil) != c.fails:
				t.Errorf("%s The second run: %v", c.why, err)
			}
		})
	}
}

// While something of the target is held its hooks don't run, and nothing runs
// ahead of them. What is only to be deleted may be held.
func TestHooksAndHolds(t *testing.T) {
	w := newWorld(t)
	n := startKubelet(w, succeeded)
	hold := func(rule v1alpha1.DangerRule, want applier.Desired) applier.Desired {
		t.Helper()
		rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{rule}})
		if err != nil {
			t.Fatal(err)
		}
		want.Rules = rules
		return want
	}
	content := v1alpha1.DangerRule{Name: "mine", Match: v1alpha1.ObjectMatch{Name: "own"}, Path: ".data", Effect: v1alpha1.EffectHold, Because: "mine"}
	deletion := v1alpha1.DangerRule{
		Name: "mine", Match: v1alpha1.ObjectMatch{Name: "left"}, On: []v1alpha1.Event{v1alpha1.OnDeleteObject}, Effect: v1alpha1.EffectHold, Because: "mine",
	}
	value := func(name string) string {
		t.Helper()
		text, _, _ := unstructured.NestedString(w.get(configMaps, name).Object, "data", "key")
		return text
	}
	target := func(version string) applier.Desired {
		return w.withHooks(w.want(version, configMap("own", version), configMap("other", version)), pod("before", hookOn("pre-upgrade")), pod("after", hookOn("post-upgrade")))
	}
	w.apply(w.want("v1", configMap("own", "v1"), configMap("other", "v1"), configMap("left", "v1")))
	if err := w.try(t.Context(), hold(content, target("v2")), applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if runs := n.runs(); len(runs) > 0 || value("own") != "v1" || value("other") != "v1" {
		t.Errorf("an object is held: hooks %v ran, own is %s, other is %s", runs, value("own"), value("other"))
	}
	for _, why := range []string{"a deletion is held", "it is held still, and nothing runs again"} {
		w.reconnect()
		if err := w.try(t.Context(), hold(deletion, target("v2")), applier.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"before", "after"}, n.runs()); d != "" || value("own") != "v2" || value("other") != "v2" || value("left") != "v1" {
			t.Errorf("%s: runs (-want +got):\n%s", why, d)
		}
	}
}

// An object that becomes a hook with a new version is replaced by it, and not
// deleted as one that left the chart.
func TestObjectBecomesHook(t *testing.T) {
	w := newWorld(t)
	n := startKubelet(w, succeeded)
	w.apply(w.want("v1", configMap("own", "v1"), pod("migrate", "a: b")))
	v2 := w.withHooks(w.want("v2", configMap("own", "v2")), pod("migrate", hookOn("pre-upgrade")))
	if err := w.try(t.Context(), v2, applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	w.settled(v2)
	if d := cmp.Diff([]string{"migrate", "migrate"}, n.runs()); d != "" {
		t.Errorf("runs (-want +got):\n%s", d)
	}
	if u := w.get(podsResource, "migrate"); u.GetDeletionTimestamp() != nil || u.GetAnnotations()[v1alpha1.AnnotationHookRun] == "" {
		t.Error("the hook was deleted")
	}
	twice := w.withHooks(w.want("v3", configMap("own", "v3")), strings.Replace(configMap("own", "v3"), "namespace: NS", "namespace: NS, annotations: {"+hookOn("pre-upgrade")+"}", 1))
	if err := w.try(t.Context(), twice, applier.ApplyOptions{}); err == nil || !strings.Contains(err.Error(), "the chart has beside the hook") {
		t.Errorf("an object that is a hook, too: the error is %v", err)
	}
}

// An object that has the hook's name, but isn't of this component, is left alone. A hook that a
// danger rule denies is not created.
func TestHookRefused(t *testing.T) {
	cases := map[string]struct {
		why     string
		there   string // an object of the hook's name
		rule    *v1alpha1.DangerRule
		adopt   bool
		wantErr string
	}{
		"Foreign":      {"A pod of another client has the hook's name.", pod("hook", "a: b"), nil, true, "it is no hook of this component"},
		"Helms":        {"Helm created the pod, and the component does not adopt.", pod("hook", hookOn("pre-install")), nil, false, "it is no hook of this component"},
		"HelmsAdopted": {"Helm created the pod, and the component adopts from Helm.", pod("hook", hookOn("pre-install")), nil, true, ""},
		"Denied": {
			"A rule about creations counts for hooks, too.", "",
			&v1alpha1.DangerRule{Name: "mine", Match: v1alpha1.ObjectMatch{Kinds: []string{"Pod"}}, Path: ".spec.restartPolicy", On: []v1alpha1.Event{v1alpha1.OnAdd}, Effect: v1alpha1.EffectDeny, Because: "no pods"},
			false, "no pods (rule mine)",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			n := startKubelet(w, succeeded)
			var uid types.UID
			if c.there != "" {
				u, err := w.resource(podsResource).Create(t.Context(), &unstructured.Unstructured{Object: w.object(c.there)}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				uid = u.GetUID()
			}
			want := w.withHooks(w.want("v1", configMap("own", "one")), pod("hook", hookOn("pre-install")))
			want.Adopt = c.adopt
			if c.rule != nil {
				rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{*c.rule}})
				if err != nil {
					t.Fatal(err)
				}
				want.Rules = rules
			}
			err := w.try(t.Context(), want, applier.ApplyOptions{})
			if c.wantErr == "" {
				if err != nil {
					t.Errorf("%s %v", c.why, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%s The error is %v", c.why, err)
			}
			if uid == "" {
				if runs := n.runs(); len(runs) > 0 {
					t.Errorf("%s It ran: %v", c.why, runs)
				}
			} else if got := w.get(podsResource, "hook").GetUID(); got != uid {
				t.Errorf("%s It was replaced", c.why)
			}
		})
	}
}

// errKilled ends every request of a process that was killed.
var errKilled = errors.New("the process was killed")

// mortal is a transport that dies with its nth write, before it is sent or before
// its answer comes.
type mortal struct {
	http.RoundTripper
	answered bool // the last write is carried out

	mu   sync.Mutex
	left int
}

func (m *mortal) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	write := r.Method != http.MethodGet
	if write {
		m.left--
	}
	left := m.left
	m.mu.Unlock()
	switch {
	case left < 0 && (!write || !m.answered || left < -1):
		return nil, errKilled
	case left < 0:
		answer, err := m.RoundTripper.RoundTrip(r)
		if err == nil {
			_ = answer.Body.Close()
		}
		return nil, errKilled
	}
	return m.RoundTripper.RoundTrip(r)
}

// Wherever an apply with hooks is cut off, the next process ends it as if nothing
// had happened: each hook runs once, in order, and none is forgotten.
func TestHooksSurvive(t *testing.T) {
	const writes = 12 // of the whole apply
	for _, answered := range []bool{false, true} {
		for n := range writes + 1 {
			t.Run(fmt.Sprintf("%d-%v", n, answered), func(t *testing.T) {
				w := newWorld(t)
				nodes := startKubelet(w, succeeded)
				want := w.withHooks(
					w.want("v1", configMap("own", "one")),
					pod("one", hookOn("pre-install", "helm.sh/hook-weight: '1'", "helm.sh/hook-delete-policy: 'before-hook-creation,hook-succeeded'")),
					pod("two", hookOn("pre-install", "helm.sh/hook-weight: '2'")),
					pod("three", hookOn("post-install")),
				)
				config := rest.CopyConfig(server)
				config.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return &mortal{RoundTripper: next, answered: answered, left: n}
				})
				c, err := applier.New(applier.Options{Name: "test", Config: config, Shared: shared})
				if err != nil {
					t.Fatal(err)
				}
				w.cluster = c
				first := w.try(t.Context(), want, applier.ApplyOptions{})
				if (first == nil) != (n == writes) {
					t.Fatalf("killed after %d of %d writes: %v", n, writes, first)
				}
				w.reconnect()
				if err := w.try(t.Context(), want, applier.ApplyOptions{Now: time.Unix(60, 0)}); err != nil {
					t.Fatalf("after %v: %v", first, err)
				}
				if d := cmp.Diff([]string{"one", "two", "three"}, nodes.runs()); d != "" {
					t.Errorf("killed by %v: runs (-want +got):\n%s", first, d)
				}
				w.get(configMaps, "own")
				// One that the killed process may still have sent is deleted when it can't
				// come any more.
				if err := w.try(t.Context(), want, applier.ApplyOptions{Now: time.Unix(600, 0)}); err != nil {
					t.Fatal(err)
				}
				u, err := w.resource(podsResource).Get(t.Context(), "one", metav1.GetOptions{})
				if err == nil && u.GetDeletionTimestamp() == nil || err != nil && !apierrors.IsNotFound(err) {
					t.Errorf("the hook that succeeded was not deleted (%v)", err)
				}
				w.settled(want)
			})
		}
	}
}
