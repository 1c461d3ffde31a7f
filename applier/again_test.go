package applier_test

import (
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/applier"
)

// Of several reasons to look again the soonest counts, in whatever order they come.
func TestSoonestLook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var words []time.Duration
		for _, n := range rapid.SliceOf(rapid.Int64Range(1, int64(time.Hour))).Draw(t, "words") {
			words = append(words, time.Duration(n))
		}
		want := time.Duration(0) // nothing asks for it
		if len(words) > 0 {
			want = slices.Min(words)
		}
		if got := applier.Soonest(words...); got != want {
			t.Errorf("of %v it is %s, want %s", words, got, want)
		}
	})
}

// An apply that has more than one reason to look again names the soonest.
func TestLooksAgainSoonest(t *testing.T) {
	at := time.Unix(1000, 0)
	failed := func(string) map[string]any { return map[string]any{"phase": "Failed"} }
	cases := map[string]struct {
		why  string
		wish func(w *world, stays applier.Desired) applier.Desired
		pods func(string) map[string]any // how those end, if there are any
		want time.Duration
		fail bool // the hook ends the last apply, too
	}{
		"Waits": {
			why:  "A deletion waits for another component.",
			wish: func(_ *world, stays applier.Desired) applier.Desired { return stays },
			want: 30 * time.Second,
		},
		"WaitsAndMarks": {
			why: "Another object was marked, whose deletion is next.",
			wish: func(w *world, stays applier.Desired) applier.Desired {
				w.apply(w.want("v2", configMap("stays", "x"), configMap("goes", "x"), configMap("moves", "x")))
				return stays
			},
			want: 10 * time.Millisecond,
		},
		"WaitsAndMayCome": {
			why: "A late request can still create an unwanted object, for two minutes.",
			wish: func(w *world, stays applier.Desired) applier.Desired {
				w.cutOff(at, w.want("v2", configMap("stays", "x"), configMap("moves", "x"), configMap("late", "x")),
					write(http.MethodPatch, "/configmaps/late"))
				return stays
			},
			want: 30 * time.Second,
		},
		"WaitsAndHookFailed": {
			why: "A hook that failed has a minute's pause.",
			wish: func(w *world, stays applier.Desired) applier.Desired {
				return w.withHooks(stays, pod("migrate", hookOn("post-upgrade")))
			},
			want: 30 * time.Second,
			pods: failed,
			fail: true,
		},
		"WaitsAndHookPauses": {
			why: "It failed before, and its pause has just begun.",
			wish: func(w *world, stays applier.Desired) applier.Desired {
				want := w.withHooks(stays, pod("migrate", hookOn("pre-upgrade")))
				if err := w.try(w.t.Context(), want, applier.ApplyOptions{Now: at}); !errors.As(err, new(*applier.HookError)) {
					w.t.Fatalf("the hook did not fail: %v", err)
				}
				return want
			},
			want: 30 * time.Second,
			pods: failed,
			fail: true,
		},
		"WaitsAndHookIsLeft": {
			why: "The object of a hook that a replaced session may still create stays for two minutes.",
			wish: func(w *world, stays applier.Desired) applier.Desired {
				want := w.withHooks(stays, pod("migrate", hookOn("pre-upgrade", "helm.sh/hook-delete-policy: hook-succeeded")))
				w.cutOff(at, want, write(http.MethodPatch, "/pods/migrate"))
				w.reconnect()
				if err := w.try(w.t.Context(), want, applier.ApplyOptions{Now: at}); err != nil {
					w.t.Fatal(err)
				}
				return want
			},
			pods: succeeded,
			want: 30 * time.Second,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if c.pods != nil {
				startKubelet(w, c.pods)
			}
			w.apply(w.want("v1", configMap("stays", "x"), configMap("moves", "x")))
			taker := w.as(w.ns + "-taker")
			stays := among(w.want("v3", configMap("stays", "x")), taker.want("v1", configMap("moves", "x")))
			p := w.plan(c.wish(w, stays))
			outcome, err := w.cluster.Apply(t.Context(), p, applier.ApplyOptions{Now: at.Add(time.Second)})
			if c.fail != errors.As(err, new(*applier.HookError)) || !c.fail && err != nil {
				t.Fatalf("%s It ended with %v", c.why, err)
			}
			if outcome.Again != c.want {
				t.Errorf("%s The next look is in %s, want %s:\n%s", c.why, outcome.Again, c.want, show(p))
			}
		})
	}
}

// cutOff applies by a session that never hears whether its write was carried out;
// it was not.
func (w *world) cutOff(at time.Time, want applier.Desired, match func(*http.Request) bool) {
	w.t.Helper()
	config := rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &failing{RoundTripper: next, match: match, once: &sync.Once{}}
	})
	w.connect(config)
	if err := w.try(w.t.Context(), want, applier.ApplyOptions{Now: at}); !errors.Is(err, errLost) {
		w.t.Fatalf("the apply ended with %v, want a write that was cut off", err)
	}
}
