package main

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

const (
	componentLabel = "keelson.io/component"
	recordLabel    = "keelson.io/record"
	systemNS       = "keelson-system"
	maskKey        = "mask-key" // the Secret with the key of the hashes in records
)

// managedKinds returns the kinds of the objects in components of scenarios.
func managedKinds() []schema.GroupVersionResource {
	var out []schema.GroupVersionResource
	for _, name := range []string{
		"v1/configmaps", "v1/secrets", "v1/serviceaccounts", "v1/services", "apps/v1/deployments", "batch/v1/jobs", "rbac.authorization.k8s.io/v1/roles",
		"rbac.authorization.k8s.io/v1/rolebindings", "apiextensions.k8s.io/v1/customresourcedefinitions",
	} {
		out = append(out, harness.Resource(name))
	}
	return out
}

// state is the state of one component in a cluster: its objects by key, as normalized
// JSON. Two clusters, or two components of one input, have the same JSON.
type state map[string]string

// states returns the states of the components whose names have a prefix. It waits until
// none of their objects is being deleted.
func (w *world) states(ctx context.Context, prefix string) (out map[string]state) {
	until(ctx, hungAfter, func(ctx context.Context) { out = statesIn(ctx, w.dynamic(), prefix) })
	return out
}

// statesIn returns the states in any cluster. It fails if an object is being deleted.
func statesIn(ctx context.Context, d dynamic.Interface, prefix string) map[string]state {
	out := map[string]state{}
	kinds := managedKinds()
	for i := 0; i < len(kinds); i++ {
		list := must.Get(d.Resource(kinds[i]).List(ctx, metav1.ListOptions{LabelSelector: componentLabel}))
		for _, u := range list.Items {
			name := u.GetLabels()[componentLabel]
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			if u.GetDeletionTimestamp() != nil {
				must.Failf("%s %s/%s is being deleted, and its finalizers are %v", u.GetKind(), u.GetNamespace(), u.GetName(), u.GetFinalizers())
			}
			if out[name] == nil {
				out[name] = state{}
			}
			key, content := common(name, &u)
			out[name][key] = content
			kinds = append(kinds, defined(&u)...)
		}
	}
	return out
}

// defined returns the resource that a CRD defines, or nil for an object that isn't a CRD.
func defined(u *unstructured.Unstructured) []schema.GroupVersionResource {
	if u.GetKind() != "CustomResourceDefinition" {
		return nil
	}
	group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(u.Object, "spec", "names", "plural")
	return []schema.GroupVersionResource{{Group: group, Version: "v1", Resource: plural}}
}

// common removes from an object the fields that differ between any two objects. It also
// removes the epoch, which the fence of an interrupted apply leaves on purpose.
func common(component string, u *unstructured.Unstructured) (key, content string) {
	u = u.DeepCopy()
	// The generation of a Deployment also counts changes of annotations.
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	delete(u.Object, "status")
	notes := u.GetAnnotations()
	if delete(notes, "keelson.io/epoch"); len(notes) == 0 {
		notes = nil
	}
	u.SetAnnotations(notes)
	var managers []metav1.ManagedFieldsEntry
	for _, m := range u.GetManagedFields() {
		if m.Manager != "keelson-epoch" && m.Subresource == "" {
			m.Time = nil
			managers = append(managers, m)
		}
	}
	u.SetManagedFields(managers)
	data := must.Get(json.Marshal(u.Object))
	rename := func(s string) string { return strings.ReplaceAll(s, component, "COMPONENT") }
	return rename(keyOf(u.GetAPIVersion(), u.GetKind(), u.GetNamespace(), u.GetName())), rename(string(data))
}

func keyOf(apiVersion, kind, namespace, name string) string {
	return schema.FromAPIVersionAndKind(apiVersion, kind).GroupKind().String() + " " + namespace + "/" + name
}

// differences returns a line for each difference between a state and the wanted state.
func (s state) differences(want state) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(want)) {
		switch have, ok := s[key]; {
		case !ok:
			out = append(out, key+" is missing")
		case have != want[key]:
			out = append(out, fmt.Sprintf("%s differs: %s, and should be %s", key, around(have, want[key]), around(want[key], have)))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if _, ok := want[key]; !ok {
			out = append(out, key+" is there and should not be")
		}
	}
	return out
}

// around returns the part of a text around the first difference from another text.
func around(text, other string) string {
	at := 0
	for at < min(len(text), len(other)) && text[at] == other[at] {
		at++
	}
	const few = 80
	return "…" + text[max(0, at-few):min(len(text), at+few)] + "…"
}

// recordedObjects is the content of a record, read without Keelson's code.
type recordedObjects struct {
	objects []string // keys as in a state
	// lasting are hooks that a replaced process may still create. They stay two
	// minutes longer, so that no hook runs twice.
	lasting []string
	open    []string // objects with an open intent
	raw     []byte
}

// records reads the records of all components.
func (w *world) records(ctx context.Context) map[string]recordedObjects {
	secrets := w.dynamic().Resource(harness.Resource("v1/secrets")).Namespace(systemNS)
	list := must.Get(secrets.List(ctx, metav1.ListOptions{LabelSelector: recordLabel}))
	out := map[string]recordedObjects{}
	for _, u := range list.Items {
		name := u.GetLabels()[recordLabel]
		encoded, _, _ := unstructured.NestedString(u.Object, "data", "record")
		out[name] = readRecord(name, encoded)
	}
	return out
}

func readRecord(component, encoded string) recordedObjects {
	packed := base64.NewDecoder(base64.StdEncoding, strings.NewReader(encoded))
	plain := must.Get(io.ReadAll(must.Get(gzip.NewReader(packed))))
	var record struct {
		Objects []struct {
			APIVersion, Kind, Namespace, Name string
			Intent                            string
		}
		Hooks []struct {
			APIVersion, Kind, Namespace, Name string
			Contested                         bool
		}
	}
	must.Do(json.Unmarshal(plain, &record))
	out := recordedObjects{raw: plain}
	for _, o := range record.Objects {
		key := strings.ReplaceAll(keyOf(o.APIVersion, o.Kind, o.Namespace, o.Name), component, "COMPONENT")
		out.objects = append(out.objects, key)
		if o.Intent != "" {
			out.open = append(out.open, key+" ("+o.Intent+")")
		}
	}
	for _, h := range record.Hooks {
		if h.Contested {
			out.lasting = append(out.lasting, strings.ReplaceAll(keyOf(h.APIVersion, h.Kind, h.Namespace, h.Name), component, "COMPONENT"))
		}
	}
	slices.Sort(out.objects)
	return out
}

// whole returns a line for each contradiction between a record and the live objects.
func (r recordedObjects) whole(live state) []string {
	var out []string
	for _, key := range r.objects {
		if _, ok := live[key]; !ok {
			out = append(out, "the record has "+key+", and the cluster has not")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(live)) {
		if !slices.Contains(r.objects, key) {
			out = append(out, "the record forgot "+key)
		}
	}
	for _, key := range r.open {
		out = append(out, "the record still intends "+key)
	}
	return out
}
