package applier_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// precious is a kind whose objects no hook may delete without an approval. ANNOTATIONS
// stands for annotations of the object.
type precious struct {
	resource schema.GroupVersionResource
	cluster  bool // cluster-scoped
	manifest string
}

func preciousKinds() map[string]precious {
	return map[string]precious{
		"PersistentVolumeClaim": {schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}, false, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NS-it, namespace: NS, annotations: {ANNOTATIONS}}
spec: {accessModes: [ReadWriteOnce], storageClassName: x, resources: {requests: {storage: 1Gi}}}
`},
		"PersistentVolume": {schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}, true, `
apiVersion: v1
kind: PersistentVolume
metadata: {name: NS-it, annotations: {ANNOTATIONS}}
spec: {accessModes: [ReadWriteOnce], storageClassName: x, capacity: {storage: 1Gi}, hostPath: {path: /data}}
`},
		"Namespace": {schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, true, `
apiVersion: v1
kind: Namespace
metadata: {name: NS-it, annotations: {ANNOTATIONS}}
`},
		"StorageClass": {schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}, true, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: NS-it, annotations: {ANNOTATIONS}}
provisioner: example.com/disk
`},
	}
}

func (k precious) with(annotations string) string {
	return strings.ReplaceAll(k.manifest, "ANNOTATIONS", annotations)
}

// standing returns the UID of the object, and whether it is being deleted.
func (k precious) standing(w *world) (uid types.UID, deleting bool) {
	w.t.Helper()
	objects := w.dynamic.Resource(k.resource)
	var u *unstructured.Unstructured
	var err error
	if k.cluster {
		u, err = objects.Get(w.t.Context(), w.ns+"-it", metav1.GetOptions{})
	} else {
		u, err = objects.Namespace(w.ns).Get(w.t.Context(), w.ns+"-it", metav1.GetOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return u.GetUID(), u.GetDeletionTimestamp() != nil
}

// A hook can need the name of an object, or leave one. What rules hold stays, whatever the
// hook's annotations say, and the plan or the error says so.
func TestHookDeletesNothingHeld(t *testing.T) {
	both := hookOn("pre-install,pre-upgrade")
	cases := map[string]struct {
		why           string
		first, second func(*world, precious) applier.Desired
	}{
		"BecomesHook": {
			why: "An object of the version before is a hook now: the default policy deletes what has the name.",
			first: func(w *world, k precious) applier.Desired {
				return w.want("v1", configMap("own", "one"), k.with("a: b"))
			},
			second: func(w *world, k precious) applier.Desired {
				return w.withHooks(w.want("v2", configMap("own", "two")), k.with(both))
			},
		},
		"BecomesPostHook": {
			why: "The same, when all else has been applied.",
			first: func(w *world, k precious) applier.Desired {
				return w.want("v1", configMap("own", "one"), k.with("a: b"))
			},
			second: func(w *world, k precious) applier.Desired {
				return w.withHooks(w.want("v2", configMap("own", "two")), k.with(hookOn("post-upgrade")))
			},
		},
		"HookAgain": {
			why: "The hook of the version before has left it, and data came since.",
			first: func(w *world, k precious) applier.Desired {
				return w.withHooks(w.want("v1", configMap("own", "one")), k.with(both))
			},
			second: func(w *world, k precious) applier.Desired {
				return w.withHooks(w.want("v2", configMap("own", "two")), k.with(both))
			},
		},
		"PreDelete": {
			why: "Nothing is wanted any more, so nothing of the target protects it.",
			first: func(w *world, k precious) applier.Desired {
				return w.want("v1", configMap("own", "one"), k.with("a: b"))
			},
			second: func(w *world, k precious) applier.Desired {
				want := w.withHooks(w.want("v1", configMap("own", "one")), k.with(hookOn("pre-delete")))
				want.Absent = true
				return want
			},
		},
	}
	for kind, k := range preciousKinds() {
		for name, c := range cases {
			t.Run(kind+name, func(t *testing.T) {
				w := newWorld(t)
				if err := w.try(t.Context(), c.first(w, k), applier.ApplyOptions{}); err != nil {
					t.Fatal(err)
				}
				uid, _ := k.standing(w)
				for _, restart := range []bool{false, true} { // a deletion takes two passes
					if restart {
						w.reconnect()
					}
					second := c.second(w, k)
					p, err := w.cluster.Plan(t.Context(), second)
					if err != nil {
						t.Fatal(err)
					}
					_, err = w.cluster.Apply(t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0), RetryHooks: true, Timeout: 5 * time.Second})
					shown := show(p)
					if err != nil {
						shown += err.Error()
					}
					if !strings.Contains(shown, "rule delete-"+kind) {
						t.Errorf("%s Neither the plan nor the error names the rule:\n%s", c.why, shown)
					}
					if now, deleting := k.standing(w); now != uid || deleting {
						t.Fatalf("%s It was deleted: it was %s, is %s, and is being deleted: %v\n%s", c.why, uid, now, deleting, shown)
					}
				}
			})
		}
	}
}

// What a hook has made is not deleted by the hook's own policy either, where a rule holds it.
// It stays, the outcome says so, and no version waits for it.
func TestHookLeavesHeld(t *testing.T) {
	for kind, k := range preciousKinds() {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			hook := k.with(hookOn("pre-install", "helm.sh/hook-delete-policy: hook-succeeded"))
			want := w.withHooks(w.want("v1", configMap("own", "one")), hook)
			out, err := w.cluster.Apply(t.Context(), w.plan(want), applier.ApplyOptions{Now: time.Unix(1, 0)})
			if err != nil {
				t.Fatal(err)
			}
			if len(out.Kept) != 1 || !strings.Contains(out.Kept[0].Message, "rule delete-"+kind) {
				t.Errorf("the outcome says of what stays: %v", out.Kept)
			}
			w.settled(want)
			if err := w.try(t.Context(), w.want("v2", configMap("own", "two")), applier.ApplyOptions{}); err != nil {
				t.Error(err)
			}
			if _, deleting := k.standing(w); deleting {
				t.Error("it is being deleted")
			}
		})
	}
}

// The object is judged as it is when the hook needs its name: what was protected, or became
// precious, after the plan was made is not deleted.
func TestHookDeletionIsJudgedLate(t *testing.T) {
	hook := `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: NS, annotations: {` + hookOn("pre-install,pre-upgrade") + `}}, data: {key: hook}}`
	firsts := map[string]func(*world) applier.Desired{
		"OfThePlan": func(w *world) applier.Desired { return w.want("v1", configMap("own", "one"), configMap("x", "cheap")) },
		"OfAHook":   func(w *world) applier.Desired { return w.withHooks(w.want("v1", configMap("own", "one")), hook) },
	}
	patches := map[string]struct {
		patch string
		plan  bool // it counts for objects of the plan alone
	}{
		"Denied":  {`{"data":{"key":"precious"}}`, false},
		"Pruning": {`{"metadata":{"annotations":{"keelson.io/prune":"disabled"}}}`, true},
		"Kept":    {`{"metadata":{"annotations":{"helm.sh/resource-policy":"keep"}}}`, true},
		"Moved":   {`{"metadata":{"labels":{"keelson.io/component":"another"}}}`, false},
	}
	for of, first := range firsts {
		for name, c := range patches {
			if c.plan && of != "OfThePlan" {
				continue
			}
			t.Run(of+name, func(t *testing.T) {
				w := newWorld(t)
				if err := w.try(t.Context(), first(w), applier.ApplyOptions{}); err != nil {
					t.Fatal(err)
				}
				want := w.withHooks(w.want("v2", configMap("own", "two")), hook)
				var err error
				if want.Rules, err = differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{{
					Name: "mine", Match: v1alpha1.ObjectMatch{Kinds: []string{"ConfigMap"}}, On: []v1alpha1.Event{v1alpha1.OnDeleteObject},
					Effect: v1alpha1.EffectDeny, When: `old.data.key == "precious"`, Because: "precious",
				}}}); err != nil {
					t.Fatal(err)
				}
				p := w.plan(want)
				if _, err := w.resource(configMaps).Patch(t.Context(), "x", types.MergePatchType, []byte(c.patch), metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
					t.Fatal(err)
				}
				_, err = w.cluster.Apply(t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0), Timeout: time.Second})
				if _, stopped := errors.AsType[*applier.HookError](err); !stopped {
					t.Errorf("the error is %v, want one that says why the hook can't be created", err)
				}
				if !w.there("x") {
					t.Error("it was deleted")
				}
			})
		}
	}
}

// What nothing protects is replaced, however little is known of other components: a hook
// that made the object itself needs no word of theirs. Annotations that keep an object keep
// no hook from running again, as with Helm.
func TestHookReplacesItsOwn(t *testing.T) {
	for name, annotation := range map[string]string{"Others": "a: b", "Keep": "helm.sh/resource-policy: keep", "Prune": "keelson.io/prune: disabled"} {
		for policy, left := range map[string]bool{"before-hook-creation": true, "hook-succeeded": false} {
			t.Run(name+policy, func(t *testing.T) {
				w := newWorld(t)
				hook := `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: NS, annotations: {` +
					hookOn("pre-install,pre-upgrade", "helm.sh/hook-delete-policy: "+policy, annotation) + `}}, data: {key: hook}}`
				for _, version := range []string{"v1", "v2", "v3"} {
					want := w.withHooks(w.want(version, configMap("own", version)), hook)
					want.Others = func(context.Context) (*applier.Claims, error) {
						c := applier.NewClaims()
						c.AddUnknown("broken", "template: parse error")
						return c, nil
					}
					done := make(chan error, 1)
					go func() { done <- w.try(t.Context(), want, applier.ApplyOptions{}) }()
					w.collectUntil(done)
					w.settled(want)
				}
				if there := w.there("x"); there != left {
					t.Errorf("the object of the hook is there: %v, want %v", there, left)
				}
			})
		}
	}
}

// collectUntil does the garbage collector's part until an apply has ended.
func (w *world) collectUntil(done <-chan error) {
	w.t.Helper()
	for {
		select {
		case err := <-done:
			if err != nil {
				w.t.Fatal(err)
			}
			w.collect()
			return
		case <-time.After(20 * time.Millisecond):
			w.collect()
		}
	}
}

// An approval of the deletion that the plan shows lets the hook replace the object. A rule
// that denies it can't be approved.
func TestHookDeletionApproved(t *testing.T) {
	k := preciousKinds()["PersistentVolumeClaim"]
	deny := v1alpha1.DangerRule{
		Name: "mine", Match: v1alpha1.ObjectMatch{Kinds: []string{"PersistentVolumeClaim"}},
		On: []v1alpha1.Event{v1alpha1.OnDeleteObject}, Effect: v1alpha1.EffectDeny, Because: "claims stay",
	}
	for name, rules := range map[string][]v1alpha1.DangerRule{"Approved": nil, "Denied": {deny}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.apply(w.want("v1", configMap("own", "one"), k.with("a: b")))
			uid, _ := k.standing(w)
			want := w.withHooks(w.want("v2", configMap("own", "two")), k.with(hookOn("pre-upgrade")))
			var err error
			if want.Rules, err = differ.NewRules(differ.Scopes{Component: rules}); err != nil {
				t.Fatal(err)
			}
			id := differ.ID{Kind: "PersistentVolumeClaim", Namespace: w.ns, Name: w.ns + "-it"}
			want.Approved = map[string][]string{}
			for _, c := range w.plan(want).Plan.Changes {
				if c.ID == id {
					want.Approved[id.String()] = []string{c.Hash}
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- w.try(ctx, want, applier.ApplyOptions{}) }()
			if name == "Denied" {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if now, deleting := k.standing(w); now != uid || deleting || w.plan(want).Settled() {
					t.Errorf("it is %s, being deleted %v; it was %s", now, deleting, uid)
				}
				return
			}
			w.eventually("the claim is being deleted", func() bool { _, deleting := k.standing(w); return deleting })
			_, err = w.resource(k.resource).Patch(t.Context(), id.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if now, deleting := k.standing(w); now == uid || deleting {
				t.Errorf("it is %s, being deleted %v; it was %s", now, deleting, uid)
			}
		})
	}
}
