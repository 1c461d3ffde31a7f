package delivery

import (
	"runtime/debug"
	"sync/atomic"
	"time"
)

const (
	// manyLooks leave behind memory that is worth giving back.
	manyLooks = 1000
	// rushOver is how long nothing was looked at when a rush of looks is over.
	rushOver = 5 * time.Second
)

// rush sees when many components were looked at, and none any more: at the start, and
// after a change of everything. Go would keep for minutes, or for ever, the memory
// that this took: three times what the process needs at rest.
type rush struct {
	looks atomic.Int64
	over  *time.Timer
}

func newRush(over func()) *rush {
	r := &rush{}
	r.over = time.AfterFunc(rushOver, func() {
		if r.looks.Swap(0) >= manyLooks {
			over()
		}
	})
	return r
}

// looked counts a look.
func (r *rush) looked() {
	if r.looks.Add(1) >= manyLooks {
		r.over.Reset(rushOver)
	}
}

// giveBack collects garbage and gives what is free to the operating system.
func giveBack() { debug.FreeOSMemory() }
