package delivery

import (
	"os"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// manyLooks leave behind memory that is worth giving back.
	manyLooks = 1000
	// A rush is over when there were no more than fewLooks in the last rushOver: what
	// something keeps writing to is looked at every second or two.
	fewLooks = 50
	rushOver = 5 * time.Second
	// Every someLooks it is judged by all looks of the rush whether it learns or
	// writes: of components that are written every other look writes.
	someLooks = 100
	// rushGarbage is how much garbage may be made before it is collected while much is
	// learnt, in percent of what is needed: half of Go's default.
	rushGarbage = 50
	goGarbage   = 100
)

// rush sees when many components are looked at, and few any more: at the start, and
// after a change of everything. Go would keep for minutes, or for ever, the memory
// that this took: three times what the process needs at rest.
type rush struct {
	// learns is told when a rush begins in which most looks find what they want, and
	// when it ends or begins to write.
	learns func(bool)
	over   func() // of many looks

	mu                    sync.Mutex
	looks, writes, recent int
	learning              bool
	running               bool // the timer
	end                   *time.Timer
}

// newRush begins with a rush: what a start learns stays.
func newRush(learns func(bool), over func()) *rush {
	r := &rush{learns: learns, over: over, learning: true}
	r.end = time.AfterFunc(rushOver, r.passed)
	r.end.Stop() // the first look is still to come
	learns(true)
	return r
}

// looked counts a look, and whether it wrote.
func (r *rush) looked(wrote bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looks++
	r.recent++
	if wrote {
		r.writes++
	}
	if r.looks%someLooks == 0 {
		r.learn(4*r.writes <= r.looks && (r.learning || r.looks >= manyLooks))
	}
	if !r.running {
		r.running = true
		r.end.Reset(rushOver)
	}
}

// passed ends the rush, or has it go on.
func (r *rush) passed() {
	if r.ended() >= manyLooks {
		r.over()
	}
}

// ended returns the looks of a rush that has ended.
func (r *rush) ended() (looks int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.recent > fewLooks {
		r.recent = 0
		r.end.Reset(rushOver)
		return 0
	}
	looks = r.looks
	r.looks, r.writes, r.recent, r.running = 0, 0, 0, false
	r.learn(false)
	return looks
}

func (r *rush) learn(learning bool) {
	if learning != r.learning {
		r.learning = learning
		r.learns(learning)
	}
}

// thrift returns what has garbage collected sooner while much is learnt, and what
// packs and gives back to the operating system what is free. What stays lies among
// garbage, and Go moves nothing: the less there is, the fewer pages are kept. Who has
// set GOGC has chosen.
func thrift(pack func()) (learns func(bool), over func()) {
	learns = func(bool) {}
	if os.Getenv("GOGC") == "" {
		learns = func(learning bool) {
			debug.SetGCPercent(map[bool]int{true: rushGarbage, false: goGarbage}[learning])
		}
	}
	return learns, func() {
		pack()
		debug.FreeOSMemory()
	}
}
