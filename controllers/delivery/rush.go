package delivery

import (
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"
)

const (
	// manyLooks leave behind memory that is worth giving back.
	manyLooks = 1000
	// rushOver is how long nothing was looked at when a rush of looks is over.
	rushOver = 5 * time.Second
	// rushGarbage is how much garbage a rush may make before it is collected, in
	// percent of what is needed: half of Go's default.
	rushGarbage = 50
	goGarbage   = 100
)

// rush sees when many components were looked at, and none any more: at the start, and
// after a change of everything. Go would keep for minutes, or for ever, the memory
// that this took: three times what the process needs at rest.
type rush struct {
	looks  atomic.Int64
	begins func()
	over   *time.Timer
}

// newRush begins with a rush: what a start learns stays. It ends when nothing was
// looked at for a while.
func newRush(begins func(), over func(many bool)) *rush {
	r := &rush{begins: begins}
	r.over = time.AfterFunc(rushOver, func() { over(r.looks.Swap(0) >= manyLooks) })
	r.over.Stop() // the first look is still to come
	begins()
	return r
}

// looked counts a look.
func (r *rush) looked() {
	if r.looks.Add(1) == manyLooks {
		r.begins()
	}
	r.over.Reset(rushOver)
}

// thrift returns what has garbage collected sooner in a rush, and what ends that, packs
// and gives back to the operating system what is free. What stays of a rush lies among
// its garbage, and Go moves nothing: the less there is, the fewer pages are kept. Who
// has set GOGC has chosen.
func thrift(pack func()) (begins func(), over func(many bool)) {
	collect := func(int) {}
	if os.Getenv("GOGC") == "" {
		collect = func(percent int) { debug.SetGCPercent(percent) }
	}
	return func() { collect(rushGarbage) }, func(many bool) {
		collect(goGarbage)
		if many {
			pack()
			debug.FreeOSMemory()
		}
	}
}
