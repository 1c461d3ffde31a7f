package queue

import "sync"

const (
	// fewPlaces is how many components of one cluster are reconciled at once after the cluster was
	// idle; mostPlaces is the limit while reconciles finish. With more, an API server and its etcd
	// would work in larger batches.
	fewPlaces  = 4
	mostPlaces = 32
)

// ConcurrencyLimit limits concurrent reconciles of one cluster, like the congestion window of TCP. It grows
// by one with each finished reconcile, and shrinks by one if shared slots were scarce. So a hanging
// cluster gets few shared slots, and of hundreds of busy clusters each takes few.
type ConcurrencyLimit struct {
	mu         sync.Mutex
	ended      *sync.Cond
	open, busy int
}

// NewConcurrencyLimit returns the limit of a cluster that is idle.
func NewConcurrencyLimit() *ConcurrencyLimit {
	w := &ConcurrencyLimit{open: fewPlaces}
	w.ended = sync.NewCond(&w.mu)
	return w
}

// Wait waits until one more reconcile may begin. Only one goroutine may call Wait and Begin.
func (w *ConcurrencyLimit) Wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.busy >= w.open {
		w.ended.Wait()
	}
}

// Begin counts a reconcile that begins.
func (w *ConcurrencyLimit) Begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy++
}

// End counts a reconcile that ended. scarce: the slots of all clusters were taken when it began.
func (w *ConcurrencyLimit) End(scarce bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy--
	switch {
	case w.busy == 0:
		w.open = fewPlaces
	case scarce:
		w.open = max(w.open-1, fewPlaces)
	default:
		w.open = min(w.open+1, mostPlaces)
	}
	w.ended.Signal()
}
