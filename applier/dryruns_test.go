package applier_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// The dry run of a change is left out where the API server took one of the same kind, and
// only there.
func TestFamiliar(t *testing.T) {
	w := newWorld(t)
	counter := w.counted(func(o *applier.Options) { o.SkipDryRuns = true })
	second := func(value string) string {
		return strings.Replace(configMap("b", value), "key:", "other:", 1)
	}
	steps := []struct {
		why     string
		objects []string
		dryRuns int
	}{
		{"What is created is not tried.", []string{configMap("a", "one"), configMap("b", "one"), service}, 0},
		{"A kind of change that is new.", []string{configMap("a", "two"), configMap("b", "one"), service}, 1},
		{"The same field of the same object.", []string{configMap("a", "three"), configMap("b", "one"), service}, 0},
		{"The same field of another one.", []string{configMap("a", "three"), configMap("b", "two"), service}, 0},
		{"Of two objects, one that is refused may hold up the other.", []string{configMap("a", "four"), configMap("b", "three"), service}, 2},
		{"Another field, and the first one goes.", []string{configMap("a", "four"), second("two"), service}, 1},
		{"The same field of another resource.", []string{configMap("a", "four"), second("two"), strings.Replace(service, "targetPort: 80", "targetPort: 81", 1)}, 1},
		{"It is another item of the list, which is added and not changed.", []string{
			configMap("a", "four"), second("two"), strings.Replace(service, "targetPort: 80}", "targetPort: 81, name: a}, {port: 81, name: b}", 1),
		}, 1},
	}
	for i, s := range steps {
		w.apply(w.want("v"+string(rune('1'+i)), s.objects...))
		if _, dryRuns := counter.take(); dryRuns != s.dryRuns {
			t.Errorf("%s: %d dry runs, want %d", s.why, dryRuns, s.dryRuns)
		}
	}
}

// What is taken of one object may be refused of another. Nothing is written then, the next
// plan asks, and holds it: however often others may change the same field.
func TestFamiliarRefused(t *testing.T) {
	w := newWorld(t)
	counter := w.counted(func(o *applier.Options) { o.SkipDryRuns = true })
	port := func(name, target string) string {
		return strings.NewReplacer("name: web", "name: "+name, "targetPort: 80", "targetPort: "+target).Replace(service)
	}
	w.apply(w.want("v1", port("a", "80"), port("b", "80")))
	w.apply(w.want("v2", port("a", "81"), port("b", "80")))
	counter.take()
	refused := w.want("v3", port("a", "81"), port("b", "99999"))
	p := w.plan(refused)
	if _, dryRuns := counter.take(); dryRuns != 0 || change(t, p, "Service") == nil {
		t.Fatalf("%d dry runs of what is familiar:\n%s", dryRuns, show(p))
	}
	_, err := w.cluster.Apply(t.Context(), p, applier.ApplyOptions{Now: time.Unix(1, 0)})
	if !errors.Is(err, applier.ErrStale) || !strings.Contains(err.Error(), "99999") {
		t.Fatalf("want a reason to plan again, with the refusal: %v", err)
	}
	for i := range 3 {
		other := []string{"82", "83", "84"}[i]
		next := w.want("v"+other, port("a", other), port("b", "99999"))
		p = w.apply(next)
		for _, c := range p.Plan.Changes {
			if c.ID.Name == "b" && (c.State != differ.StateHeld || c.Rule != "refused") {
				t.Errorf("want it held, for its port:\n%s", show(p))
			}
		}
	}
	sent := counter.to("/services/") // how often the session says that it lives is a matter of time
	if _, dryRuns := counter.take(); dryRuns > 6 || sent > 4 {
		t.Errorf("%d writes of services, %d dry runs", sent, dryRuns)
	}
}

// What was refused is asked for again, though the object is another version by now and another
// component had the same change taken.
func TestFamiliarIsTaughtAgain(t *testing.T) {
	w := newWorld(t)
	counter := w.counted(func(o *applier.Options) { o.SkipDryRuns = true })
	port := func(name, target string) string {
		return strings.NewReplacer("name: web", "name: "+name, "targetPort: 80", "targetPort: "+target).Replace(service)
	}
	b := w.as("b-" + w.component)
	w.apply(w.want("v1", port("a", "80")))
	b.apply(b.want("v1", port("b", "80")))
	w.apply(w.want("v2", port("a", "81")))
	refused := b.want("v2", port("b", "99999"))
	b.apply(refused) // it is sent, and then tried
	counter.take()
	for i := range 3 {
		w.apply(w.want(fmt.Sprint("x", i), port("a", fmt.Sprint(90+i))))
		if _, err := w.resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Patch(t.Context(), "b", types.MergePatchType,
			[]byte(fmt.Sprintf(`{"metadata":{"annotations":{"beat":"%d"}}}`, i)), metav1.PatchOptions{FieldManager: "beat"}); err != nil {
			t.Fatal(err)
		}
		if c := change(t, b.apply(refused), "Service"); c.State != differ.StateHeld {
			t.Errorf("it is %s", c.State)
		}
	}
	for _, path := range counter.real {
		if strings.HasSuffix(path, "/services/b") {
			t.Error("what was refused was sent again")
		}
	}
}

// A refusal of the write alone, as by a policy that looks at dryRun, is an error like any
// other, whether there was a dry run before or not: it does not have the same be planned for
// ever.
func TestFamiliarRefusedLate(t *testing.T) {
	for name, skip := range map[string]bool{"Tried": false, "Skipped": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.apply(w.want("v1", configMap("a", "one"), configMap("b", "one")))
			config := rest.CopyConfig(server)
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					if !write(http.MethodPatch, "/configmaps/a")(r) {
						return next.RoundTrip(r)
					}
					return &http.Response{
						StatusCode: http.StatusUnprocessableEntity, ProtoMajor: 1, ProtoMinor: 1, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
						Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"denied by policy","reason":"Invalid","code":422}`)),
					}, nil
				})
			})
			w.connect(config, func(o *applier.Options) { o.SkipDryRuns = skip })
			w.apply(w.want("v2", configMap("a", "one"), configMap("b", "two"))) // teaches
			want := w.want("v3", configMap("a", "two"), configMap("b", "two"))
			refused, stale := 0, 0
			for range 6 {
				_, err := w.cluster.Apply(t.Context(), w.plan(want), applier.ApplyOptions{Now: time.Unix(1, 0)})
				switch {
				case errors.Is(err, applier.ErrStale):
					stale++
				case applier.Refused(err):
					refused++
				default:
					t.Errorf("error is %v", err)
				}
			}
			if most := map[bool]int{false: 0, true: 1}[skip]; stale > most || refused < 5 {
				t.Errorf("%d times it was refused, and %d times it was to be planned again", refused, stale)
			}
		})
	}
}

// A target with hooks is judged as a whole: an object that is refused keeps them from
// running, so all are tried.
func TestFamiliarWithHooks(t *testing.T) {
	w := newWorld(t)
	counter := w.counted(func(o *applier.Options) { o.SkipDryRuns = true })
	w.apply(w.want("v1", configMap("a", "one")))
	w.apply(w.want("v2", configMap("a", "two")))
	counter.take()
	w.plan(w.withHooks(w.want("v3", configMap("a", "three")), pod("migrate", hookOn("pre-upgrade"))))
	if _, dryRuns := counter.take(); dryRuns != 1 {
		t.Errorf("%d dry runs, want one", dryRuns)
	}
}
