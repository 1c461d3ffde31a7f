// Package expectations keeps a controller from decisions on outdated data: its informer may be
// older than its own last write.
//
// One number covers creations, updates and deletions. A resourceVersion increases over all
// objects of a resource, and a watch sends events in that order. An informer that has shown a
// version has shown all earlier ones.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
package expectations

import (
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Patience is how long a write is waited for. An informer that relists can miss an object that
// existed only briefly, and then never shows the version of that write.
const Patience = 30 * time.Second

// Expectations track the writes of one resource, such as Pods. They are safe for concurrent use.
type Expectations struct {
	now func() time.Time

	mu     sync.Mutex
	seen   uint64
	writes map[types.UID]write // by owner: the last write that may be unseen
}

type write struct {
	version uint64
	at      time.Time
}

// New returns expectations of a resource without any seen version.
func New(now func() time.Time) *Expectations {
	return &Expectations{now: now, writes: map[types.UID]write{}}
}

// Wrote records the answer of the API server to a creation, an update or a deletion on behalf of
// an owner.
func (e *Expectations) Wrote(owner types.UID, answer metav1.Object) {
	version := versionOf(answer)
	e.mu.Lock()
	defer e.mu.Unlock()
	if version > e.seen && version > e.writes[owner].version {
		e.writes[owner] = write{version, e.now()}
	}
}

// Saw records an object of an informer event, also of a deletion event.
func (e *Expectations) Saw(o metav1.Object) {
	version := versionOf(o)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = max(e.seen, version)
}

// Waits reports whether the informer has not yet shown the last write for an owner. After
// [Patience] it returns false.
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

// versionOf returns the resourceVersion, or 0 if it is not a number. A version of 0 is never
// waited for.
func versionOf(o metav1.Object) uint64 {
	n, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
