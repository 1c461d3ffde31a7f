package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/objectcache"
	"github.com/keelson-io/keelson/registry/window"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Freeze is one file under freezes/. Its zero value freezes everything.
type Freeze struct {
	Name    string
	Spec    v1alpha1.Freeze
	Windows window.Windows
	// Problems block each delivery that the freeze may cover, because the time of the freeze is
	// unknown.
	Problems yamlfile.Problems

	selector labels.Selector // nil: the clusters can't be known
	file     string
}

// At returns the file of the freeze.
func (z *Freeze) At() yamlfile.Position { return yamlfile.Position{File: z.file} }

// Concerns reports whether a freeze covers, or may cover, components of a cluster.
func (z *Freeze) Concerns(c *Cluster) bool {
	return z.selector == nil || z.selector.Matches(labels.Set(c.Spec.Labels))
}

// Frozen returns why changes from git may not reach a component of a cluster at a time. The reason
// is "" if they may. until is when time alone can change the answer; zero for never.
func (f *Fleet) Frozen(c *Cluster, component string, now time.Time) (reason string, until time.Time) {
	z, until := f.FrozenBy(c, component, now)
	if z == nil {
		return "", until
	}
	return fmt.Sprintf("%s (%s)", z.Spec.Reason, z.file), until
}

// FrozenBy returns the first freeze that holds, or nil, and until when the answer is valid.
func (f *Fleet) FrozenBy(c *Cluster, component string, now time.Time) (by *Freeze, until time.Time) {
	for _, z := range f.Freezes {
		if !z.mayMatch(c, component) {
			continue
		}
		holds, changes := z.at(now)
		if !changes.IsZero() && (until.IsZero() || changes.Before(until)) {
			until = changes
		}
		if holds && by == nil {
			by = z
		}
	}
	return by, until
}

// at reports whether a freeze holds at a time, and when this changes.
func (z *Freeze) at(now time.Time) (holds bool, changes time.Time) {
	var from, until time.Time
	if z.Spec.From != nil {
		from = z.Spec.From.Time
	}
	if z.Spec.Until != nil {
		until = z.Spec.Until.Time
	}
	switch {
	case len(z.Problems) > 0: // the time is unknown
		return true, time.Time{}
	case now.Before(from):
		return false, from
	case !until.IsZero() && !now.Before(until):
		return false, time.Time{}
	}
	_, holds = z.Windows.At(now)
	changes = z.Windows.Until(now)
	if !until.IsZero() && (changes.IsZero() || changes.After(until)) {
		changes = until
	}
	return holds, changes
}

// mayMatch reports whether a freeze covers, or may cover, a component on a cluster.
func (z *Freeze) mayMatch(c *Cluster, component string) bool {
	return z.Concerns(c) && (len(z.Spec.Components) == 0 || slices.Contains(z.Spec.Components, component))
}

// readFreezes reads freezes/.
func (l *loader) readFreezes(ctx context.Context) error {
	files, unread, err := topFolder[freezeFile]{name: "freezes", kind: v1alpha1.KindFreeze, decode: decodeFreeze, strict: true}.read(ctx, l.files)
	if err != nil {
		return err
	}
	l.block(unread...)
	for _, f := range files {
		z, err := l.newFreeze(f)
		if err != nil {
			return err
		}
		l.report(z.Problems...)
		l.fleet.Freezes = append(l.fleet.Freezes, z)
	}
	return nil
}

func (l *loader) newFreeze(f topFile[freezeFile]) (*Freeze, error) {
	broken := &Freeze{Name: f.stem, file: f.Path, Problems: f.problems}
	if f.content == nil {
		return broken, nil
	}
	says, vague := f.content, f.content.vague
	for i, component := range says.spec.Components {
		if p := l.versions.nowhere(component, says.componentsAt[i].In(f.Path, "")); p != nil {
			broken.Problems = append(broken.Problems, *p)
			vague = true // any component may be meant
		}
	}
	if len(broken.Problems) == 0 {
		return objectcache.Get(l.files.cache, objectcache.Key{Job: "freeze", Hash: f.Hash, Name: f.Path}, func() (*Freeze, error) {
			return &Freeze{Name: f.stem, Spec: says.spec, Windows: says.windows, selector: says.selector, file: f.Path}, nil
		})
	}
	broken.Spec, broken.selector = says.spec, says.selector
	broken.Spec.Reason = cmp.Or(says.spec.Reason, "it is broken")
	if vague {
		broken.Spec.Components = nil
	}
	return broken, nil
}

// brokenFreezes returns the freezes with problems.
func (l *loader) brokenFreezes() []*Freeze {
	return slices.DeleteFunc(slices.Clone(l.fleet.Freezes), func(z *Freeze) bool { return len(z.Problems) == 0 })
}

// checkFreezes blocks a delivery that a broken freeze may cover.
func (r *clusterReader) checkFreezes(d *Delivery) {
	for _, z := range r.made.frozen {
		if z.mayMatch(r.cluster, d.Component) {
			d.Problems = append(d.Problems, z.Problems...) // reported already
		}
	}
}
