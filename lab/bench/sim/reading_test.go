package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"

	"github.com/keelson-io/keelson/lab/harness/must"
)

func reading() map[string]func(*world) any {
	return map[string]func(*world) any{
		"Pages": func(w *world) any {
			for i := range 7 {
				must.Get(w.apply("configmaps", configMap(fmt.Sprintf("page-%d", i), "x: v"), "one"))
			}
			var names []string
			var rest []int64
			o := metav1.ListOptions{Limit: 3}
			version := ""
			for page := 0; ; page++ {
				list := must.Get(w.of("configmaps").List(w.Context(), o))
				if version == "" {
					version = list.GetResourceVersion()
				}
				if version != list.GetResourceVersion() {
					w.Errorf("page %d is of %s, and not of %s as the first", page, list.GetResourceVersion(), version)
				}
				names = append(names, namesOf(list)...)
				if n := list.GetRemainingItemCount(); n != nil {
					rest = append(rest, *n)
				}
				if page == 0 { // objects created meanwhile are in no later page
					must.Get(w.apply("configmaps", configMap("page-9", "x: v"), "one"))
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
				must.Get(w.apply("configmaps", u, "one"))
			}
			var out [][]string
			for _, o := range []metav1.ListOptions{{LabelSelector: "l"}, {LabelSelector: "l=x"}, {LabelSelector: "l notin (x)"}, {FieldSelector: "metadata.name=b"}} {
				out = append(out, namesOf(must.Get(w.of("configmaps").List(w.Context(), o))))
			}
			_, err := w.of("configmaps").List(w.Context(), metav1.ListOptions{FieldSelector: "data.x=y"})
			w.refused(err, apierrors.IsBadRequest, "is not a known field selector")
			return out
		},
		"Negotiation": func(w *world) any {
			must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
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
			client := must.Get(discovery.NewDiscoveryClientForConfig(w.config))
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
			version := must.Get(client.ServerVersion())
			return []any{out, version.GitVersion}
		},
	}
}

func namesOf(list *unstructured.UnstructuredList) []string {
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].GetName())
	}
	return names
}

// events reads n events of a watch.
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
			first := must.Get(w.apply("configmaps", configMap("a", "x: 'first'"), "one"))
			must.Get(w.apply("configmaps", configMap("a", "x: 'second'"), "one"))
			must.Get(w.apply("configmaps", configMap("b", "x: 'other'"), "one"))
			must.Do(of.Delete(ctx, "a", metav1.DeleteOptions{}))
			from := must.Get(of.Watch(ctx, metav1.ListOptions{ResourceVersion: first.GetResourceVersion()}))
			return w.events(from, 3)
		},
		"WatchInitialEvents": func(w *world) any {
			must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
			from := must.Get(w.of("configmaps").Watch(w.Context(), metav1.ListOptions{
				SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true, FieldSelector: "metadata.name=a",
			}))
			return w.events(from, 2)
		},
		"WatchWithoutVersion": func(w *world) any {
			must.Get(w.apply("configmaps", configMap("a", "x: v"), "one"))
			from := must.Get(w.of("configmaps").Watch(w.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a"}))
			return w.events(from, 1)
		},
		"WatchSelected": func(w *world) any { // an object that starts or stops to match is added or deleted
			labelled := func(value, data string) *unstructured.Unstructured {
				u := configMap("a", data)
				if value != "" {
					u.SetLabels(map[string]string{"l": value})
				}
				return u
			}
			list := must.Get(w.of("configmaps").List(w.Context(), metav1.ListOptions{}))
			from := must.Get(w.of("configmaps").Watch(w.Context(), metav1.ListOptions{LabelSelector: "l=x", ResourceVersion: list.GetResourceVersion()}))
			for i, value := range []string{"", "x", "x", "y", "x"} {
				must.Get(w.apply("configmaps", labelled(value, fmt.Sprintf("x: 'n%d'", i)), "one"))
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
			made := must.Get(w.kube.CoreV1().Secrets(w.namespace).Create(w.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string][]byte{"k": {1}}}, metav1.CreateOptions{}))
			from := must.Get(w.kube.CoreV1().Secrets(w.namespace).Watch(w.Context(), metav1.ListOptions{
				SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
			}))
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
