package queue

import (
	"os"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// manyReconciles is the number of reconciles after which freeing memory is worthwhile.
	manyReconciles = 1000
	// A burst is over when at most fewReconciles reconciles fell into the last burstOver. A component
	// that is written to continually is reconciled every second or two.
	fewReconciles = 50
	burstOver     = 5 * time.Second
	// After every sampledReconciles reconciles, all reconciles of the burst decide whether it mostly reads
	// or writes. In a burst of changes every second reconcile writes.
	sampledReconciles = 100
	// burstGOGC is the GOGC percentage while a burst mostly reads: half of Go's default.
	burstGOGC   = 50
	defaultGOGC = 100
)

// BurstDetector detects bursts of reconciles, at the start and after a change of everything. Go would keep
// the memory of a burst for minutes, or for ever: three times what the process needs at rest.
type BurstDetector struct {
	// onReading is called with true when a burst mostly reads, and with false when it ends or begins
	// to write.
	onReading func(bool)
	onEnd     func() // called after a burst of manyReconciles or more

	mu                         sync.Mutex
	reconciles, writes, recent int
	reading                    bool
	running                    bool // whether the timer runs
	end                        *time.Timer
}

// NewBurstDetector starts in a burst that reads, because the memory that a start fills stays in use.
func NewBurstDetector(onReading func(bool), onEnd func()) *BurstDetector {
	r := &BurstDetector{onReading: onReading, onEnd: onEnd, reading: true}
	r.end = time.AfterFunc(burstOver, r.checkEnd)
	r.end.Stop() // the first reconcile starts the timer
	onReading(true)
	return r
}

// Reconciled counts a reconcile; wrote says whether the reconcile wrote objects.
func (r *BurstDetector) Reconciled(wrote bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reconciles++
	r.recent++
	if wrote {
		r.writes++
	}
	if r.reconciles%sampledReconciles == 0 {
		r.setReading(4*r.writes <= r.reconciles && (r.reading || r.reconciles >= manyReconciles))
	}
	if !r.running {
		r.running = true
		r.end.Reset(burstOver)
	}
}

// checkEnd ends the burst, or extends it.
func (r *BurstDetector) checkEnd() {
	if r.endBurst() >= manyReconciles {
		r.onEnd()
	}
}

// endBurst returns the number of reconciles of a finished burst; 0: the burst continues.
func (r *BurstDetector) endBurst() (reconciles int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.recent > fewReconciles {
		r.recent = 0
		r.end.Reset(burstOver)
		return 0
	}
	reconciles = r.reconciles
	r.reconciles, r.writes, r.recent, r.running = 0, 0, 0, false
	r.setReading(false)
	return reconciles
}

func (r *BurstDetector) setReading(reading bool) {
	if reading != r.reading {
		r.reading = reading
		r.onReading(reading)
	}
}

// NewGCTuner returns the two functions of a [BurstDetector] that tune the garbage collector.
//
// onReading makes the collector run sooner while a burst mostly reads. onEnd packs the renders and
// returns free memory to the operating system. Go does not move objects: less garbage between them
// means fewer pages in use. A GOGC set by the user is respected.
func NewGCTuner(pack func()) (onReading func(bool), onEnd func()) {
	onReading = func(bool) {}
	if os.Getenv("GOGC") == "" {
		onReading = func(reading bool) {
			debug.SetGCPercent(map[bool]int{true: burstGOGC, false: defaultGOGC}[reading])
		}
	}
	return onReading, func() {
		pack()
		debug.FreeOSMemory()
	}
}
