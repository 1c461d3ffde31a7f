package applier_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/applier"
)

// An apply of another target that is not complete leaves objects of neither target. The record
// says so until an apply is complete: a cluster that is to keep its last delivery must not be
// taken back to it by a freeze.
func TestUnfinished(t *testing.T) {
	other := strings.NewReplacer("web:v1", "web:v2", "{matchLabels: {app: web}}", "{matchLabels: {app: other}}").Replace(deployment)
	unfinished := func(w *world, want bool, when string) {
		w.t.Helper()
		for _, again := range []bool{false, true} { // from memory, and as the next process reads it
			if again {
				w.reconnect()
			}
			got, err := w.cluster.Unfinished(w.t.Context(), w.component)
			if err != nil || got != want {
				w.t.Errorf("%s: unfinished is %t, want %t; after a restart %t; error: %v", when, got, want, again, err)
			}
		}
	}

	t.Run("Held", func(t *testing.T) {
		w := newWorld(t)
		first := w.want("v1", deployment, configMap("a", "x"))
		w.apply(first)
		unfinished(w, false, "after a first delivery")
		w.scale(5, "intruder")
		w.apply(first)
		unfinished(w, false, "after a correction of drift")
		w.apply(w.want("v2", other, configMap("a", "x")))
		unfinished(w, false, "after a change of which nothing was applied")
		if err := w.resource(configMaps).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.apply(w.want("v2", other, configMap("a", "x")))
		if !w.there("a") {
			t.Fatal("what another client deleted is not restored")
		}
		unfinished(w, false, "after a correction of drift while a change is held")
		w.apply(w.want("v3", other, configMap("a", "z")))
		unfinished(w, true, "after a change of which a part is held")
		w.apply(first)
		unfinished(w, false, "after git took the change back")
	})
	t.Run("Failed", func(t *testing.T) {
		w := newWorld(t)
		w.apply(w.want("v1", configMap("a", "x")))
		bad := strings.Replace(configMap("b", "z"), "key:", "not/valid:", 1)
		want := w.want("v2", configMap("a", "z"), configMap("c", "z"), bad)
		if _, err := w.cluster.Apply(t.Context(), w.plan(want), applier.ApplyOptions{}); err == nil {
			t.Fatal("the API server takes a key with a slash")
		}
		unfinished(w, true, "after an apply that failed in the middle")
		done := w.want("v3", configMap("a", "z"), configMap("c", "z"))
		w.apply(done)
		unfinished(w, false, "after a complete apply")
		w.settled(done)
	})
	t.Run("Refused", func(t *testing.T) {
		w := newWorld(t)
		w.apply(w.want("v1", configMap("a", "x")))
		bad := strings.Replace(configMap("b", "z"), "key:", "not/valid:", 1)
		if _, err := w.cluster.Apply(t.Context(), w.plan(w.want("v2", configMap("a", "x"), bad)), applier.ApplyOptions{}); err == nil {
			t.Fatal("the API server takes a key with a slash")
		}
		unfinished(w, false, "after an apply of which every write was refused")
	})
	t.Run("SameObjects", func(t *testing.T) {
		w := newWorld(t)
		w.apply(w.want("v1", deployment, configMap("a", "x")))
		w.apply(w.want("v2", other, configMap("a", "z")))
		unfinished(w, true, "after a change of which a part is held")
		want := w.want("v3", deployment, configMap("a", "z"))
		w.apply(want)
		unfinished(w, false, "after a target that the objects were at already")
		w.settled(want)
	})
}
