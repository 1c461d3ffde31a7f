package applier

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

type getFunc func(context.Context, *meta.RESTMapping, *differ.State) (map[string]any, error)

// liveObjects reads the objects of a cluster for plans.
type liveObjects struct {
	Reader
	client dynamic.Interface

	mu sync.Mutex
	// distrusted are objects that exist although the reader's cache lacked them.
	distrusted map[differ.ID]bool
}

func newLiveObjects(reader Reader, client dynamic.Interface) *liveObjects {
	return &liveObjects{Reader: reader, client: client, distrusted: map[differ.ID]bool{}}
}

// reset forgets what was learned of the reader's cache.
func (l *liveObjects) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.distrusted)
}

// distrust makes later reads ask the API server for an object that the cache lacks.
func (l *liveObjects) distrust(id differ.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.distrusted[id] = true
}

// current reads an object. An object that the cache lacks counts as new without a request, unless
// it is recorded or doubted. Its creation fails if the object exists.
func (l *liveObjects) current(ctx context.Context, m *meta.RESTMapping, s *differ.State) (map[string]any, error) {
	l.mu.Lock()
	doubted := l.distrusted[s.ID]
	l.mu.Unlock()
	live, err := l.Get(ctx, m, s.ID)
	if live != nil || err != nil || s.Recorded == nil && !doubted {
		return live, err
	}
	return Get(ctx, l.client, m, s.ID)
}

// fresh reads an object with its managedFields.
func (l *liveObjects) fresh(ctx context.Context, m *meta.RESTMapping, s *differ.State) (map[string]any, error) {
	return l.Fresh(ctx, m, s.ID)
}

// observedBytes is how much memory the live objects of one component may take together: a
// plan holds them all. 1,000 Deployments take 20 MiB, ten CRDs of half a megabyte 30 MiB.
const observedBytes = 96 << 20

// observe reads the live objects of all states that have a mapping.
func (l *liveObjects) observe(ctx context.Context, mappings map[differ.ID]*meta.RESTMapping, states []differ.State, get getFunc) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
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
