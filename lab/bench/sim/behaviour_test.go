package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

// real is the API server that the simulated ones are held against.
var real *rest.Config

func TestMain(m *testing.M) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		os.Exit(m.Run())
	}
	env := &envtest.Environment{}
	config, err := env.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the API server:", err)
		os.Exit(1)
	}
	config.QPS = -1
	real = config
	code := m.Run()
	if err := env.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the API server:", err)
		code = 1
	}
	os.Exit(code)
}

// simulated starts API servers that end with the test.
func simulated(t *testing.T, names ...string) *Fleet {
	t.Helper()
	f, err := Start(t.Context(), Options{Clusters: names, Seed: 1, Now: time.Now, Failed: func(err error) { t.Errorf("the simulation: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func configOf(t *testing.T, f *Fleet, name string) *rest.Config {
	t.Helper()
	data, err := f.Kubeconfig(name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	c.QPS = -1
	return c
}

// world is one API server with a namespace of the test's own.
type world struct {
	*testing.T
	config    *rest.Config
	dynamic   dynamic.Interface
	kube      *kubernetes.Clientset
	namespace string
}

func newWorld(t *testing.T, config *rest.Config) *world {
	t.Helper()
	w := &world{T: t, config: config}
	var err error
	if w.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	binary := rest.CopyConfig(config)
	binary.ContentType, binary.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	if w.kube, err = kubernetes.NewForConfig(binary); err != nil {
		t.Fatal(err)
	}
	ns, err := w.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "behaviour-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.namespace = ns.Name
	return w
}

func (w *world) of(resource string) dynamic.ResourceInterface {
	group, version := "", "v1"
	if parts := strings.Split(resource, "."); len(parts) > 1 {
		resource, group = parts[0], strings.Join(parts[1:], ".")
	}
	r := w.dynamic.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: resource})
	if resource == "customresourcedefinitions" || resource == "namespaces" {
		return r
	}
	return r.Namespace(w.namespace)
}

func parsed(text string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		panic(err) // of a test
	}
	data, err := u.MarshalJSON()
	if err == nil {
		err = u.UnmarshalJSON(data) // whole numbers as clients have them
	}
	if err != nil {
		panic(err)
	}
	return u
}

func configMap(name, data string) *unstructured.Unstructured {
	return parsed("{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + "}, data: {" + data + "}}")
}

// apply applies an object as a manager; options beside that are words: force, dry.
func (w *world) apply(resource string, u *unstructured.Unstructured, manager string, words ...string) (*unstructured.Unstructured, error) {
	o := metav1.ApplyOptions{FieldManager: manager, Force: slices.Contains(words, "force")}
	if slices.Contains(words, "dry") {
		o.DryRun = []string{metav1.DryRunAll}
	}
	var sub []string
	if slices.Contains(words, "status") {
		sub = []string{"status"}
	}
	return w.of(resource).Apply(w.Context(), u.GetName(), u, o, sub...)
}

func (w *world) must(u *unstructured.Unstructured, err error) *unstructured.Unstructured {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
	return u
}

// refused wants an error that a check knows, with words of the API server in it.
func (w *world) refused(err error, is func(error) bool, words ...string) {
	w.Helper()
	if err == nil || !is(err) {
		w.Errorf("the answer is %v", err)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			w.Errorf("the answer is %q, without %q", err, word)
		}
	}
}

// owners are who owns what, without times.
func owners(u *unstructured.Unstructured) string {
	var out []string
	for _, f := range u.GetManagedFields() {
		if f.Manager == "kube-controller-manager" {
			continue // the simulation plays it
		}
		out = append(out, fmt.Sprintf("%s %s %s %s", f.Manager, f.Operation, f.Subresource, f.FieldsV1.Raw))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// anonymousOf is an object without what no two servers have in common.
func anonymousOf(u *unstructured.Unstructured) map[string]any {
	u = u.DeepCopy()
	for _, f := range []string{"uid", "resourceVersion", "creationTimestamp", "namespace", "managedFields"} {
		unstructured.RemoveNestedField(u.Object, "metadata", f)
	}
	return u.Object
}

// behaviours are what clients see of API servers, and Keelson relies on. Each
// returns what has to be the same on both.
func behaviours() map[string]func(*world) any {
	all := map[string]func(*world) any{}
	for _, some := range []map[string]func(*world) any{applying(), writing(), reading(), watching(), defining(), completing()} {
		for name, b := range some {
			all[name] = b
		}
	}
	return all
}

// TestBehaviour: a simulated API server does what a real one does.
func TestBehaviour(t *testing.T) {
	t.Parallel()
	if real == nil && testing.Short() {
		t.Skip("needs an API server: run make test")
	}
	if real == nil {
		t.Fatal("KUBEBUILDER_ASSETS is not set: run make test, or go test -short")
	}
	played := configOf(t, simulated(t, "one"), "one")
	for name, behaviour := range behaviours() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen [2]string
			for i, c := range []struct {
				name   string
				config *rest.Config
			}{{"real", real}, {"simulated", played}} {
				t.Run(c.name, func(t *testing.T) {
					data, err := yaml.Marshal(behaviour(newWorld(t, c.config)))
					if err != nil {
						t.Fatal(err)
					}
					seen[i] = string(data)
				})
			}
			if seen[0] != seen[1] {
				t.Errorf("real:\n%s\nsimulated:\n%s", seen[0], seen[1])
			}
		})
	}
}

// TestBehaviourAlone: the same without a real one.
func TestBehaviourAlone(t *testing.T) {
	t.Parallel()
	if real != nil {
		t.Skip("TestBehaviour does more")
	}
	played := configOf(t, simulated(t, "one"), "one")
	for name, behaviour := range behaviours() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			behaviour(newWorld(t, played))
		})
	}
}

func applying() map[string]func(*world) any {
	return map[string]func(*world) any{
		"ApplyCreates": func(w *world) any {
			u := w.must(w.apply("configmaps", configMap("a", "x: v"), "one"))
			if u.GetUID() == "" || u.GetResourceVersion() == "" || u.GetCreationTimestamp() == (metav1.Time{}) {
				w.Errorf("not as stored objects are: %v", u.Object)
			}
			return []any{anonymousOf(u), owners(u)}
		},
		"ApplyAgainWritesNothing": func(w *world) any {
			first := w.must(w.apply("configmaps", configMap("a", "x: v"), "one"))
			again := w.must(w.apply("configmaps", configMap("a", "x: v"), "one"))
			return first.GetResourceVersion() == again.GetResourceVersion()
		},
		"ApplyUpdatesAndRemoves": func(w *world) any {
			first := w.must(w.apply("configmaps", configMap("a", "x: v, gone: soon"), "one"))
			then := w.must(w.apply("configmaps", configMap("a", "x: z"), "one"))
			return []any{anonymousOf(then), owners(then), first.GetUID() == then.GetUID(), first.GetResourceVersion() == then.GetResourceVersion()}
		},
		"ApplyConflictsAndForces": func(w *world) any {
			w.must(w.apply("configmaps", configMap("a", "x: v"), "one"))
			_, err := w.apply("configmaps", configMap("a", "x: mine"), "two")
			w.refused(err, apierrors.IsConflict, "conflict with \"one\": .data.x")
			forced := w.must(w.apply("configmaps", configMap("a", "x: mine"), "two", "force"))
			return []any{err.Error(), anonymousOf(forced), owners(forced)}
		},
		"TwoOwnersOfOneValue": func(w *world) any {
			w.must(w.apply("configmaps", configMap("a", "x: v, z: z"), "one"))
			both := w.must(w.apply("configmaps", configMap("a", "x: v"), "two"))
			left := w.must(w.apply("configmaps", configMap("a", "z: z"), "one"))
			return []any{owners(both), owners(left), anonymousOf(left)}
		},
		"CreateGuard": func(w *world) any { // no object has resourceVersion 1
			guarded := func(data string) *unstructured.Unstructured {
				u := configMap("a", data)
				u.SetResourceVersion("1")
				return u
			}
			made := w.must(w.apply("configmaps", guarded("x: v"), "one"))
			_, err := w.apply("configmaps", guarded("x: z"), "one", "force")
			w.refused(err, apierrors.IsConflict, "the object has been modified")
			return []any{anonymousOf(made), err.Error()}
		},
		"UpdateGuard": func(w *world) any {
			made := w.must(w.apply("configmaps", configMap("a", "x: v"), "one"))
			stale := configMap("a", "x: mine")
			stale.SetUID(made.GetUID())
			stale.SetResourceVersion(made.GetResourceVersion())
			w.must(w.apply("configmaps", stale, "one"))
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
			imagined := w.must(w.apply("configmaps", configMap("a", "x: v"), "one", "dry"))
			_, err := w.of("configmaps").Get(w.Context(), "a", metav1.GetOptions{})
			w.refused(err, apierrors.IsNotFound)
			made := w.must(w.apply("configmaps", configMap("a", "x: v"), "one"))
			other := w.must(w.apply("configmaps", configMap("a", "x: z"), "one", "dry"))
			still := w.must(w.of("configmaps").Get(w.Context(), "a", metav1.GetOptions{}))
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
		panic(err) // of a test
	}
	return data
}

func writing() map[string]func(*world) any {
	return map[string]func(*world) any{
		"CreateAndUpdateInProtobuf": func(w *world) any {
			secrets := w.kube.CoreV1().Secrets(w.namespace)
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"l": "v"}}, Type: "example.com/t", Data: map[string][]byte{"k": {0, 1, 255}}}
			made, err := secrets.Create(w.Context(), s, metav1.CreateOptions{FieldManager: "one"})
			if err != nil {
				w.Fatal(err)
			}
			_, exists := secrets.Create(w.Context(), s, metav1.CreateOptions{})
			w.refused(exists, apierrors.IsAlreadyExists)
			made.Data["k"] = []byte("new")
			changed, err := secrets.Update(w.Context(), made, metav1.UpdateOptions{FieldManager: "one"})
			if err != nil {
				w.Fatal(err)
			}
			_, stale := secrets.Update(w.Context(), made, metav1.UpdateOptions{FieldManager: "one"})
			w.refused(stale, apierrors.IsConflict, "the object has been modified")
			read, err := secrets.Get(w.Context(), "a", metav1.GetOptions{})
			if err != nil {
				w.Fatal(err)
			}
			return []any{changed.Data, read.Data, read.Type, read.Labels, exists.Error(), stale.Error(), changed.ResourceVersion == read.ResourceVersion, len(read.ManagedFields)}
		},
		"UpdateOwnsWhatItChanges": func(w *world) any {
			u := w.must(w.apply("configmaps", configMap("a", "x: v, z: z"), "one"))
			if err := unstructured.SetNestedField(u.Object, "other", "data", "x"); err != nil {
				w.Fatal(err)
			}
			u = w.must(w.of("configmaps").Update(w.Context(), u, metav1.UpdateOptions{FieldManager: "person"}))
			_, err := w.apply("configmaps", configMap("a", "x: v, z: z"), "one")
			w.refused(err, apierrors.IsConflict, `conflict with "person" using v1: .data.x`)
			return []any{owners(u), err.Error()}
		},
		"Patches": func(w *world) any {
			w.must(w.apply("configmaps", configMap("a", "x: v"), "one"))
			ctx, of := w.Context(), w.of("configmaps")
			merged := w.must(of.Patch(ctx, "a", types.MergePatchType, []byte(`{"data":{"x":null,"m":"1"}}`), metav1.PatchOptions{FieldManager: "p"}))
			jsonned := w.must(of.Patch(ctx, "a", types.JSONPatchType, []byte(`[{"op":"add","path":"/data/j","value":"2"}]`), metav1.PatchOptions{FieldManager: "p"}))
			strategic := w.must(of.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{FieldManager: "p"}))
			_, stale := of.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"resourceVersion":"`+merged.GetResourceVersion()+`"},"data":{"m":"3"}}`), metav1.PatchOptions{})
			w.refused(stale, apierrors.IsConflict, "the object has been modified")
			_, gone := of.Patch(ctx, "b", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
			w.refused(gone, apierrors.IsNotFound)
			_, test := of.Patch(ctx, "a", types.JSONPatchType, []byte(`[{"op":"test","path":"/data/j","value":"no"}]`), metav1.PatchOptions{})
			w.refused(test, func(err error) bool { return apierrors.ReasonForError(err) == metav1.StatusReasonInvalid })
			return []any{anonymousOf(merged), anonymousOf(jsonned), anonymousOf(strategic), owners(strategic), stale.Error(), gone.Error()}
		},
		"DeletePreconditions": func(w *world) any {
			u := w.must(w.apply("configmaps", configMap("a", "x: v"), "one"))
			of, ctx := w.of("configmaps"), w.Context()
			uid, version := u.GetUID(), u.GetResourceVersion()
			wrong, old := types.UID("0b6a5c9e-0000-4000-8000-000000000000"), "1"
			first := of.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
			w.refused(first, apierrors.IsConflict, "the UID in the precondition ("+string(wrong)+") does not match the UID in record ("+string(uid)+")")
			second := of.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &old}})
			w.refused(second, apierrors.IsConflict, "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record ("+version+")")
			if err := of.Delete(ctx, "a", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
				w.Error(err)
			}
			w.must(of.Get(ctx, "a", metav1.GetOptions{}))
			if err := of.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}); err != nil {
				w.Error(err)
			}
			_, gone := of.Get(ctx, "a", metav1.GetOptions{})
			w.refused(gone, apierrors.IsNotFound)
			again := of.Delete(ctx, "a", metav1.DeleteOptions{})
			w.refused(again, apierrors.IsNotFound)
			return []string{gone.Error(), again.Error()}
		},
		"DeleteInProtobuf": func(w *world) any {
			secrets := w.kube.CoreV1().Secrets(w.namespace)
			made, err := secrets.Create(w.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			if err != nil {
				w.Fatal(err)
			}
			old := "1"
			w.refused(secrets.Delete(w.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &old}}), apierrors.IsConflict)
			return secrets.Delete(w.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &made.ResourceVersion}})
		},
		"FinalizersHold": func(w *world) any {
			u := configMap("a", "x: v")
			u.SetFinalizers([]string{"example.com/hold"})
			w.must(w.apply("configmaps", u, "one"))
			of, ctx := w.of("configmaps"), w.Context()
			if err := of.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
				w.Error(err)
			}
			held := w.must(of.Get(ctx, "a", metav1.GetOptions{}))
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
			made := w.must(leases.Create(w.Context(), parsed(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: l}, spec: {holderIdentity: a, leaseDurationSeconds: 15, renewTime: "2026-01-01T00:00:00.000001Z"}}`), metav1.CreateOptions{}))
			taken := made.DeepCopy()
			if err := unstructured.SetNestedField(taken.Object, "b", "spec", "holderIdentity"); err != nil {
				w.Fatal(err)
			}
			taken = w.must(leases.Update(w.Context(), taken, metav1.UpdateOptions{}))
			_, lost := leases.Update(w.Context(), made, metav1.UpdateOptions{})
			w.refused(lost, apierrors.IsConflict)
			made.SetResourceVersion("")
			_, blind := leases.Update(w.Context(), made, metav1.UpdateOptions{})
			w.refused(blind, apierrors.IsInvalid, "must be specified for an update")
			return []any{anonymousOf(taken), lost.Error(), blind.Error()}
		},
	}
}

func reading() map[string]func(*world) any {
	return map[string]func(*world) any{
		"Pages": func(w *world) any {
			for i := range 7 {
				w.must(w.apply("configmaps", configMap(fmt.Sprintf("page-%d", i), "x: v"), "one"))
			}
			var names []string
			var rest []int64
			o := metav1.ListOptions{Limit: 3, FieldSelector: "metadata.name!=kube-root-ca.crt"}
			o.FieldSelector = ""
			version := ""
			for page := 0; ; page++ {
				list, err := w.of("configmaps").List(w.Context(), o)
				if err != nil {
					w.Fatal(err)
				}
				if version == "" {
					version = list.GetResourceVersion()
				}
				if version != list.GetResourceVersion() {
					w.Errorf("page %d is of %s, and not of %s as the first", page, list.GetResourceVersion(), version)
				}
				for i := range list.Items {
					names = append(names, list.Items[i].GetName())
				}
				if n := list.GetRemainingItemCount(); n != nil {
					rest = append(rest, *n)
				}
				if page == 0 { // what comes meanwhile is in no later page
					w.must(w.apply("configmaps", configMap("page-9", "x: v"), "one"))
				}
				if o.Continue = list.GetContinue(); o.Continue == "" {
					return []any{names, rest}
				}
			}
		},
		"Selectors": func(w *world) any {
			for name, label := range map[string]string{"a": "x", "b": "y", "c": ""} {
				u := configMap(name, "x: v")
				if label != "" {
					u.SetLabels(map[string]string{"l": label})
				}
				w.must(w.apply("configmaps", u, "one"))
			}
			var out [][]string
			for _, o := range []metav1.ListOptions{{LabelSelector: "l"}, {LabelSelector: "l=x"}, {LabelSelector: "l notin (x)"}, {FieldSelector: "metadata.name=b"}} {
				list, err := w.of("configmaps").List(w.Context(), o)
				if err != nil {
					w.Fatal(err)
				}
				var names []string
				for i := range list.Items {
					names = append(names, list.Items[i].GetName())
				}
				out = append(out, names)
			}
			_, err := w.of("configmaps").List(w.Context(), metav1.ListOptions{FieldSelector: "data.x=y"})
			w.refused(err, apierrors.IsBadRequest, "is not a known field selector")
			return out
		},
		"Negotiation": func(w *world) any {
			w.must(w.apply("configmaps", configMap("a", "x: v"), "one"))
			client := w.kube.CoreV1().RESTClient()
			var out []string
			for _, accept := range []string{
				"application/json", "application/vnd.kubernetes.protobuf,application/json", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
				"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", "text/html",
			} {
				var media string
				r := client.Get().Namespace(w.namespace).Resource("configmaps").Name("a").SetHeader("Accept", accept).Do(w.Context())
				r.ContentType(&media)
				o, err := r.Get()
				if err != nil {
					out = append(out, fmt.Sprint(apierrors.ReasonForError(err)))
					continue
				}
				out = append(out, fmt.Sprintf("%s %T", media, o))
			}
			return out
		},
		"NothingThere": func(w *world) any {
			_, kind := w.of("nonsense").Get(w.Context(), "a", metav1.GetOptions{})
			w.refused(kind, apierrors.IsNotFound)
			_, group := w.of("nonsense.example.com").List(w.Context(), metav1.ListOptions{})
			w.refused(group, apierrors.IsNotFound)
			return []any{
				apierrors.HasStatusCause(kind, metav1.CauseTypeUnexpectedServerResponse), apierrors.HasStatusCause(group, metav1.CauseTypeUnexpectedServerResponse),
				kind.Error(), group.Error(),
			}
		},
		"Discovery": func(w *world) any {
			client, err := discovery.NewDiscoveryClientForConfig(w.config)
			if err != nil {
				w.Fatal(err)
			}
			_, lists, err := client.ServerGroupsAndResources()
			if err != nil {
				w.Fatal(err)
			}
			var out []string
			for _, l := range lists {
				if leftOut(l.GroupVersion) || strings.HasSuffix(l.GroupVersion, "example.com/v1") {
					continue
				}
				for _, r := range l.APIResources {
					out = append(out, fmt.Sprint(l.GroupVersion, " ", r.Name, " ", r.Kind, " ", r.Namespaced, " ", r.Verbs))
				}
			}
			slices.Sort(out)
			version, err := client.ServerVersion()
			if err != nil {
				w.Fatal(err)
			}
			return []any{out, version.GitVersion}
		},
	}
}

// events reads some of a watch.
func (w *world) events(from watch.Interface, n int) []string {
	w.Helper()
	defer from.Stop()
	ctx, cancel := context.WithTimeoutCause(w.Context(), 20*time.Second, errors.New("no event in time"))
	defer cancel()
	var out []string
	for len(out) < n {
		select {
		case <-ctx.Done():
			w.Fatalf("%v; so far: %q", context.Cause(ctx), out)
		case e, ok := <-from.ResultChan():
			if !ok {
				w.Fatalf("the watch ended after %q", out)
			}
			u, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				out = append(out, fmt.Sprintf("%s %v", e.Type, apierrors.FromObject(e.Object)))
				continue
			}
			out = append(out, strings.TrimSpace(fmt.Sprint(e.Type, " ", u.GetKind(), " ", u.GetName(), " ", u.GetAnnotations()[metav1.InitialEventsAnnotationKey], " ", u.Object["data"])))
		}
	}
	return out
}

func watching() map[string]func(*world) any {
	return map[string]func(*world) any{
		"WatchFromVersion": func(w *world) any {
			of, ctx := w.of("configmaps"), w.Context()
			first := w.must(w.apply("configmaps", configMap("a", "x: 'first'"), "one"))
			second := w.must(w.apply("configmaps", configMap("a", "x: 'second'"), "one"))
			w.must(w.apply("configmaps", configMap("b", "x: 'other'"), "one"))
			if err := of.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
				w.Fatal(err)
			}
			_ = second
			from, err := of.Watch(ctx, metav1.ListOptions{ResourceVersion: first.GetResourceVersion()})
			if err != nil {
				w.Fatal(err)
			}
			return w.events(from, 3)
		},
		"WatchInitialEvents": func(w *world) any {
			w.must(w.apply("configmaps", configMap("a", "x: v"), "one"))
			from, err := w.of("configmaps").Watch(w.Context(), metav1.ListOptions{
				SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true, FieldSelector: "metadata.name=a",
			})
			if err != nil {
				w.Fatal(err)
			}
			return w.events(from, 2)
		},
		"WatchWithoutVersion": func(w *world) any {
			w.must(w.apply("configmaps", configMap("a", "x: v"), "one"))
			from, err := w.of("configmaps").Watch(w.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a"})
			if err != nil {
				w.Fatal(err)
			}
			return w.events(from, 1)
		},
		"WatchSelected": func(w *world) any { // what begins or ceases to match comes or goes
			labelled := func(value, data string) *unstructured.Unstructured {
				u := configMap("a", data)
				if value != "" {
					u.SetLabels(map[string]string{"l": value})
				}
				return u
			}
			list, err := w.of("configmaps").List(w.Context(), metav1.ListOptions{})
			if err != nil {
				w.Fatal(err)
			}
			from, err := w.of("configmaps").Watch(w.Context(), metav1.ListOptions{LabelSelector: "l=x", ResourceVersion: list.GetResourceVersion()})
			if err != nil {
				w.Fatal(err)
			}
			for i, value := range []string{"", "x", "x", "y", "x"} {
				w.must(w.apply("configmaps", labelled(value, fmt.Sprintf("x: 'n%d'", i)), "one"))
			}
			return w.events(from, 4)
		},
		"WatchRefused": func(w *world) any {
			_, err := w.of("configmaps").Watch(w.Context(), metav1.ListOptions{SendInitialEvents: new(true)})
			w.refused(err, apierrors.IsInvalid, "sendInitialEvents requires setting resourceVersionMatch")
			future := w.kube.CoreV1().RESTClient().Get().Namespace(w.namespace).Resource("configmaps").Param("resourceVersion", "999999999").
				Param("resourceVersionMatch", "NotOlderThan").MaxRetries(0).Do(w.Context()).Error()
			w.refused(future, apierrors.IsTimeout, "Too large resource version")
			return nil
		},
		"WatchInProtobuf": func(w *world) any {
			made, err := w.kube.CoreV1().Secrets(w.namespace).Create(w.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string][]byte{"k": {1}}}, metav1.CreateOptions{})
			if err != nil {
				w.Fatal(err)
			}
			from, err := w.kube.CoreV1().Secrets(w.namespace).Watch(w.Context(), metav1.ListOptions{
				SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
			})
			if err != nil {
				w.Fatal(err)
			}
			defer from.Stop()
			var out []string
			for e := range from.ResultChan() {
				s, ok := e.Object.(*corev1.Secret)
				if !ok {
					w.Fatalf("a %T", e.Object)
				}
				out = append(out, fmt.Sprint(e.Type, s.Name, s.Data, s.Annotations, s.Name == "" || s.ResourceVersion == made.ResourceVersion))
				if len(out) == 2 {
					break
				}
			}
			return out
		},
	}
}

// widget is a kind of the behaviours' own.
func widget(group string) *unstructured.Unstructured {
	return parsed(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.` + group + `}
spec:
  group: ` + group + `
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              size: {type: integer, default: 3}
              color: {type: string}
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, count: {type: integer}}}
          status:
            type: object
            properties: {phase: {type: string}}
`)
}

// define creates the kind and waits until it is served.
func (w *world) define() string {
	w.Helper()
	group := w.namespace + ".example.com"
	w.must(w.apply("customresourcedefinitions.apiextensions.k8s.io", widget(group), "one"))
	ctx, cancel := context.WithTimeout(w.Context(), 20*time.Second)
	defer cancel()
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		_, err := w.of("widgets."+group).List(ctx, metav1.ListOptions{})
		if err == nil {
			return group
		}
		select {
		case <-ctx.Done():
			w.Fatal(err)
		case <-tick.C:
		}
	}
}

func defining() map[string]func(*world) any {
	one := func(group, spec string) *unstructured.Unstructured {
		return parsed("{apiVersion: " + group + "/v1, kind: Widget, metadata: {name: a}, " + spec + "}")
	}
	return map[string]func(*world) any{
		"CustomResources": func(w *world) any {
			group := w.define()
			of := "widgets." + group
			made := w.must(w.apply(of, one(group, "spec: {color: red, parts: [{name: p, count: 1}]}, status: {phase: forged}"), "one"))
			second := w.must(w.apply(of, one(group, "spec: {parts: [{name: q}]}"), "two"))
			status := w.must(w.apply(of, one(group, "status: {phase: Ready}"), "three", "status"))
			spec := w.must(w.of(of).Patch(w.Context(), "a", types.MergePatchType, []byte(`{"status":{"phase":"Forged"},"spec":{"color":"blue"}}`), metav1.PatchOptions{FieldManager: "four"}))
			merged := w.must(w.of(of).Patch(w.Context(), "a", types.MergePatchType, []byte(`{"status":{"phase":"Merged"},"spec":{"color":"green"}}`), metav1.PatchOptions{FieldManager: "five"}, "status"))
			var out []any
			for _, u := range []*unstructured.Unstructured{made, second, status, spec, merged} {
				u.SetAPIVersion("v1")
				out = append(out, anonymousOf(u), strings.ReplaceAll(owners(u), group, "group"))
			}
			return out
		},
		"CustomResourceRefused": func(w *world) any {
			group := w.define()
			_, err := w.apply("widgets."+group, one(group, "spec: {size: large}"), "one")
			if err == nil {
				w.Error("a text was taken for a number")
			}
			blind := w.must(w.apply("widgets."+group, one(group, "spec: {size: 1}"), "one"))
			blind.SetResourceVersion("")
			_, must := w.of("widgets."+group).Update(w.Context(), blind, metav1.UpdateOptions{})
			w.refused(must, apierrors.IsInvalid, "must be specified for an update")
			return nil
		},
		"CustomResourcesEnd": func(w *world) any {
			group := w.define()
			w.must(w.apply("widgets."+group, one(group, "spec: {size: 1}"), "one"))
			if err := w.of("customresourcedefinitions.apiextensions.k8s.io").Delete(w.Context(), "widgets."+group, metav1.DeleteOptions{}); err != nil {
				w.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(w.Context(), 20*time.Second)
			defer cancel()
			for tick := time.NewTicker(50 * time.Millisecond); ; {
				_, err := w.of("widgets."+group).List(ctx, metav1.ListOptions{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				select {
				case <-ctx.Done():
					w.Fatal(err)
				case <-tick.C:
				}
			}
		},
	}
}

// completing are objects that the API server completes, and what it makes of a
// change.
func completing() map[string]func(*world) any {
	out := map[string]func(*world) any{}
	for name, c := range map[string]struct{ resource, object, changed string }{
		"Deployment": {"deployments.apps", `
{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, labels: {a: b}}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}},
 spec: {containers: [{name: c, image: "i:v1", ports: [{containerPort: 80}], resources: {requests: {cpu: "0.5"}}, readinessProbe: {httpGet: {path: /, port: 80}}}]}}}}`, "i:v1=i:v2"},
		"DaemonSet": {"daemonsets.apps", `
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}},
 spec: {hostNetwork: true, containers: [{name: c, image: "i:v1", ports: [{containerPort: 80}]}], volumes: [{name: v, configMap: {name: x}}, {name: h, hostPath: {path: /x}}]}}}}`, "i:v1=i:v2"},
		"StatefulSet": {"statefulsets.apps", `
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a}, spec: {serviceName: s, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}},
 spec: {containers: [{name: c, image: "i:v1"}]}}, volumeClaimTemplates: [{metadata: {name: d}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}}`, "i:v1=i:v2"},
		"CronJob": {"cronjobs.batch", `
{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {schedule: "1 2 * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}`, "1 2=3 4"},
		"Headless":       {"services", `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: None, selector: {a: b}, ports: [{name: p, port: 80}]}}`, "80=81"},
		"ServiceAccount": {"serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {name: a}, automountServiceAccountToken: false}`, "false=true"},
		"Secret":         {"secrets", `{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {x: eWVz}}`, "eWVz=bm8h"},
		"Ingress": {"ingresses.networking.k8s.io", `
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a}, spec: {rules: [{host: h.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {name: p}}}}]}}]}}`, "h.example=i.example"},
		"NetworkPolicy": {"networkpolicies.networking.k8s.io", `
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}, spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}}`, "80=81"},
		"PodDisruptionBudget": {"poddisruptionbudgets.policy", `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: a}, spec: {maxUnavailable: 1, selector: {matchLabels: {a: b}}}}`, "maxUnavailable: 1=maxUnavailable: 2"},
		"Role":                {"roles.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: a}, rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]}`, "get=list"},
		"RoleBinding": {"rolebindings.rbac.authorization.k8s.io", `
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: a}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}, subjects: [{kind: ServiceAccount, name: s, namespace: other}]}`, "name: s=name: t"},
		"Claim": {"persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`, "name: a=name: a, labels: {l: v}"},
	} {
		out["Complete"+name] = func(w *world) any {
			made := w.must(w.apply(c.resource, parsed(c.object), "one"))
			from, to, _ := strings.Cut(c.changed, "=")
			changed := w.must(w.apply(c.resource, parsed(strings.ReplaceAll(c.object, from, to)), "one"))
			for _, u := range []*unstructured.Unstructured{made, changed} {
				delete(u.Object, "status") // the simulation plays controllers
			}
			return []any{anonymousOf(made), anonymousOf(changed), owners(made), owners(changed)}
		}
	}
	return out
}
