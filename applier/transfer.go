package applier

import (
	"context"
	"errors"
	"slices"

	"github.com/keelson-io/keelson/differ"
)

// recordedElsewhere finds wanted objects that are not in the cluster, that this component never
// applied, and that the record of another component has: git moved them here, and another client
// deleted them. They are judged by that record, so that their deletion approves nothing.
//
// An object that Keelson itself was about to delete does not count: git wanted that. A damaged
// record does not count either: its own component reports it.
func (c *Cluster) recordedElsewhere(ctx context.Context, component string, states []differ.State) error {
	missing := map[differ.ID]*differ.State{}
	for i := range states {
		if s := &states[i]; s.Target != nil && s.Live == nil && s.Recorded == nil && s.Former == nil {
			missing[s.ID] = s
		}
	}
	if len(missing) == 0 {
		return nil
	}
	c.mu.Lock()
	listed := c.listed
	c.mu.Unlock()
	if !listed {
		if _, err := c.listRecords(ctx); err != nil {
			return err
		}
	}
	for _, name := range c.mayHold(component, missing) {
		rec, err := c.readRecord(ctx, name)
		if errors.As(err, new(*unreadableRecordError)) || errors.As(err, new(*missingPartError)) {
			continue // one damaged record must not stop the creations of all components
		}
		if err != nil {
			return err
		}
		for i := range rec.Objects {
			o := &rec.Objects[i]
			if s := missing[o.ID]; s != nil && s.Former == nil && o.Intent != IntentDelete {
				s.Former = former(o)
			}
		}
	}
	return nil
}

// mayHold returns the components, except one, whose records may have one of some objects, by name.
// It includes components of which neither the record nor the IDs of its objects are in memory.
func (c *Cluster) mayHold(but string, objects map[differ.ID]*differ.State) []string {
	hashes := make(map[uint64]bool, len(objects))
	for id := range objects {
		hashes[hashID(id)] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for name, ids := range c.recordedObjects {
		if c.records[name] == nil && slices.ContainsFunc(ids, func(hash uint64) bool { return hashes[hash] }) {
			out = append(out, name)
		}
	}
	for name, r := range c.records {
		_, known := c.recordedObjects[name]
		switch {
		case r == nil && !known:
			out = append(out, name)
		case r != nil && slices.ContainsFunc(r.Objects, func(o RecordedObject) bool { return objects[o.ID] != nil }):
			out = append(out, name)
		}
	}
	for name := range c.settledCache {
		if _, known := c.recordedObjects[name]; !known {
			out = append(out, name)
		}
	}
	out = slices.DeleteFunc(out, func(name string) bool { return name == but })
	slices.Sort(out)
	return out
}
