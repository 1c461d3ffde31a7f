// Package expectations keeps a controller from deciding on what it has changed since:
// what its informer shows may be older than its own last write.
//
// One number does for creations, updates and deletions. A resourceVersion counts up over
// all objects of a resource, and a watch brings events in its order: an informer that has
// shown a version has shown all that came before.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
package expectations

import (
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Patience is after how long a write counts as seen: an informer that lists anew can
// swallow a life that was short, and then brings no event as late as that.
const Patience = 30 * time.Second

// Expectations are of one resource: of Pods, say. They are safe for concurrent use.
type Expectations struct {
	now func() time.Time

	mu     sync.Mutex
	seen   uint64
	writes map[types.UID]write // by owner; those that were not seen
}

type write struct {
	version uint64
	at      time.Time
}

// New returns expectations of a resource of which nothing was seen.
func New(now func() time.Time) *Expectations {
	return &Expectations{now: now, writes: map[types.UID]write{}}
}

// Wrote takes in what the API server answered to a creation, an update or a deletion
// on behalf of an owner.
func (e *Expectations) Wrote(owner types.UID, answer metav1.Object) {
	version := versionOf(answer)
	e.mu.Lock()
	defer e.mu.Unlock()
	if version > e.seen && version > e.writes[owner].version {
		e.writes[owner] = write{version, e.now()}
	}
}

// Saw takes in an object as the informer's event brought it, also that of a deletion.
func (e *Expectations) Saw(o metav1.Object) {
	version := versionOf(o)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = max(e.seen, version)
}

// Waits reports whether the informer is behind what was written for an owner.
func (e *Expectations) Waits(owner types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, ok := e.writes[owner]
	if !ok {
		return false
	}
	if last.version > e.seen && e.now().Sub(last.at) < Patience {
		return true
	}
	delete(e.writes, owner)
	return false
}

// versionOf is 0 of what is no number, for which nobody waits.
func versionOf(o metav1.Object) uint64 {
	n, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
