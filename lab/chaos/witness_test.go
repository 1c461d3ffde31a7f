package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/cluster"
)

// written makes an event of a write that was answered with an object.
func written(agent, resource, namespace, name string, version int) audit.Event {
	return audit.Event{
		ID: fmt.Sprintf("%s-%d", agent, version), Stage: audit.ResponseComplete, Verb: "patch", User: cluster.Keelson, UserAgent: "keelson/v1 " + agent, Code: 200,
		Resource: audit.Resource{Version: "v1", Resource: resource, Namespace: namespace, Name: name},
		Response: json.RawMessage(fmt.Sprintf(`{"metadata":{"resourceVersion":"%d"}}`, version)),
	}
}

// A log is read by the order in which etcd took the writes, not by that of its lines.
func TestTakeOvers(t *testing.T) {
	t.Parallel()
	record := func(agent string, version int) audit.Event {
		return written(agent, "secrets", "keelson-system", "record-dns", version)
	}
	object := func(agent string, version int) audit.Event {
		return written(agent, "configmaps", "dns", "settings", version)
	}
	refused := object("one", 0)
	refused.Code, refused.Response = 409, nil
	dry := object("one", 30)
	dry.DryRun = true
	unseen := object("one", 0)
	unseen.Response = nil
	cases := map[string]struct {
		why                         string
		events                      []audit.Event
		takeOvers, refused, violate int
	}{
		"Alone":   {why: "No other writer took over.", events: []audit.Event{record("one", 10), object("one", 11), record("one", 12)}},
		"Right":   {why: "The first writer stopped in time.", takeOvers: 1, events: []audit.Event{record("one", 10), object("one", 11), record("two", 20), object("two", 21)}},
		"Late":    {why: "The deposed writer wrote an object.", takeOvers: 1, violate: 1, events: []audit.Event{record("one", 10), record("two", 20), object("one", 21)}},
		"Back":    {why: "The first writer took the component again before it wrote.", takeOvers: 2, events: []audit.Event{record("one", 10), record("two", 20), record("one", 21), object("one", 22)}},
		"Third":   {why: "The first writer took the component back, and the second wrote an object after that.", takeOvers: 2, violate: 1, events: []audit.Event{record("one", 10), record("two", 20), record("one", 21), object("two", 22)}},
		"Lines":   {why: "The audit line came late, but the write was in time.", takeOvers: 1, events: []audit.Event{record("one", 10), record("two", 20), object("one", 15)}},
		"Refused": {why: "The API server refused the late write.", takeOvers: 1, refused: 1, events: []audit.Event{record("one", 10), record("two", 20), refused}},
		"DryRun":  {why: "Nothing was written.", takeOvers: 1, events: []audit.Event{record("one", 10), record("two", 20), dry}},
		"Unseen":  {why: "What the log does not show proves nothing.", takeOvers: 1, violate: 1, events: []audit.Event{record("one", 10), record("two", 20), unseen}},
		"Other":   {why: "It belongs to another component.", takeOvers: 1, events: []audit.Event{record("one", 10), record("two", 20), written("one", "configmaps", "web", "settings", 30)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := takeOvers(tc.events, []*fixtureComponent{{name: "dns"}})
			if v.takeOvers != tc.takeOvers || v.refused != tc.refused || len(v.violations) != tc.violate {
				t.Errorf("%d taken over, %d refused, violations %q; %s", v.takeOvers, v.refused, v.violations, tc.why)
			}
		})
	}
}

// A process must not write to a cluster that its Lease does not list.
func TestUnlisted(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	lease := func(agent string, version int, clusters string) audit.Event {
		e := written(agent, "leases", "keelson-system", "lease-"+agent, version)
		e.Response = json.RawMessage(fmt.Sprintf(`{"metadata":{"name":"lease-%s","resourceVersion":"%d","annotations":{"keelson.io/clusters":%q}}}`, agent, version, clusters))
		return e
	}
	buried := audit.Event{Verb: "delete", UserAgent: "keelson/v1 two", Code: 200, Time: at, Resource: audit.Resource{Resource: "leases", Name: "lease-one"}}
	object := func(version int) audit.Event { return written("one", "configmaps", "dns", "settings", version) }
	late := object(21)
	late.Received = at.Add(time.Second)
	refused := late
	refused.Code = 409
	cases := map[string]struct {
		why     string
		events  []audit.Event
		violate int
	}{
		"Listed":    {why: "The Lease of the process lists the cluster.", events: []audit.Event{lease("one", 10, "b,a"), object(11)}},
		"Before":    {why: "The Lease listed the cluster only after the write.", violate: 1, events: []audit.Event{lease("one", 10, ""), object(11), lease("one", 12, "a")}},
		"After":     {why: "The Lease no longer listed the cluster.", violate: 1, events: []audit.Event{lease("one", 10, "a"), lease("one", 11, "b"), object(12)}},
		"Lines":     {why: "The log's lines are in another order than the writes.", events: []audit.Event{object(11), lease("one", 12, ""), lease("one", 10, "a")}},
		"NoLease":   {why: "The process has no Lease.", violate: 1, events: []audit.Event{lease("two", 10, "a"), object(11)}},
		"Buried":    {why: "The Lease had expired and was deleted.", violate: 1, events: []audit.Event{lease("one", 10, "a"), buried, late}},
		"Refused":   {why: "The API server refused the write.", events: []audit.Event{lease("one", 10, "a"), buried, refused}},
		"Status":    {why: "Only the holder of a cluster may write its statuses.", violate: 1, events: []audit.Event{lease("one", 10, "b"), written("one", "deliveries", "keelson-system", "a.dns", 11)}},
		"Another's": {why: "The status is of another cluster.", events: []audit.Event{lease("one", 10, "b"), written("one", "deliveries", "keelson-system", "b.dns", 11)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var v verdict
			v.unlisted(tc.events, []*fixtureComponent{{name: "dns", on: "a"}})
			if len(v.violations) != tc.violate {
				t.Errorf("violations %q; %s", v.violations, tc.why)
			}
		})
	}
}

// If a write makes another client's counter smaller, the write has reverted that client's change.
func TestReverted(t *testing.T) {
	t.Parallel()
	object := func(version, put int) audit.Event {
		e := written("one", "configmaps", "busy-1", "settings", version)
		e.Response = json.RawMessage(fmt.Sprintf(`{"metadata":{"resourceVersion":"%d","annotations":{%q:"%d"}}}`, version, putField, put))
		return e
	}
	gone := written("one", "configmaps", "busy-1", "settings", 12)
	cases := map[string]struct {
		why      string
		events   []audit.Event
		reverted int
	}{
		"Up":    {why: "It only went up.", events: []audit.Event{object(10, 1), object(11, 2)}},
		"Down":  {why: "An old value was written.", events: []audit.Event{object(10, 2), object(11, 1)}, reverted: 1},
		"Gone":  {why: "It was dropped.", events: []audit.Event{object(10, 2), gone}, reverted: 1},
		"Lines": {why: "The log's lines are in another order than the writes.", events: []audit.Event{object(11, 2), object(10, 1)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines, ours, err := revertedFields(tc.events, "busy-")
			if err != nil || len(lines) != tc.reverted || ours != len(tc.events) {
				t.Errorf("%q, %d of ours, %v; %s", lines, ours, err, tc.why)
			}
		})
	}
}
