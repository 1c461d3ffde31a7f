package delivery

// beginFirstReconcile begins the first reconcile of a cluster. It ends when each component was reconciled.
func (a *agent) beginFirstReconcile(leave func()) {
	names := a.components()
	a.mu.Lock()
	a.unseen, a.leave = make(map[string]bool, len(names)), leave
	a.link.cache.Expect(names)
	for _, name := range names {
		a.unseen[name] = true
	}
	a.mu.Unlock()
	if len(names) == 0 {
		leave()
	}
}

// markReconciled notes that a component was reconciled.
func (a *agent) markReconciled(component string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.unseen, component)
	if len(a.unseen) == 0 && a.leave != nil {
		a.leave()
		a.unseen, a.leave = nil, nil
	}
}

// endFirstReconcile ends the first reconcile early, because the cluster became unreachable.
func (a *agent) endFirstReconcile() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leave != nil {
		a.leave()
		a.unseen, a.leave = nil, nil
	}
}
