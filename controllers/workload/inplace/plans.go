package inplace

import (
	"sync"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// Plans caches plans between revisions, so that each is made once. It is safe for concurrent
// use.
type Plans struct {
	options Options

	mu  sync.Mutex
	all map[[2]string]*Plan // by both names
}

// NewPlans returns an empty cache.
func NewPlans(o Options) *Plans { return &Plans{options: o, all: map[[2]string]*Plan{}} }

// Between returns the plan from one revision to another. It returns nil if the update cannot be
// made in place, or a revision is nil or cannot be parsed.
func (p *Plans) Between(from, to *appsv1.ControllerRevision) *Plan {
	if from == nil || to == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := [2]string{from.Name, to.Name}
	plan, known := p.all[key]
	if known {
		return plan
	}
	was, err := revision.Template(from)
	is, toErr := revision.Template(to)
	if err == nil && toErr == nil {
		plan, _ = NewPlan(was, is, p.options)
	}
	p.all[key] = plan
	return plan
}
