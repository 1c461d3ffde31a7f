package applier

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// appliedObjects are the objects of a component while an apply changes them. It is safe for
// concurrent use.
type appliedObjects struct {
	mu sync.Mutex
	// next holds the objects as the record will have them, and before as the record has them again
	// if their write is refused for certain.
	next, before map[differ.ID]records.Object
	// live holds the last answers of the API server.
	live map[differ.ID]map[string]any
	// sent are the objects of which a write was sent.
	sent map[differ.ID]bool
}

func newAppliedObjects(p *Prepared) *appliedObjects {
	o := &appliedObjects{next: map[differ.ID]records.Object{}, live: map[differ.ID]map[string]any{}, sent: map[differ.ID]bool{}}
	for _, r := range p.record.Objects {
		o.next[r.ID] = r
	}
	o.before = maps.Clone(o.next)
	for i := range p.Plan.Changes {
		o.live[p.Plan.Changes[i].ID] = p.Plan.Changes[i].Live
	}
	return o
}

// get returns an object as the record will have it; false: it will not.
func (o *appliedObjects) get(id differ.ID) (records.Object, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, known := o.next[id]
	return r, known
}

// previous returns an object as the record had it before its write; false: it had not.
func (o *appliedObjects) previous(id differ.ID) (records.Object, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, known := o.before[id]
	return r, known
}

// put sets an object as the record will have it.
func (o *appliedObjects) put(r records.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next[r.ID] = r
}

// drop removes an object from the next record.
func (o *appliedObjects) drop(id differ.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.next, id)
}

// disown removes an object that was an ordinary object, not a hook, in the previous version.
func (o *appliedObjects) disown(id differ.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.next, id)
	delete(o.before, id)
}

// list returns the objects as the record will have them, in the order of their IDs.
func (o *appliedObjects) list() []records.Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.SortedFunc(maps.Values(o.next), func(x, y records.Object) int {
		return differ.CompareIDs(x.ID, y.ID)
	})
}

// send says that the write of an object is about to be sent.
func (o *appliedObjects) send(id differ.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent[id] = true
}

// wrote sets an object as it was written, with the API server's answer.
func (o *appliedObjects) wrote(r records.Object, live map[string]any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next[r.ID], o.live[r.ID] = r, live
}

// removed says that an object that is to be replaced is gone, and that git approved the new one. If
// its creation is refused, the intent stays: the next plan is judged by what was approved.
func (o *appliedObjects) removed(id differ.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.before[id] = o.next[id]
}

// undo withdraws the intent of a write that was refused for certain.
func (o *appliedObjects) undo(id differ.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.undoLocked(id)
}

// undoUnsent withdraws the intent of a write that was not sent.
func (o *appliedObjects) undoUnsent(id differ.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.sent[id] {
		o.undoLocked(id)
	}
}

// undoLocked requires o.mu.
func (o *appliedObjects) undoLocked(id differ.ID) {
	if before, ok := o.before[id]; ok {
		o.next[id] = before
	} else {
		delete(o.next, id)
	}
}

// lastAnswer returns an object as the API server answered last; nil: it does not exist.
func (o *appliedObjects) lastAnswer(id differ.ID) map[string]any {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.live[id]
}

// observe stores what was read of an object. If that is older than the answer to a write, it is not
// stored, and observe returns both generations.
func (o *appliedObjects) observe(id differ.ID, live map[string]any) (written, seen int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, before := unstructured.Unstructured{Object: live}, unstructured.Unstructured{Object: o.live[id]}
	if live == nil || o.live[id] != nil && now.GetUID() == before.GetUID() && now.GetGeneration() < before.GetGeneration() {
		return before.GetGeneration(), now.GetGeneration()
	}
	o.live[id] = live
	return 0, 0
}
