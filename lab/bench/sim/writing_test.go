package sim

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/lab/harness/must"
)

func writing() map[string]func(*world) any {
	return map[string]func(*world) any{
		"CreateAndUpdateInProtobuf": func(w *world) any {
			secrets := w.kube.CoreV1().Secrets(w.namespace)
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"l": "v"}}, Type: "example.com/t", Data: map[string][]byte{"k": {0, 1, 255}}}
			made := must.Get(secrets.Create(w.Context(), s, metav1.CreateOptions{FieldManager: "one"}))
			_, exists := secrets.Create(w.Context(), s, metav1.CreateOptions{})
			w.refused(exists, apierrors.IsAlreadyExists)
			made.Data["k"] = []byte("new")
			changed := must.Get(secrets.Update(w.Context(), made, metav1.UpdateOptions{FieldManager: "one"}))
			_, stale := secrets.Update(w.Context(), made, metav1.UpdateOptions{FieldManager: "one"})
			w.refused(stale, apierrors.IsConflict, "the object has been modified")
			read := must.Get(secrets.Get(w.Context(), "a", metav1.GetOptions{}))
			return []any{changed.Data, read.Data, read.Type, read.Labels, exists.Error(), stale.Error(), changed.ResourceVersion == read.ResourceVersion, len(read.ManagedFields)}
		},
		"UpdateOwnsWhatItChanges": func(w *world) any {
			u := must.Get(w.apply("configmaps", configMap("a", "x: v, z: z"), "one"))
			must.Do(unstructured.SetNestedField(u.Object, "other", "data", "x"))
			u = must.Get(w.of("configmaps").Update(w.Context(), u, metav1.UpdateOptions{FieldManager: "person"}))
			_, err := w.apply("configmaps", configMap("a", "x: v, z: z"), "one")
			w.refused(err, apierrors.IsConflict, `conflict with "person" using v1: .data.x`)
			return []any{owners(u), err.Error()}
		},
		"Patches": func(w *world) any {
			must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
			ctx, of := w.Context(), w.of("configmaps")
			merged := must.Get(of.Patch(ctx, "a", types.MergePatchType, []byte(`{"data":{"x":null,"m":"1"}}`), metav1.PatchOptions{FieldManager: "p"}))
			jsonned := must.Get(of.Patch(ctx, "a", types.JSONPatchType, []byte(`[{"op":"add","path":"/data/j","value":"2"}]`), metav1.PatchOptions{FieldManager: "p"}))
			strategic := must.Get(of.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{FieldManager: "p"}))
			_, stale := of.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"resourceVersion":"`+merged.GetResourceVersion()+`"},"data":{"m":"3"}}`), metav1.PatchOptions{})
			w.refused(stale, apierrors.IsConflict, "the object has been modified")
			_, gone := of.Patch(ctx, "b", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
			w.refused(gone, apierrors.IsNotFound)
			_, test := of.Patch(ctx, "a", types.JSONPatchType, []byte(`[{"op":"test","path":"/data/j","value":"no"}]`), metav1.PatchOptions{})
			w.refused(test, func(err error) bool { return apierrors.ReasonForError(err) == metav1.StatusReasonInvalid })
			return []any{anonymousOf(merged), anonymousOf(jsonned), anonymousOf(strategic), owners(strategic), stale.Error(), gone.Error()}
		},
		"DeletePreconditions": func(w *world) any {
			u := must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
			of, ctx := w.of("configmaps"), w.Context()
			uid, version := u.GetUID(), u.GetResourceVersion()
			wrong, old := types.UID("0b6a5c9e-0000-4000-8000-000000000000"), "1"
			first := of.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
			w.refused(first, apierrors.IsConflict, "the UID in the precondition ("+string(wrong)+") does not match the UID in record ("+string(uid)+")")
			second := of.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &old}})
			w.refused(second, apierrors.IsConflict, "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record ("+version+")")
			must.Do(of.Delete(ctx, "a", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
			must.Get(of.Get(ctx, "a", metav1.GetOptions{}))
			must.Do(of.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}))
			_, gone := of.Get(ctx, "a", metav1.GetOptions{})
			w.refused(gone, apierrors.IsNotFound)
			again := of.Delete(ctx, "a", metav1.DeleteOptions{})
			w.refused(again, apierrors.IsNotFound)
			return []string{gone.Error(), again.Error()}
		},
		"DeleteInProtobuf": func(w *world) any {
			secrets := w.kube.CoreV1().Secrets(w.namespace)
			made := must.Get(secrets.Create(w.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}))
			old := "1"
			w.refused(secrets.Delete(w.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &old}}), apierrors.IsConflict)
			return secrets.Delete(w.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &made.ResourceVersion}})
		},
		"FinalizersHold": func(w *world) any {
			u := configMap("a", "x: v")
			u.SetFinalizers([]string{"example.com/hold"})
			must.Get(w.apply("configmaps", u, "one"))
			of, ctx := w.of("configmaps"), w.Context()
			must.Do(of.Delete(ctx, "a", metav1.DeleteOptions{}))
			held := must.Get(of.Get(ctx, "a", metav1.GetOptions{}))
			if held.GetDeletionTimestamp() == nil {
				w.Error("it isn't being deleted")
			}
			if _, err := of.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
				w.Error(err)
			}
			_, gone := of.Get(ctx, "a", metav1.GetOptions{})
			w.refused(gone, apierrors.IsNotFound)
			return held.GetFinalizers()
		},
		"Lease": func(w *world) any {
			leases := w.of("leases.coordination.k8s.io")
			made := must.Get(leases.Create(w.Context(), parsed(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: l}, spec: {holderIdentity: a, leaseDurationSeconds: 15, renewTime: "2026-01-01T00:00:00.000001Z"}}`), metav1.CreateOptions{}))
			taken := made.DeepCopy()
			must.Do(unstructured.SetNestedField(taken.Object, "b", "spec", "holderIdentity"))
			taken = must.Get(leases.Update(w.Context(), taken, metav1.UpdateOptions{}))
			_, lost := leases.Update(w.Context(), made, metav1.UpdateOptions{})
			w.refused(lost, apierrors.IsConflict)
			made.SetResourceVersion("")
			_, blind := leases.Update(w.Context(), made, metav1.UpdateOptions{})
			w.refused(blind, apierrors.IsInvalid, "must be specified for an update")
			return []any{anonymousOf(taken), lost.Error(), blind.Error()}
		},
	}
}
