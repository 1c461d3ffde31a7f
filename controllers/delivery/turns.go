package delivery

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// learners bounds how many clusters are learnt at once.
	learners = 16
	// relearners bounds the same for those that could not be learnt before: were
	// they many, and hung, the others would wait for them.
	relearners = 4
	// learnFor bounds how long one of them may hold up the others. Most need a
	// second or two.
	learnFor = 20 * time.Second
	// firstLooks bounds, for each processor, how many clusters are looked at for the
	// first time at once: of those all records and objects are in memory.
	firstLooks = 2
	// firstLookFor bounds how long one of them may hold up the others.
	firstLookFor = 5 * time.Second
	// looks bounds how many components are looked at at once: each holds what it
	// compares, encodes and sends, and a few keep all processors busy while their
	// requests are on the way.
	looks = 64
	// lookFor bounds how long one of them may hold up the others. What takes longer
	// waits for a cluster, and has its memory by then.
	lookFor = time.Second
)

// turns are what clusters take of what they share: the process itself.
type turns struct{ learn, relearn, first, look lane }

func newTurns() turns {
	return turns{
		learn: newLane(learners, learnFor), relearn: newLane(relearners, learnFor),
		first: newLane(firstLooks*runtime.GOMAXPROCS(0), firstLookFor), look: newLane(looks, lookFor),
	}
}

// lane lets some at a time through, in the order in which they came.
type lane struct {
	slots chan struct{}
	hold  time.Duration
}

func newLane(width int, hold time.Duration) lane { return lane{make(chan struct{}, width), hold} }

// take waits for a turn. It ends with leave, which may be called more than once,
// or when it lasts too long: who hangs holds up nobody. The error is that of ctx.
func (l lane) take(ctx context.Context) (leave func(), err error) {
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	done := sync.OnceFunc(func() { <-l.slots })
	late := time.AfterFunc(l.hold, done)
	return func() {
		late.Stop()
		done()
	}, nil
}

// scarce reports whether somebody has to wait.
func (l lane) scarce() bool { return len(l.slots) == cap(l.slots) }

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
