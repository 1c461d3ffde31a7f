package applier_test

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
)

// The wanted version depends on a record. If another client writes the record before the plan is
// made, there is no plan, because it could undo a person's rollback.
func TestPlanFromAnotherRecord(t *testing.T) {
	w := newWorld(t)
	one, two := w.want("v1", configMap("settings", "one")), w.want("v2", configMap("settings", "two"))
	w.apply(one)
	w.apply(two)
	first := w.cluster
	var err error
	if two.From, err = first.RecordVersion(t.Context(), w.component); err != nil || two.From == "" {
		t.Fatalf("the record has version %q (%v)", two.From, err)
	}
	if p := w.plan(two); !p.Settled() {
		t.Error("the record is the one that was looked at, and the plan is not settled")
	}
	w.reconnect()
	one.Pin = &records.Pin{Number: 1, Version: "v1", TargetHash: one.Target.Hash, Against: two.Target.Hash, By: "tess", Because: "INC-1", At: time.Now()}
	w.apply(one)
	now, err := w.cluster.RecordVersion(t.Context(), w.component)
	if err != nil {
		t.Fatal(err)
	}
	first.RecordSeen(w.component, now)
	if _, err := first.Plan(t.Context(), two); !errors.Is(err, applier.ErrStale) {
		t.Errorf("a plan without the pin that is recorded by now: %v", err)
	}
	two.From = now
	if _, err := first.Plan(t.Context(), two); err != nil {
		t.Errorf("who has looked at the new record: %v", err)
	}
}

// A pin is written with the first record write of its apply, stays while it is
// wanted, costs nothing then, and goes with the first apply that does not want it.
func TestPin(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int64 // writes, and reads of the record
	config := rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodGet || strings.Contains(r.URL.Path, "/secrets") {
				calls.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	w.connect(config)
	one, two := w.want("v1", configMap("settings", "one")), w.want("v2", configMap("settings", "two"))
	w.apply(one)
	w.apply(two)

	one.Pin = &records.Pin{
		Number: 1, Version: "v1", TargetHash: one.Target.Hash, Against: two.Target.Hash,
		By: "tess", Because: "INC-1", At: time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("", 3600)),
	}
	w.apply(one)
	w.reconnect() // from the cluster, where times are written in another way
	record, err := w.cluster.Record(t.Context(), w.component)
	if err != nil || record.Pin == nil || record.Pin.Because != "INC-1" || !record.History[0].Pinned || record.History[1].Pinned {
		t.Fatalf("got %+v, history %+v (%v)", record.Pin, record.History, err)
	}
	w.connect(config)
	w.plan(one)
	calls.Store(0)
	p := w.plan(one)
	if _, err := w.cluster.Apply(t.Context(), p, applier.ApplyOptions{Now: time.Now()}); err != nil || !p.Settled() || p.Pin() == nil {
		t.Errorf("a pinned component that is settled: settled %v, pin %v (%v)", p.Settled(), p.Pin(), err)
	}
	if n := calls.Load(); n > 0 {
		t.Errorf("a pinned component that is settled cost %d calls", n)
	}

	one.Pin = nil // the objects are as wanted, the record is not
	if p := w.plan(one); p.Settled() {
		t.Error("a record that says pinned is settled without a pin")
	}
	w.apply(one)
	w.reconnect()
	if record, err := w.cluster.Record(t.Context(), w.component); err != nil || record.Pin != nil {
		t.Errorf("the pin is still there: %+v (%v)", record.Pin, err)
	}
}
