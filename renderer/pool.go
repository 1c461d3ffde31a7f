package renderer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/keelson-io/keelson/renderer/sandbox"
)

// PoolOptions bound the resources of rendering. Zero values mean defaults.
type PoolOptions struct {
	// Program is started with Args, and calls [Work] with its standard input and
	// its file 3. Default: this program.
	Program string
	Args    []string
	// Workers is the number of renders at the same time. As many more may run after they have taken
	// a second. Default: GOMAXPROCS.
	Workers int
	// Timeout of one render, by the wall clock. Default: 30s.
	Timeout time.Duration
	// Memory in bytes that a worker may take above what it starts with.
	// Default: 512 MiB.
	Memory int64
	// MaxOutput in bytes that a chart may render to. Default: 16 MiB.
	MaxOutput int64
	// Idle is how long a worker without a job is kept. Default: 1m.
	Idle time.Duration
}

const (
	defaultTimeout = 30 * time.Second
	defaultMemory  = 512 << 20
	defaultIdle    = time.Minute
	// lifeRenders times the timeout is the processor time of a worker's life. The kernel then ends
	// a worker that its parent could not end.
	lifeRenders = 20
	// slowAfter is when a render releases its slot. The largest public charts take a third of that
	// time.
	slowAfter = time.Second
	// startTimeout bounds the start of a worker, even on a very busy machine.
	startTimeout = time.Minute
)

// Pool is a [Renderer] that runs templates in worker processes, as [Engine] does in its own
// process. A chart that never ends, or takes all memory, ends only its worker. Workers are reused,
// so a well-behaved chart costs two pipes and no process.
type Pool struct {
	options PoolOptions
	slots   chan struct{} // holds a token for each render in progress,
	slow    chan struct{} // or here once the render has taken long

	mu     sync.Mutex
	idle   []*worker // the most recently used last
	timer  *time.Timer
	closed bool
	stats  PoolStats
	// isolation is the index of the first entry of [sandbox.Isolations] that this kernel is known to allow.
	isolation int
}

// PoolStats count what a [Pool] did since it was made.
type PoolStats struct {
	Renders int64 // jobs that were answered
	Started int64 // workers
	Killed  int64 // workers that exceeded a limit, or died
}

// NewPool returns a pool. It starts no worker before the first render.
func NewPool(o PoolOptions) *Pool {
	o.Workers = cmp.Or(o.Workers, runtime.GOMAXPROCS(0))
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Memory = cmp.Or(o.Memory, defaultMemory)
	o.MaxOutput = cmp.Or(o.MaxOutput, defaultMaxOutput)
	o.Idle = cmp.Or(o.Idle, defaultIdle)
	return &Pool{options: o, slots: make(chan struct{}, o.Workers), slow: make(chan struct{}, o.Workers)}
}

var _ Renderer = (*Pool)(nil)

// Stats returns the counts.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Close ends the workers. A render in progress ends its own worker.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.endIdle()
}

// Render implements [Renderer].
func (p *Pool) Render(ctx context.Context, r Request) (*Target, error) {
	return render(ctx, r, p.options.MaxOutput, p.run)
}

// run lets a worker do a job.
func (p *Pool) run(ctx context.Context, j *job) (*Target, *Error) {
	done, err := p.turn(ctx)
	if err != nil {
		return nil, interrupted(j.version(), err)
	}
	defer done()
	w, err := p.acquire(ctx)
	if err != nil {
		e := newError(j.version(), chartPosition(j.version(), "Chart.yaml", 0), "no worker can be started to render it: "+err.Error(), err)
		e.Transient = true
		return nil, e
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.options.Timeout, errRenderTimeout)
	defer cancel()
	a, err := w.do(ctx, j)
	p.mu.Lock()
	if err == nil {
		p.stats.Renders++
	} else {
		p.stats.Killed++
	}
	p.mu.Unlock()
	if err != nil {
		w.end()
		return nil, p.postMortem(ctx, w, j, err)
	}
	p.put(w)
	if a.Failed != nil {
		e := newError(j.version(), a.Failed.At, a.Failed.Message, nil)
		e.violations = a.Failed.Violations
		return nil, e
	}
	return a.Target, nil
}

// turn waits for a slot. A slow render moves from its slot to one for slow renders, if one is free:
// endless charts must not block the others.
func (p *Pool) turn(ctx context.Context) (done func(), _ error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	held := make(chan chan struct{}, 1) // the slots that have this render's token
	held <- p.slots
	timer := time.AfterFunc(slowAfter, func() {
		slots, ok := <-held
		if !ok {
			return // the render has ended
		}
		select {
		case p.slow <- struct{}{}:
			<-slots
			slots = p.slow
		default:
		}
		held <- slots
	})
	return func() {
		timer.Stop()
		slots := <-held
		close(held)
		<-slots
	}, nil
}

// acquire returns an idle worker, or a new one.
func (p *Pool) acquire(ctx context.Context) (*worker, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		w := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return w, nil
	}
	p.mu.Unlock()
	return p.start(ctx)
}

// put keeps a worker for the next job, unless it has used half of its limits: leftovers of one
// chart must not end the next render.
func (p *Pool) put(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || w.used.CPU > lifeRenders/2*p.options.Timeout || w.used.Memory > p.options.Memory/2 {
		go w.end()
		return
	}
	p.idle = append(p.idle, w)
	if p.timer == nil {
		p.timer = time.AfterFunc(p.options.Idle, p.endIdle)
	} else {
		p.timer.Reset(p.options.Idle)
	}
}

func (p *Pool) endIdle() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, w := range idle {
		w.end()
	}
}

// start starts a worker, with the best isolation that the kernel allows.
func (p *Pool) start(ctx context.Context) (*worker, error) {
	p.mu.Lock()
	first := p.isolation
	p.mu.Unlock()
	ways := sandbox.Isolations()
	var failed error
	for i := first; i < len(ways); i++ {
		w, err := startWorker(ctx, p.options.Program, p.options.Args, ways[i])
		if err != nil {
			failed = err
			continue
		}
		p.mu.Lock()
		p.isolation = max(p.isolation, i)
		p.stats.Started++
		p.mu.Unlock()
		if err := w.greet(ctx, sandbox.Limits{Memory: p.options.Memory, CPU: lifeRenders * p.options.Timeout}, startTimeout); err != nil {
			w.end()
			return nil, fmt.Errorf("%w%s", err, w.said())
		}
		return w, nil
	}
	return nil, failed
}

// errRenderTimeout is the cause when the context of a render ended because the render took too
// long.
var errRenderTimeout = errors.New("the render took too long")

// postMortem explains why a worker died during a job.
func (p *Pool) postMortem(ctx context.Context, w *worker, j *job, cause error) *Error {
	v := j.version()
	fail := func(transient bool, format string, args ...any) *Error {
		e := newError(v, chartPosition(v, "Chart.yaml", 0), fmt.Sprintf(format, args...), cause)
		e.Transient = transient
		return e
	}
	used := w.died() - w.used.CPU
	switch words := w.lastWords.String(); {
	case errors.Is(context.Cause(ctx), errRenderTimeout):
		// A busy machine is not the chart's fault, so the render may be tried again.
		return fail(used < p.options.Timeout/4,
			"rendering took longer than %s and was ended: does a template loop without end?%s", p.options.Timeout, j.suspects(enormous))
	case ctx.Err() != nil:
		return interrupted(v, ctx.Err())
	case strings.Contains(words, "stack overflow"):
		return fail(false, "the templates call each other without end, and were ended%s", j.suspects(recursive))
	case w.outOfMemory():
		return fail(false, "rendering needs more than %d MiB and was ended: does a template make a huge text or list, or render itself?%s",
			p.options.Memory>>20, j.suspects(enormous))
	case w.crashed():
		// Go's runtime, and the C library under it, have more messages for a lack of memory than
		// those above.
		return fail(false, "rendering crashed and was ended: does a template take all memory, or render itself?%s%s", j.suspects(enormous), w.said())
	case errors.Is(cause, errFrameTooLarge):
		return fail(false, "the target is too large: %v", cause)
	}
	return fail(true, "the worker that rendered it died (%s)%s", w.cmd.ProcessState, w.said())
}
