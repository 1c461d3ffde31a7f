package delivery

import "sync"

const (
	// fewPlaces are how many components of one cluster are worked on at once when it
	// has had nothing to do, and mostPlaces while looks come to their end. More at once
	// make an API server and its etcd work in larger batches.
	fewPlaces  = 4
	mostPlaces = 32
)

// window gives out the places at one cluster, as TCP does on one connection: it
// opens by one with each look that ends, and closes by one where turns were scarce.
// So a cluster that hangs is given little of what others wait for, too, and of
// hundreds with much to do each takes as few as it can.
type window struct {
	mu         sync.Mutex
	ended      *sync.Cond
	open, busy int
}

func newWindow() *window {
	w := &window{open: fewPlaces}
	w.ended = sync.NewCond(&w.mu)
	return w
}

// wait waits until one more may begin. One goroutine alone may wait, and begin.
func (w *window) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.busy >= w.open {
		w.ended.Wait()
	}
}

func (w *window) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy++
}

func (w *window) end(scarce bool) {
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
