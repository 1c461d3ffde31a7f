package delivery

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/keelson-io/keelson/applier/span"
	"github.com/keelson-io/keelson/controllers/pace"
	"github.com/keelson-io/keelson/registry"
)

// fleetReader reads the fleet from git. mu guards the fields below it; loads come one at a time.
type fleetReader struct {
	repo     *registry.Repo
	revision string // empty: the default branch
	pace     *pace.Pace
	now      func() time.Time
	tracer   trace.TracerProvider // nil: no tracing
	// read is called with the duration and the result of each read.
	read func(took time.Duration, err error)

	mu    sync.Mutex
	seen  bool            // a revision was read
	fleet *registry.Fleet // the last revision, which is being delivered
}

// current returns the last revision that next returned; nil: none yet.
func (r *fleetReader) current() *registry.Fleet {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fleet
}

// hasRead reports whether a revision was read, by load or next.
func (r *fleetReader) hasRead() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// next reads git. A new revision becomes the current one.
func (r *fleetReader) next(ctx context.Context) (fleet *registry.Fleet, isNew bool, err error) {
	fleet, err = r.load(ctx)
	if err != nil {
		return nil, false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	isNew = fleet != r.fleet
	r.fleet = fleet
	return fleet, isNew, nil
}

// load reads the current state of git. Tags appear and move without a commit, so the same commit
// may give another Fleet. The pointer stays the same only when nothing is new.
func (r *fleetReader) load(ctx context.Context) (fleet *registry.Fleet, err error) {
	ctx, end := r.begin(ctx)
	defer func() { end(fleet, err) }()
	if err := r.repo.Git().Fetch(ctx); err != nil {
		return nil, err
	}
	if fleet, err = r.repo.Load(ctx, r.revision); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = true
	return fleet, nil
}

// begin starts the span and the timer of a read of the fleet repository. Call the returned
// function when the read has ended.
func (r *fleetReader) begin(ctx context.Context) (context.Context, func(*registry.Fleet, error)) {
	began := r.now()
	ctx, s := span.Root(ctx, r.tracer, "fetch")
	return ctx, func(f *registry.Fleet, err error) {
		if err == nil {
			s.Set(span.Revision, f.Revision)
		}
		s.End(err)
		r.read(r.now().Sub(began), err)
	}
}
