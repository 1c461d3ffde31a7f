package applier_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// A component that renders what Keelson remembers of another one writes none of it, as an
// object or as a hook, and deletes none of it: neither for a hook that needs the name, nor
// when it leaves the git of one that got it before there was this rule.
func TestNoComponentHasKeelsonsOwn(t *testing.T) {
	victim := newWorld(t)
	victim.apply(victim.want("v1", configMap("own", "one")))
	if own := v1alpha1.IsOwn("", "Secret", v1alpha1.Namespace, "record-"+victim.component); !own {
		t.Error("the record is not known as Keelson's own")
	}
	for why, build := range map[string]func(w *world, manifest func(annotations string) string) applier.Desired{
		"an object": func(w *world, manifest func(string) string) applier.Desired {
			return w.want("v1", configMap("other", "one"), manifest("a: b"))
		},
		"a hook": func(w *world, manifest func(string) string) applier.Desired {
			return w.withHooks(w.want("v1", configMap("other", "one")), manifest(hookOn("pre-install,pre-upgrade")))
		},
	} {
		t.Run(why, func(t *testing.T) {
			w := victim.as(victim.component + "-thief")
			w.t = t
			name := "record-" + victim.component
			before, err := w.dynamic.Resource(secrets).Namespace(v1alpha1.Namespace).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := build(w, func(annotations string) string {
				return "apiVersion: v1\nkind: Secret\nmetadata: {name: " + name + ", namespace: keelson-system, annotations: {" + annotations + "}}\nstringData: {record: forged}\n"
			})
			want.Adopt = true
			for range 2 { // a deletion takes two passes
				_ = w.try(t.Context(), want, applier.ApplyOptions{}) // it may say no by a plan or by an error
			}
			after, err := w.dynamic.Resource(secrets).Namespace(v1alpha1.Namespace).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before.Object, after.Object); diff != "" {
				t.Errorf("the record of another component changed: %s", diff)
			}
		})
	}
	t.Run("left from before the rule", func(t *testing.T) {
		w := victim.as(victim.component + "-earlier")
		w.t = t
		had := w.want("v1", configMap("earlier", "one"), "apiVersion: v1\nkind: Secret\nmetadata: {name: record-NS-planted, namespace: keelson-system}\n")
		had.Rules = differ.Rules{}
		if err := w.try(t.Context(), had, applier.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		without := w.want("v2", configMap("earlier", "one"))
		for range 2 {
			_ = w.try(t.Context(), without, applier.ApplyOptions{})
			w.reconnect()
		}
		if _, err := w.dynamic.Resource(secrets).Namespace(v1alpha1.Namespace).Get(t.Context(), "record-"+w.ns+"-planted", metav1.GetOptions{}); err != nil {
			t.Errorf("it was pruned: %v", err)
		}
		p := w.plan(without)
		for _, change := range p.Plan.Changes {
			if change.ID.Kind == "Secret" && change.State != differ.StateDenied {
				t.Errorf("its deletion is %s", change.State)
			}
		}
	})
}
