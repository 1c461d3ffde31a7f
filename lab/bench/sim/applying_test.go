package sim

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/lab/harness/must"
)

func applying() map[string]func(*world) any {
	return map[string]func(*world) any{
		"ApplyCreates": func(w *world) any {
			u := must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
			if u.GetUID() == "" || u.GetResourceVersion() == "" || u.GetCreationTimestamp() == (metav1.Time{}) {
				w.Errorf("not as stored objects are: %v", u.Object)
			}
			return []any{anonymousOf(u), owners(u)}
		},
		"ApplyAgainWritesNothing": func(w *world) any {
			first := must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
			again := must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
			return first.GetResourceVersion() == again.GetResourceVersion()
		},
		"ApplyUpdatesAndRemoves": func(w *world) any {
			first := must.Get(w.apply("configmaps", configMap("a", "x: v, gone: soon"), "one"))
			then := must.Get(w.apply("configmaps", configMap("a", "x: z"), "one"))
			return []any{anonymousOf(then), owners(then), first.GetUID() == then.GetUID(), first.GetResourceVersion() == then.GetResourceVersion()}
		},
		"ApplyConflictsAndForces": func(w *world) any {
			must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
			_, err := w.apply("configmaps", configMap("a", "x: mine"), "two")
			w.refused(err, apierrors.IsConflict, "conflict with \"one\": .data.x")
			forced := must.Get(w.apply("configmaps", configMap("a", "x: mine"), "two", "force"))
			return []any{err.Error(), anonymousOf(forced), owners(forced)}
		},
		"TwoOwnersOfOneValue": func(w *world) any {
			must.Get(w.apply("configmaps", configMap("a", "x: v, z: z"), "one"))
			both := must.Get(w.apply("configmaps", configMap("a", "x: v"), "two"))
			left := must.Get(w.apply("configmaps", configMap("a", "z: z"), "one"))
			return []any{owners(both), owners(left), anonymousOf(left)}
		},
		"CreateGuard": func(w *world) any { // no object has resourceVersion 1
			guarded := func(data string) *unstructured.Unstructured {
				u := configMap("a", data)
				u.SetResourceVersion("1")
				return u
			}
			made := must.Get(w.apply("configmaps", guarded("x: v"), "one"))
			_, err := w.apply("configmaps", guarded("x: z"), "one", "force")
			w.refused(err, apierrors.IsConflict, "the object has been modified")
			return []any{anonymousOf(made), err.Error()}
		},
		"UpdateGuard": func(w *world) any {
			made := must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
			stale := configMap("a", "x: mine")
			stale.SetUID(made.GetUID())
			stale.SetResourceVersion(made.GetResourceVersion())
			must.Get(w.apply("configmaps", stale, "one"))
			_, err := w.apply("configmaps", stale.DeepCopy(), "two", "force")
			w.refused(err, apierrors.IsConflict, "the object has been modified")
			other := configMap("a", "x: mine")
			other.SetUID("0b6a5c9e-0000-4000-8000-000000000000")
			_, second := w.apply("configmaps", other, "one", "force")
			w.refused(second, apierrors.IsInvalid, "metadata.uid", "field is immutable")
			_, put := w.of("configmaps").Update(w.Context(), other, metav1.UpdateOptions{})
			w.refused(put, apierrors.IsConflict, "Precondition failed: UID in precondition: 0b6a5c9e-0000-4000-8000-000000000000")
			other.SetName("b")
			_, third := w.apply("configmaps", other, "one", "force")
			w.refused(third, apierrors.IsConflict, "uid mismatch")
			return []any{err.Error(), third.Error()}
		},
		"DryRun": func(w *world) any {
			imagined := must.Get(w.apply("configmaps", configMap("a", "x: v"), "one", "dry"))
			_, err := w.of("configmaps").Get(w.Context(), "a", metav1.GetOptions{})
			w.refused(err, apierrors.IsNotFound)
			made := must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
			other := must.Get(w.apply("configmaps", configMap("a", "x: z"), "one", "dry"))
			still := must.Get(w.of("configmaps").Get(w.Context(), "a", metav1.GetOptions{}))
			return []any{
				anonymousOf(imagined), anonymousOf(other), anonymousOf(still), err.Error(),
				made.GetResourceVersion() == still.GetResourceVersion(), made.GetResourceVersion() == other.GetResourceVersion(),
			}
		},
		"ApplyRefused": func(w *world) any {
			_, unknown := w.apply("deployments.apps", parsed(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {nonsense: 1}}`), "one")
			w.refused(unknown, func(err error) bool { return apierrors.ReasonForError(err) == "" }, "field not declared in schema")
			elsewhere := w.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("nowhere")
			_, missing := elsewhere.Apply(w.Context(), "a", configMap("a", "x: v"), metav1.ApplyOptions{FieldManager: "one"})
			w.refused(missing, apierrors.IsNotFound, `namespaces "nowhere" not found`)
			named := configMap("b", "x: v")
			_, name := w.of("configmaps").Patch(w.Context(), "a", types.ApplyPatchType, raw(named), metav1.PatchOptions{FieldManager: "one"})
			w.refused(name, apierrors.IsBadRequest, "does not match the name on the URL")
			_, manager := w.of("configmaps").Patch(w.Context(), "a", types.ApplyPatchType, raw(configMap("a", "x: v")), metav1.PatchOptions{})
			w.refused(manager, apierrors.IsInvalid, "is required for apply patch")
			_, secret := w.apply("secrets", parsed(`{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {x: "no base64"}}`), "one")
			w.refused(secret, func(err error) bool { return apierrors.ReasonForError(err) == "" }, "illegal base64 data at input byte 2")
			return []string{secret.Error(), unknown.Error(), missing.Error(), name.Error(), manager.Error()}
		},
	}
}

func raw(u *unstructured.Unstructured) []byte {
	data, err := u.MarshalJSON()
	if err != nil {
		panic(err) // only in tests
	}
	return data
}
