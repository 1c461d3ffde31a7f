package applier

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"unique"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// Keeper is a [Reader] that holds objects in memory, and lets go of those of a
// component at rest: one that was found as it is wanted, and healthy.
type Keeper interface {
	Reader
	// Wake begins a look at a component, which ends its rest. The mark is another
	// one after anything has changed of its objects.
	Wake(component string) (mark uint64)
	// Rest lets go of the objects that a look has read, unless anything has changed
	// since its mark, or soon may: then it returns false.
	Rest(component string, mark uint64, ids []differ.ID, health HealthRules) bool
	// AtRest reports whether nothing has changed since Rest: no content, and the
	// health of no object.
	AtRest(component string) bool
}

// sum stands for content.
type sum [16]byte

// quiet is what is kept of a component at rest. Its record is read again when it
// is needed.
type quiet struct {
	of      sum           // what it was found as, see [Cluster.fingerprint]
	version recordVersion // its record's
	record  sum           // of the record: a store that is set back counts resourceVersions anew
	pin     *Pin
	// delivered is what the record says of it.
	delivered unique.Handle[Delivered]
	uids      []uint64 // of the inventory, hashed
}

// recordVersion is a resourceVersion: the number that it nearly always is, which takes no
// memory of its own, or else its text.
type recordVersion struct {
	number uint64
	text   string
}

func recordVersionOf(version string) recordVersion {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != version {
		return recordVersion{text: version}
	}
	return recordVersion{number: n}
}

func (v recordVersion) String() string {
	if v.number == 0 {
		return v.text
	}
	return strconv.FormatUint(v.number, 10)
}

// atRest returns the plan of a component of which nothing has changed since it was
// found settled, and healthy; nil when that is not so, or not known.
func (c *Cluster) atRest(ctx context.Context, w Want) *Prepared {
	c.mu.Lock()
	q, listed := c.quiet[w.Component], c.listed
	c.mu.Unlock()
	if q == nil || !listed || w.Absent || !c.keeper.AtRest(w.Component) {
		return nil // it rests as something that is to be there
	}
	p := &Prepared{want: w, Applied: q.delivered.Value().Version, quiet: true}
	states, versions := statesOf(nil, w.Target)
	var err error
	// Whoever plans in full hears of an error.
	if p.mappings, err = c.mappings(ctx, states, versions); err != nil {
		return nil
	}
	if p.policy, err = c.policy(ctx, w); err != nil {
		return nil
	}
	if p.schemas, err = c.schemas(ctx, versions); err != nil {
		return nil
	}
	if c.fingerprint(p, states, versions) != q.of {
		return nil
	}
	for i := range states {
		p.Health = append(p.Health, ObjectHealth{ID: states[i].ID, Health: v1alpha1.HealthHealthy})
	}
	return p
}

// wasHealthy reports whether a delivery was seen at rest by this process.
func (c *Cluster) wasHealthy(component string, d Delivered) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.healthy[component]
	return ok && h.Value() == d
}

// wake ends the rest of a component: its record will be read again.
func (c *Cluster) wake(component string) (mark uint64) {
	if c.keeper == nil {
		return 0
	}
	c.mu.Lock()
	if c.quiet[component] != nil {
		delete(c.quiet, component)
		c.records[component] = nil
	}
	c.mu.Unlock()
	return c.keeper.Wake(component)
}

// rest lets go of what a plan was made from, if there is nothing to do about it.
func (c *Cluster) rest(p *Prepared, mark uint64, versions map[differ.ID]schema.GroupVersionKind) {
	if c.keeper == nil || !p.still() {
		return
	}
	ids := make([]differ.ID, 0, len(p.states))
	for i := range p.states {
		ids = append(ids, p.states[i].ID)
	}
	states, _ := statesOf(nil, p.want.Target)
	q := &quiet{
		of: c.fingerprint(p, states, versions), version: recordVersionOf(p.record.version), record: p.record.sum,
		pin: p.record.Pin, delivered: p.record.delivered().once(), uids: hashUIDs(p.record.Objects),
	}
	component := p.want.Component
	if !c.keeper.Rest(component, mark, ids, p.want.Health) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.records[component] != p.record || c.unfenced[component] {
		return // somebody wrote it meanwhile
	}
	c.quiet[component], c.healthy[component] = q, q.delivered
	delete(c.records, component)
	delete(c.settled, component)
	for _, id := range ids {
		delete(c.answers, id)
		delete(c.lookedAt, id)
	}
}

// still reports whether there is nothing to do, to wait for or to show.
func (p *Prepared) still() bool {
	if p.want.Absent || p.record.version == "" || !p.Settled() || len(p.Health) != len(p.want.Target.Objects) {
		return false
	}
	for i := range p.Plan.Changes {
		if !p.Plan.Changes[i].Quiet() {
			return false
		}
	}
	for i := range p.Health {
		if p.Health[i].Health != v1alpha1.HealthHealthy || p.Health[i].Message != "" {
			return false
		}
	}
	return true
}

// fingerprint stands for all that a plan is made from, but the record and the live
// objects.
func (c *Cluster) fingerprint(p *Prepared, states []differ.State, versions map[differ.ID]schema.GroupVersionKind) sum {
	h := sha256.New()
	w := &p.want
	write(h, w.Target.Hash, w.Version, w.Tree, w.Namespace, w.ServiceAccount, p.policy.Hash(), fmt.Sprint(len(states)))
	if w.Pin != nil {
		write(h, fmt.Sprint(w.Pin.Number, w.Pin.At.UTC(), w.Pin.TargetHash, w.Pin.Against, w.Pin.By, w.Pin.Because))
	}
	w.Health.write(h)
	for i := range states {
		id := states[i].ID
		resource := ""
		if m := p.mappings[id]; m != nil {
			resource = m.Resource.String()
		}
		write(h, resource, p.schemas.Hash(versions[id]), fmt.Sprint(p.policy.Scaled[id]))
	}
	return sum(h.Sum(nil)[:16])
}

// write hashes texts so that no two lists of them are hashed alike.
func write(h io.Writer, parts ...string) {
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part) // a hash takes everything
	}
}

// hashUIDs are the UIDs of objects that are there as applied.
func hashUIDs(objects []RecordedObject) []uint64 {
	out := make([]uint64, 0, len(objects))
	for i := range objects {
		if o := &objects[i]; o.UID != "" && o.Intent == "" {
			out = append(out, hashUID(o.UID))
		}
	}
	return out
}

func hashUID(uid string) uint64 {
	s := sha256.Sum256([]byte(uid))
	return binary.LittleEndian.Uint64(s[:])
}
