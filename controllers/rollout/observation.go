package rollout

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// observation is the observed state of a Delivery. There is one for each delivery of a fleet, so it keeps
// only the fields in use.
type observation struct {
	uid     types.UID
	version string // its resourceVersion
	wanted  *v1alpha1.WantedDelivery
	hash    string // of the last applied target
	applied string // version
	pinned  string
	sync    v1alpha1.Sync
	health  v1alpha1.Health
	message string
	checks  []v1alpha1.DeliveryCheck
}

func observationOf(d *v1alpha1.Delivery) *observation {
	s := &d.Status
	out := &observation{
		uid: d.UID, version: d.ResourceVersion, wanted: s.Wanted, hash: s.TargetHash, applied: s.AppliedVersion,
		sync: s.Sync, health: s.Health, message: s.Message, checks: s.Checks,
	}
	if s.Sync == v1alpha1.SyncAbsent {
		out.hash = v1alpha1.HashAbsent
	}
	if p := s.Pinned; p != nil {
		out.pinned = fmt.Sprintf("pinned to delivery %d, %s", p.Number, p.Version)
	}
	return out
}

// nothing reports whether nothing was ever applied, or all of it was removed. Of a removal that has
// begun there is no hash, either, and a version.
func (s *observation) nothing() bool { return s.hash == "" && s.applied == "" }

// differs reports whether two observations differ in more than the resourceVersion.
func (s *observation) differs(o *observation) bool {
	x, y := *s, *o
	x.version, y.version = "", ""
	return !reflect.DeepEqual(x, y)
}

// observations holds the observed Deliveries of the components that go through a pipeline. It is safe for
// concurrent use.
type observations struct {
	client client.WithWatch
	// changed is called with each component that has new observations; "": all components.
	changed func(component string)

	mu    sync.Mutex
	known map[string]map[string]*observation // by component and cluster; nil: not read yet
	stop  context.CancelFunc                 // ends the watch
	of    string                             // selector of the watch
}

// maxSelected bounds the names in a selector: it is part of a URL.
const maxSelected = 100

// follow watches the Deliveries of components until the context ends, or until a call with other
// components.
func (s *observations) follow(ctx context.Context, components []string) {
	selector := v1alpha1.LabelComponent + " in (" + strings.Join(components, ",") + ")"
	if len(components) > maxSelected {
		selector = v1alpha1.LabelComponent
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == selector {
		return
	}
	if s.stop != nil {
		s.stop()
	}
	s.of, s.known, s.stop = selector, nil, nil
	if len(components) == 0 {
		return
	}
	ctx, s.stop = context.WithCancel(ctx)
	go watched(ctx, s.client, &v1alpha1.DeliveryList{}, selector, feed[*v1alpha1.Delivery]{
		one: func(d *v1alpha1.Delivery, gone bool) { s.store(ctx, d, gone) },
		all: func(list []*v1alpha1.Delivery) { s.replace(ctx, list) },
	})
}

// at returns the observations of a component by cluster; false: nothing was read yet. The caller
// must not modify the values.
func (s *observations) at(component string) (map[string]*observation, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return copied(s.known[component]), s.known != nil
}

func (s *observations) store(ctx context.Context, d *v1alpha1.Delivery, gone bool) {
	cluster, component := d.Labels[v1alpha1.LabelCluster], d.Labels[v1alpha1.LabelComponent]
	s.mu.Lock()
	if ctx.Err() != nil || s.known == nil { // another watch has begun
		s.mu.Unlock()
		return
	}
	was := s.known[component][cluster]
	var now *observation
	if gone {
		delete(s.known[component], cluster)
	} else {
		now = observationOf(d)
		if s.known[component] == nil {
			s.known[component] = map[string]*observation{}
		}
		s.known[component][cluster] = now
	}
	s.mu.Unlock()
	if was == nil || now == nil || was.differs(now) {
		s.changed(component)
	}
}

// replace stores a full list.
func (s *observations) replace(ctx context.Context, list []*v1alpha1.Delivery) {
	found := map[string]map[string]*observation{}
	for _, d := range list {
		cluster, component := d.Labels[v1alpha1.LabelCluster], d.Labels[v1alpha1.LabelComponent]
		if found[component] == nil {
			found[component] = map[string]*observation{}
		}
		found[component][cluster] = observationOf(d)
	}
	s.mu.Lock()
	if ctx.Err() != nil { // another watch has begun
		s.mu.Unlock()
		return
	}
	s.known = found
	s.mu.Unlock()
	s.changed("")
}

// governed returns the components of a fleet that go through a pipeline, in order.
func governed(f *registry.Fleet) []string {
	seen := map[string]bool{}
	for _, c := range f.Clusters {
		for _, d := range c.Deliveries {
			if _, known := seen[d.Component]; !known {
				seen[d.Component] = f.PipelineOf(d.Component) != nil
			}
		}
	}
	var out []string
	for component, is := range seen {
		if is {
			out = append(out, component)
		}
	}
	slices.Sort(out)
	return out
}
