package applier_test

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
)

var errLost = errors.New("the connection broke")

// losing forwards the first request that matches, and loses its answer.
type losing struct {
	http.RoundTripper
	match func(*http.Request) bool
	done  *atomic.Bool
}

func (l *losing) RoundTrip(r *http.Request) (*http.Response, error) {
	lose := l.match(r) && l.done.CompareAndSwap(false, true)
	answer, err := l.RoundTripper.RoundTrip(r)
	if lose && err == nil {
		return nil, errors.Join(errLost, answer.Body.Close())
	}
	return answer, err
}

// A write that was carried out, and whose answer got lost, is neither repeated
// blindly nor forgotten, also when git wants something else by then.
func TestLostAnswer(t *testing.T) {
	labelled := strings.Replace(configMap("a", "one"), "{name: a,", "{name: a, labels: {extra: label},", 1)
	cases := map[string]struct {
		why               string
		first, then, next []string
		match             func(*http.Request) bool
		left              []string // ConfigMaps at the end
	}{
		"Create": {
			"The object came, and is wanted no more.",
			[]string{configMap("a", "one")},
			[]string{configMap("a", "one"), configMap("b", "one")},
			[]string{configMap("a", "one")},
			write(http.MethodPatch, "/configmaps/b"),
			[]string{"a"},
		},
		"Update": {
			"A label came that no record has, and is wanted no more.",
			[]string{configMap("a", "one")},
			[]string{labelled},
			[]string{configMap("a", "one")},
			write(http.MethodPatch, "/configmaps/a"),
			[]string{"a"},
		},
		"Delete": {
			"The object went, and is wanted again.",
			[]string{configMap("a", "one"), configMap("b", "one")},
			[]string{configMap("a", "one")},
			[]string{configMap("a", "one"), configMap("b", "one")},
			write(http.MethodDelete, "/configmaps/b"),
			[]string{"a", "b"},
		},
		"Record": {
			"The record says what was intended, and nothing was begun.",
			[]string{configMap("a", "one")},
			[]string{configMap("a", "two"), configMap("b", "one")},
			[]string{configMap("a", "three")},
			write(http.MethodPut, "/secrets/record-"),
			[]string{"a"},
		},
	}
	for name, c := range cases {
		for _, restart := range []string{"Restarted", "GoesOn"} {
			t.Run(name+restart, func(t *testing.T) {
				w := newWorld(t)
				config := rest.CopyConfig(server)
				config.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return &losing{RoundTripper: next, match: c.match, done: &atomic.Bool{}}
				})
				w.apply(w.want("v1", c.first...))
				w.connect(config)
				w.until(w.want("v2", c.then...), errLost)
				if restart == "Restarted" {
					w.reconnect()
				}
				want := w.want("v3", c.next...)
				w.until(want, nil)
				w.settled(want)
				list, err := w.resource(configMaps).List(t.Context(), metav1.ListOptions{LabelSelector: "keelson.io/component"})
				if err != nil {
					t.Fatal(err)
				}
				var left []string
				for _, u := range list.Items {
					left = append(left, u.GetName())
					if u.GetLabels()["extra"] != "" {
						t.Errorf("%s It stayed.", c.why)
					}
				}
				if strings.Join(left, " ") != strings.Join(c.left, " ") {
					t.Errorf("%s There are %v, want %v", c.why, left, c.left)
				}
			})
		}
	}
}

// until applies again and again, once a minute, until nothing is left to do, or an
// apply ends with the error.
func (w *world) until(want applier.Desired, end error) {
	w.t.Helper()
	for minute := range 8 {
		p := w.plan(want)
		if p.Settled() && end == nil {
			return
		}
		_, err := w.cluster.Apply(w.t.Context(), p, applier.ApplyOptions{Now: time.Unix(int64(60*minute), 0)})
		switch {
		case end != nil && errors.Is(err, end):
			return
		case err != nil && !errors.Is(err, applier.ErrStale):
			w.t.Fatal(err)
		}
		w.collect()
	}
	w.t.Fatalf("it does not come to an end: %s", show(w.plan(want)))
}

// Keelson soon retries an error that may pass, and seldom retries a refusal.
func TestRefused(t *testing.T) {
	resource := schema.GroupResource{Resource: "configmaps"}
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "a", nil)
	busy := apierrors.NewTooManyRequests("later", 7)
	cases := map[string]struct {
		why     string
		err     error
		refused bool
		after   time.Duration
	}{
		"Invalid":     {"The object stays invalid.", invalid, true, 0},
		"Forbidden":   {"A person has to grant the right.", apierrors.NewForbidden(resource, "a", nil), true, 0},
		"Webhook":     {"A webhook that denies answers with 400.", apierrors.NewBadRequest("denied"), true, 0},
		"Busy":        {"The API server says when to retry.", busy, false, 7 * time.Second},
		"Unavailable": {"The API server will answer again.", apierrors.NewServiceUnavailable("etcd"), false, 0},
		"Internal":    {"A webhook that does not answer is an internal error.", apierrors.NewInternalError(errLost), false, 0},
		"Broken":      {"The connection will work again.", errLost, false, 0},
		"Stale":       {"A new plan reads the current objects.", errors.Join(applier.ErrStale, invalid), false, 0},
		"Both":        {"One of two errors may pass.", errors.Join(invalid, busy), false, 0},
		"Two":         {"Neither error can pass.", errors.Join(invalid, invalid), true, 0},
		"Terminating": {"The namespace will be deleted, then a retry can create it.", &applier.TerminatingError{Namespace: "a"}, false, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := applier.Refused(c.err); got != c.refused {
				t.Errorf("%s Refused is %v", c.why, got)
			}
			if got := applier.RetryAfter(c.err); got != c.after {
				t.Errorf("%s RetryAfter is %s, want %s", c.why, got, c.after)
			}
		})
	}
}
