package delivery

import (
	"context"
	"sync"
	"time"
)

const (
	// firstLooks bounds how many clusters are learnt at once: of those all objects
	// are in memory.
	firstLooks = 16
	// secondLooks bounds the same for those that could not be learnt before: were
	// they many, and hung, the others would wait for them.
	secondLooks = 4
	// turnFor bounds how long one of them may hold up the others. Most need a
	// second or two.
	turnFor = 20 * time.Second
)

// turns are taken by clusters that are to be learnt.
type turns struct{ first, second chan struct{} }

func newTurns() turns {
	return turns{first: make(chan struct{}, firstLooks), second: make(chan struct{}, secondLooks)}
}

// take waits for a turn. It ends with leave, which may be called more than once,
// or when it lasts too long; the error is that of ctx.
func (t turns) take(ctx context.Context, again bool) (leave func(), err error) {
	turn := t.first
	if again {
		turn = t.second
	}
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	done := sync.OnceFunc(func() { <-turn })
	late := time.AfterFunc(turnFor, done)
	return func() {
		late.Stop()
		done()
	}, nil
}

// look begins the first look at a cluster, which ends when each component was
// looked at.
func (a *agent) look(leave func()) {
	names := a.components()
	a.mu.Lock()
	a.unseen, a.leave = make(map[string]bool, len(names)), leave
	a.link.cache.expect(names)
	for _, name := range names {
		a.unseen[name] = true
	}
	a.mu.Unlock()
	if len(names) == 0 {
		leave()
	}
}

// seen notes that a component was looked at.
func (a *agent) seen(component string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.unseen, component)
	if len(a.unseen) == 0 && a.leave != nil {
		a.leave()
		a.unseen, a.leave = nil, nil
	}
}

// seenAll ends the first look: it does not go on for now.
func (a *agent) seenAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leave != nil {
		a.leave()
		a.unseen, a.leave = nil, nil
	}
}
