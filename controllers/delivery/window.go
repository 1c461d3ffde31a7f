package delivery

import "sync"

const (
	// fewLooksAtOnce are how many components of one cluster are worked on at once when
	// it has had nothing to do, and mostLooksAtOnce while looks come to their end. More
	// at once make an API server and its etcd work in larger batches.
	fewLooksAtOnce  = 4
	mostLooksAtOnce = 32
)

// window bounds what is under way at one cluster, as TCP does on one connection: it
// opens by one with each look that ends, and closes by one where turns were scarce.
// So a cluster that hangs is given little of what others wait for, too, and of
// hundreds with much to do each takes as few as it can.
type window struct {
	mu         sync.Mutex
	ended      *sync.Cond
	open, busy int
}

func newWindow() *window {
	w := &window{open: fewLooksAtOnce}
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
		w.open = fewLooksAtOnce
	case scarce:
		w.open = max(w.open-1, fewLooksAtOnce)
	default:
		w.open = min(w.open+1, mostLooksAtOnce)
	}
	w.ended.Signal()
}
