package main

import (
	"encoding/json"
	"fmt"
	"testing"

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
		"Alone":   {why: "Nobody took over.", events: []audit.Event{record("one", 10), object("one", 11), record("one", 12)}},
		"Right":   {why: "The first stopped in time.", takeOvers: 1, events: []audit.Event{record("one", 10), object("one", 11), record("two", 20), object("two", 21)}},
		"Late":    {why: "An object was written by the deposed.", takeOvers: 1, violate: 1, events: []audit.Event{record("one", 10), record("two", 20), object("one", 21)}},
		"Record":  {why: "A record was.", takeOvers: 1, violate: 1, events: []audit.Event{record("one", 10), record("two", 20), record("one", 21)}},
		"Lines":   {why: "Its line came late, the write did not.", takeOvers: 1, events: []audit.Event{record("one", 10), record("two", 20), object("one", 15)}},
		"Refused": {why: "The guard held.", takeOvers: 1, refused: 1, events: []audit.Event{record("one", 10), record("two", 20), refused}},
		"DryRun":  {why: "Nothing was written.", takeOvers: 1, events: []audit.Event{record("one", 10), record("two", 20), dry}},
		"Unseen":  {why: "What the log does not show proves nothing.", takeOvers: 1, violate: 1, events: []audit.Event{record("one", 10), record("two", 20), unseen}},
		"Other":   {why: "It belongs to another component.", takeOvers: 1, events: []audit.Event{record("one", 10), record("two", 20), written("one", "configmaps", "web", "settings", 30)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := takeOvers(tc.events, []*plot{{name: "dns"}})
			if v.takeOvers != tc.takeOvers || v.refused != tc.refused || len(v.violations) != tc.violate {
				t.Errorf("%d taken over, %d refused, violations %q; %s", v.takeOvers, v.refused, v.violations, tc.why)
			}
		})
	}
}

// A counter of somebody's that is less after a write was reverted by it.
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
