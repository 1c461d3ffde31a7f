package delivery

import (
	"os"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// manyLooks is the number of reconciles after which freeing memory is worthwhile.
	manyLooks = 1000
	// A burst is over when at most fewLooks reconciles fell into the last rushOver. A component
	// that is written to continually is reconciled every second or two.
	fewLooks = 50
	rushOver = 5 * time.Second
	// After every someLooks reconciles all reconciles of the burst decide whether it mostly reads
	// or writes. In a burst of changes every second reconcile writes.
	someLooks = 100
	// rushGarbage is the GOGC percentage while a burst mostly reads: half of Go's default.
	rushGarbage = 50
	goGarbage   = 100
)

// burstDetector detects bursts of reconciles, at the start and after a change of everything. Go would keep
// the memory of a burst for minutes, or for ever: three times what the process needs at rest.
type burstDetector struct {
	// learns is called with true when a burst mostly reads, and with false when it ends or begins
	// to write.
	learns func(bool)
	over   func() // called after a burst of manyLooks or more

	mu                    sync.Mutex
	looks, writes, recent int
	learning              bool
	running               bool // whether the timer runs
	end                   *time.Timer
}

// newBurstDetector starts in a burst that reads, because the memory that a start fills stays in use.
func newBurstDetector(learns func(bool), over func()) *burstDetector {
	r := &burstDetector{learns: learns, over: over, learning: true}
	r.end = time.AfterFunc(rushOver, r.passed)
	r.end.Stop() // the first reconcile starts the timer
	learns(true)
	return r
}

// looked counts a reconcile; wrote says whether the reconcile wrote objects.
func (r *burstDetector) looked(wrote bool) {
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

// passed ends the burst, or extends it.
func (r *burstDetector) passed() {
	if r.ended() >= manyLooks {
		r.over()
	}
}

// ended returns the number of reconciles of a finished burst; 0: the burst continues.
func (r *burstDetector) ended() (looks int) {
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

func (r *burstDetector) learn(learning bool) {
	if learning != r.learning {
		r.learning = learning
		r.learns(learning)
	}
}

// newGCTuner returns two functions. learns makes the garbage collector run sooner while a burst mostly
// reads. over packs the renders and returns free memory to the operating system. Go does not move
// objects: less garbage between them means fewer pages in use. A GOGC set by the user is respected.
func newGCTuner(pack func()) (learns func(bool), over func()) {
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
