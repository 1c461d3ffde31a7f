package applier

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/differ"
)

// historyLength is how many deliveries a record remembers.
const historyLength = 10

// Record is what Keelson stores in a cluster about one component.
type Record struct {
	Format    int    `json:"format"`
	Component string `json:"component"`
	// Epoch counts the sessions that wrote the record, and Writer is the last of
	// them; see [Writer].
	Epoch  int64  `json:"epoch,omitempty"`
	Writer string `json:"writer,omitempty"`
	// IntentsAt is when the open intents were recorded.
	IntentsAt *time.Time `json:"intentsAt,omitempty"`
	// Version, Tree, Revision and TargetHash of the last delivery that was
	// applied in whole; empty before the first.
	Version    string `json:"version,omitempty"`
	Tree       string `json:"tree,omitempty"`
	Revision   string `json:"revision,omitempty"`
	TargetHash string `json:"targetHash,omitempty"`
	// Objects are the inventory, in the order of their IDs.
	Objects []RecordedObject `json:"objects"`
	// Hooks holds the progress of the hooks of a target that is not applied in whole yet, and hooks
	// whose objects must still be deleted.
	Hooks []RecordedHook `json:"hooks,omitempty"`
	// History of deliveries, the newest first.
	History []HistoryEntry `json:"history,omitempty"`
	// Pin keeps the component at an earlier delivery; nil: it follows git.
	Pin *Pin `json:"pin,omitempty"`
}

// RecordedObject is one object of the inventory.
type RecordedObject struct {
	differ.ID  `json:",inline"`
	APIVersion string `json:"apiVersion"`
	// UID is empty where it is not known that the object exists.
	UID string `json:"uid,omitempty"`
	// Content as applied, Secret data as keyed hashes.
	Content map[string]any `json:"content"`
	// Normal holds the hashes of the differences that the API server itself makes to the content.
	Normal []string `json:"normal,omitempty"`
	// Intent is the write that was about to be sent when the record was written. It may or may not
	// have happened.
	Intent Intent `json:"intent,omitempty"`
	// Was is the content that was applied before a creation with an open intent; nil: none. If the
	// object is not there, the next plan is judged by it: a creation that failed approves nothing.
	Was map[string]any `json:"was,omitempty"`
	// Pruning marks an object that a later pass may delete; nil: not marked.
	Pruning *Pruning `json:"pruning,omitempty"`
}

// Intent is a write that is recorded before it is sent. The zero Intent: no write.
type Intent string

// The values of [Intent]. With create and replace, Content is the new content; otherwise it is what
// was applied last.
const (
	IntentCreate  Intent = "create"
	IntentUpdate  Intent = "update"
	IntentReplace Intent = "replace"
	IntentDelete  Intent = "delete"
)

// open reports whether any object has an intent.
func (r *Record) open() bool {
	return slices.ContainsFunc(r.Objects, func(o RecordedObject) bool { return o.Intent != "" })
}

// find returns an object of the inventory, or nil.
func (r *Record) find(id differ.ID) *RecordedObject {
	i, found := slices.BinarySearchFunc(r.Objects, id, func(o RecordedObject, id differ.ID) int { return differ.CompareIDs(o.ID, id) })
	if !found {
		return nil
	}
	return &r.Objects[i]
}

// HistoryEntry is one delivery that was applied in whole.
type HistoryEntry struct {
	Number     int       `json:"number"`
	Time       time.Time `json:"time"`
	Version    string    `json:"version"`
	Revision   string    `json:"revision"`
	TargetHash string    `json:"targetHash"`
	// Epoch and Writer are the session that delivered it.
	Epoch  int64  `json:"epoch,omitempty"`
	Writer string `json:"writer,omitempty"`
	// Pinned: the delivery was a rollback, or was made under one.
	Pinned  bool `json:"pinned,omitempty"`
	Created int  `json:"created,omitempty"`
	Updated int  `json:"updated,omitempty"`
	Deleted int  `json:"deleted,omitempty"`
	// Health when the next delivery began, or Healthy if this process saw the delivery settled
	// before. Empty: no delivery followed yet, or the health is unknown.
	Health v1alpha1.Health `json:"health,omitempty"`
}

// record is a Record with the resourceVersion of its Secret, empty before the
// first write.
type record struct {
	Record
	version string
	sum     fingerprint.Sum // of the Secret's content
	parts   []string        // names of the Secrets that hold a large record
	size    int             // in memory, in bytes
	// announced is the announcement made since the record was written; nil: none.
	announced *announcement
}

// Record returns what the cluster stores about a component. Objects and History are empty when
// nothing was ever applied.
func (c *Cluster) Record(ctx context.Context, component string) (Record, error) {
	r, err := c.readRecord(ctx, component)
	if err != nil {
		return Record{}, err
	}
	return r.Record, nil
}

// Pin returns the pin in a component's record; nil: not pinned.
func (c *Cluster) Pin(ctx context.Context, component string) (*Pin, error) {
	c.mu.Lock()
	q := c.settledCache[component]
	c.mu.Unlock()
	if q != nil {
		return q.pin, nil
	}
	r, err := c.readRecord(ctx, component)
	if err != nil {
		return nil, err
	}
	return r.Pin, nil
}

// RecordVersion returns the known resourceVersion of a component's record; empty: no record. For a
// settled component it makes no request. Called before [Cluster.Pin] and [Cluster.Delivered], it
// returns the version of their answers, or an earlier one.
func (c *Cluster) RecordVersion(ctx context.Context, component string) (string, error) {
	c.mu.Lock()
	q := c.settledCache[component]
	c.mu.Unlock()
	if q != nil {
		return q.version.String(), nil
	}
	r, err := c.readRecord(ctx, component)
	if err != nil {
		return "", err
	}
	return r.version, nil
}

// Recorded returns the components that have a record in the cluster, in order,
// and remembers their records.
func (c *Cluster) Recorded(ctx context.Context) ([]string, error) {
	names, err := c.listRecords(ctx)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", c.name, err)
	}
	return names, nil
}

// readRecord returns the record as this process last read or wrote it. Another
// writer is noticed when the record is written: its resourceVersion is stale.
func (c *Cluster) readRecord(ctx context.Context, component string) (*record, error) {
	c.mu.Lock()
	r, found := c.records[component]
	q := c.settledCache[component]
	none := !found && q == nil && c.listed // if this is outdated, writing the record fails
	c.mu.Unlock()
	switch {
	case r != nil:
		return r, nil
	case none:
		return noRecord(component), nil
	}
	r, err := c.fetchRecord(ctx, component)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: record of %s: %w", c.name, component, err)
	}
	if q == nil || q.version != recordVersionOf(r.version) {
		c.remember(r)
	}
	return r, nil
}

func (c *Cluster) remember(r *record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := r.size
	for component, other := range c.records {
		if other != nil && component != r.Component {
			total += other.size
		}
	}
	delete(c.settledCache, r.Component)
	c.keepIDs(r)
	if total > rememberedBytes {
		c.records[r.Component] = nil // the next use reads it again
		return
	}
	c.records[r.Component] = r
}

// keepIDs keeps the hashed IDs of a record's objects, within idsKept. It requires c.mu.
func (c *Cluster) keepIDs(r *record) {
	total := len(r.Objects)
	for component, ids := range c.recordedObjects {
		if component != r.Component {
			total += len(ids)
		}
	}
	if total > idsKept {
		delete(c.recordedObjects, r.Component)
		return
	}
	c.recordedObjects[r.Component] = hashIDs(r.Objects)
}

// RecordSeen receives the resourceVersion of a component's record from a watch. When the remembered
// record is older, or none is known, RecordSeen forgets it and returns true: another writer wrote
// it, so plan again.
func (c *Cluster) RecordSeen(component, version string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, found := c.records[component]
	if found && r == nil {
		delete(c.recordedObjects, component) // it may have other objects now
		return false
	}
	known := ""
	if r != nil {
		known = r.version
	} else if q := c.settledCache[component]; q != nil {
		known = q.version.String()
	}
	if known != "" {
		if order, err := resourceversion.CompareResourceVersion(version, known); version == known || err == nil && order < 0 {
			return false
		}
	}
	if len(c.records) > 2*maxRecords { // a hostile cluster may report ever new names
		c.dropRecords()
	}
	c.forget(component)
	return true
}

// forgetRecord makes the next read fetch the record from the cluster.
func (c *Cluster) forgetRecord(component string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(component)
}

// forget requires c.mu. A missing entry would mean that no record exists.
func (c *Cluster) forget(component string) {
	c.records[component] = nil
	delete(c.settledCache, component)
	delete(c.recordedObjects, component)
}

// dropRecords forgets all records, except what stays of settled components. It requires c.mu.
func (c *Cluster) dropRecords() {
	clear(c.records)
	c.listed = false
	maps.DeleteFunc(c.recordedObjects, func(component string, _ []uint64) bool { return c.settledCache[component] == nil })
}
