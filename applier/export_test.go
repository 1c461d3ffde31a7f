package applier

import (
	"context"
	"crypto/sha512"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/differ"
)

// Batches returns the order in which a plan is carried out, as object names.
func Batches(plan *differ.Plan) [][]string {
	var out [][]string
	for _, b := range batches(plan) {
		var names []string
		for _, c := range b.changes {
			names = append(names, c.ID.String())
		}
		out = append(out, names)
	}
	return out
}

// SetInstanceLimits makes pages and the limit of what is read small.
func (c *Cluster) SetInstanceLimits(page int64, all int) {
	c.limits = instanceLimits{page: page, all: all}
}

// ForgetInstances drops what was found of custom resources.
func (c *Cluster) ForgetInstances() { clear(c.judgedCustomResources) }

// Unpack decodes the content of a record's Secret.
func Unpack(data []byte) (Record, error) {
	var r Record
	_, err := new(packer).unpack(data, &r)
	return r, err
}

// Soonest is when an apply looks again that has several reasons to.
func Soonest(words ...time.Duration) time.Duration {
	var o Outcome
	for _, after := range words {
		o.requeueAfter(after)
	}
	return o.Again
}

// SchemasFor returns the schemas that the cluster publishes for some groups and versions.
func (c *Cluster) SchemasFor(ctx context.Context, wanted ...schema.GroupVersion) (differ.Schemas, error) {
	return c.discovery.schemasFor(ctx, wanted)
}

// Parse returns the schema of a document.
func (c *SchemaCache) Parse(document []byte) (*differ.Schema, error) {
	return c.parse(context.Background(), document)
}

// Knows reports whether the schema of a document is remembered.
func (c *SchemaCache) Knows(document []byte) bool { return c.find(sha512.Sum512(document)) != nil }

// RememberedBytes is what the records in memory take.
func (c *Cluster) RememberedBytes() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.records {
		if r != nil {
			n += r.size
		}
	}
	return n
}

// ObserveObjects reads n objects as a plan does.
func (c *Cluster) ObserveObjects(ctx context.Context, n int, get func(context.Context, differ.ID) (map[string]any, error)) error {
	states, mappings := make([]differ.State, n), map[differ.ID]*meta.RESTMapping{}
	for i := range states {
		states[i].ID = differ.ID{Kind: "ConfigMap", Name: strconv.Itoa(i)}
		mappings[states[i].ID] = &meta.RESTMapping{}
	}
	return c.observe(ctx, mappings, states, func(ctx context.Context, _ *meta.RESTMapping, s *differ.State) (map[string]any, error) {
		return get(ctx, s.ID)
	})
}

// Announcing is how many announcements wait for a write that is on its way.
func (c *Cluster) Announcing() int {
	c.announcer.mu.Lock()
	defer c.announcer.mu.Unlock()
	return len(c.announcer.waiting)
}

// KeptIDs remembers records with many objects each, and returns how many IDs are in memory, and how
// many records could hold an object that none of them has.
func KeptIDs(records, objects int) (kept, doubtful int) {
	c := &Cluster{records: map[string]*record{}, settledCache: map[string]*settledEntry{}, recordedObjects: map[string][]uint64{}}
	for i := range records {
		r := &record{Record: Record{Component: fmt.Sprintf("c%d", i), Objects: make([]RecordedObject, objects)}}
		for o := range r.Objects {
			r.Objects[o].ID = differ.ID{Kind: "ConfigMap", Namespace: r.Component, Name: strconv.Itoa(o)}
		}
		c.mu.Lock()
		c.keepIDs(r)
		c.mu.Unlock()
		c.records[r.Component] = nil // too large to be remembered
	}
	for _, ids := range c.recordedObjects {
		kept += len(ids)
	}
	missing := differ.ID{Kind: "ConfigMap", Namespace: "other", Name: "a"}
	return kept, len(c.mayHold("other", map[differ.ID]*differ.State{missing: {}}))
}
