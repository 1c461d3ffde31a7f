package base

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// Specs counts the changes of specs whose generation stays. The API server counts generations in the
// version of a request, in which some fields of a spec are annotations or labels: a client of v1alpha1
// changes them without a new generation. It is safe for concurrent use.
type Specs struct {
	of func(client.Object) any

	mu      sync.Mutex
	changes map[types.NamespacedName]int64
}

// NewSpecs returns a count without changes. of returns the spec of an object.
func NewSpecs(of func(client.Object) any) *Specs {
	return &Specs{of: of, changes: map[types.NamespacedName]int64{}}
}

// Changes returns how often the spec of an object has changed without a new generation.
func (s *Specs) Changes(o client.Object) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes[client.ObjectKeyFromObject(o)]
}

// Create implements [predicate.Predicate].
func (s *Specs) Create(event.CreateEvent) bool { return true }

// Delete implements [predicate.Predicate].
func (s *Specs) Delete(e event.DeleteEvent) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.changes, client.ObjectKeyFromObject(e.Object))
	return true
}

// Update implements [predicate.Predicate]: a workload is reconciled when its spec has changed.
func (s *Specs) Update(e event.UpdateEvent) bool {
	if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetUID() != e.ObjectNew.GetUID() {
		return true
	}
	if equality.Semantic.DeepEqual(s.of(e.ObjectOld), s.of(e.ObjectNew)) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes[client.ObjectKeyFromObject(e.ObjectNew)]++
	return true
}

// Generic implements [predicate.Predicate].
func (s *Specs) Generic(event.GenericEvent) bool { return true }
