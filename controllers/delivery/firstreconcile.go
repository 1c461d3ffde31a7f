package delivery

import "sync"

// firstReconcile is the first reconcile of a cluster. It holds a slot until each component was
// reconciled once. mu guards its fields.
type firstReconcile struct {
	mu sync.Mutex
	// outstanding are the components whose first reconcile is outstanding.
	outstanding map[string]bool
	// leave releases the slot; nil: there is none.
	leave func()
}

// begin begins the first reconcile of components, with a slot that leave releases.
func (f *firstReconcile) begin(components []string, leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outstanding, f.leave = make(map[string]bool, len(components)), leave
	for _, name := range components {
		f.outstanding[name] = true
	}
	if len(components) == 0 {
		f.endLocked()
	}
}

// reconciled notes that a component was reconciled.
func (f *firstReconcile) reconciled(component string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if delete(f.outstanding, component); len(f.outstanding) == 0 {
		f.endLocked()
	}
}

// end ends the first reconcile early, because the cluster became unreachable.
func (f *firstReconcile) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked()
}

func (f *firstReconcile) endLocked() {
	if f.leave != nil {
		f.leave()
	}
	f.outstanding, f.leave = nil, nil
}
