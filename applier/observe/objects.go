package observe

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/jsonsize"
)

// GetFunc reads an object of a plan.
type GetFunc func(context.Context, *meta.RESTMapping, *differ.State) (map[string]any, error)

// Objects reads the objects of a cluster for plans.
type Objects struct {
	Reader
	client dynamic.Interface

	mu sync.Mutex
	// distrusted are objects that exist although the reader's cache lacked them.
	distrusted map[differ.ID]bool
}

// NewObjects returns the objects of a cluster.
func NewObjects(reader Reader, client dynamic.Interface) *Objects {
	return &Objects{Reader: reader, client: client, distrusted: map[differ.ID]bool{}}
}

// Reset forgets what was learned of the reader's cache.
func (l *Objects) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.distrusted)
}

// Distrust makes later reads ask the API server for an object that the cache lacks.
func (l *Objects) Distrust(id differ.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.distrusted[id] = true
}

// Current reads an object. An object that the cache lacks counts as new without a request, unless
// it is recorded or doubted. Its creation fails if the object exists.
func (l *Objects) Current(ctx context.Context, m *meta.RESTMapping, s *differ.State) (map[string]any, error) {
	l.mu.Lock()
	doubted := l.distrusted[s.ID]
	l.mu.Unlock()
	live, err := l.Get(ctx, m, s.ID)
	if live != nil || err != nil || s.Recorded == nil && !doubted {
		return live, err
	}
	return Get(ctx, l.client, m, s.ID)
}

// Owned reads an object with its managedFields.
func (l *Objects) Owned(ctx context.Context, m *meta.RESTMapping, s *differ.State) (map[string]any, error) {
	return l.Fresh(ctx, m, s.ID)
}

// Parallel bounds the requests of one component to a cluster that run at the same time.
const Parallel = 8

// observedBytes is how much memory the live objects of one component may take together: a
// plan holds them all. 1,000 Deployments take 20 MiB, ten CRDs of half a megabyte 30 MiB.
const observedBytes = 96 << 20

// Observe reads the live objects of all states that have a mapping.
func (l *Objects) Observe(ctx context.Context, mappings map[differ.ID]*meta.RESTMapping, states []differ.State, get GetFunc) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(Parallel)
	var total atomic.Int64
	for i := range states {
		s := &states[i]
		m := mappings[s.ID]
		if m == nil {
			continue
		}
		g.Go(func() error {
			live, err := get(ctx, m, s)
			if err != nil {
				return fmt.Errorf("observe: %w", err)
			}
			if total.Add(int64(jsonsize.Memory(live))) > observedBytes {
				return fmt.Errorf("observe: with %s the component's objects take more than %d MiB of memory, as the cluster has them: split the component", s.ID, observedBytes>>20)
			}
			s.Live = live
			return nil
		})
	}
	return g.Wait() //nolint:wrapcheck // wrapped above
}
