package delivery

import (
	"context"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// others returns a function that computes what all other components of the cluster claim. The
// function is called only before a deletion or takeover, and renders are cached.
func (r *resolver) others(s snapshot, d *registry.Delivery) func(context.Context) (*applier.Claims, error) {
	return func(ctx context.Context) (*applier.Claims, error) {
		capabilities, err := s.link.cluster.Capabilities(ctx)
		if err != nil {
			return nil, err
		}
		claims := applier.NewClaims()
		defined, err := r.claim(ctx, s, d, capabilities, claims)
		if err != nil {
			return nil, err
		}
		// The target of a component may depend on kinds that another component defines. Until these
		// kinds are served, the component claims both targets.
		later := capabilities.Including(defined...)
		if slices.Equal(later.APIVersions, capabilities.APIVersions) {
			return claims, nil
		}
		_, err = r.claim(ctx, s, d, later, claims)
		return claims, err
	}
}

// claim adds the claims of all deliveries except but, for a cluster with the given capabilities. It
// returns the targets that define kinds. The error is ctx's; failed renders are added as unknown.
func (r *resolver) claim(ctx context.Context, s snapshot, but *registry.Delivery, c renderer.Capabilities, claims *applier.Claims) ([]*renderer.Target, error) {
	var defined []*renderer.Target
	for _, d := range s.cluster.Deliveries {
		if d.Component != but.Component {
			claims.SetLimits(d.Component, applier.LimitsOf(s.fleet, d.Component))
		}
		switch {
		case d.Component == but.Component:
			continue
		case len(d.Problems) > 0:
			claims.AddUnknown(d.Component, problemsMessage(d.Problems))
			continue
		case d.Absent:
			s.delivery = d
			if err := r.claimDue(ctx, s, nil, claims); err != nil {
				return nil, err
			}
			continue
		}
		target, err := r.renderer.Render(ctx, renderer.Request{
			Version: d.Version, Values: d.Values, ImageMirrors: s.cluster.Spec.ImageMirrors, Capabilities: c,
		})
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			claims.AddUnknown(d.Component, err.Error())
			continue
		}
		s.delivery = d
		if err := r.claimOne(ctx, s, target, claims); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(target.Objects, func(o *renderer.Object) bool { return o.Content["kind"] == "CustomResourceDefinition" }) {
			defined = append(defined, target)
		}
	}
	return defined, nil
}

// claimOne adds the claims of a delivery: its target in git, and the target that it is pinned to.
// The error is ctx's.
func (r *resolver) claimOne(ctx context.Context, s snapshot, target *renderer.Target, claims *applier.Claims) error {
	component := s.delivery.Component
	pin, err := s.link.cluster.Pin(ctx, component)
	if pin = pin.Holds(target.Hash); err == nil && pin == nil {
		return r.claimDue(ctx, s, target, claims)
	}
	var want applier.Desired
	if err == nil {
		want, err = r.earlier.Pinned(ctx, s.fleet, s.delivery, pin, r.renderThen(s))
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		claims.Add(component, target)
		claims.AddUnknown(component, err.Error())
	default:
		claims.AddPinned(want, target)
	}
	return nil
}

// claimDue adds the claims of a delivery that is not pinned: its target in git (nil: absent). Until
// that target is released, it adds the delivered version, too. The error is ctx's.
func (r *resolver) claimDue(ctx context.Context, s snapshot, target *renderer.Target, claims *applier.Claims) error {
	hash := v1alpha1.HashAbsent
	if target != nil {
		hash = target.Hash
	}
	v, err := r.decideRelease(ctx, s, hash)
	var has applier.Desired
	if err == nil && v.waits != "" && v.keeps.TargetHash != "" {
		has, err = r.earlier.Delivered(ctx, s.fleet, s.delivery, v.keeps, r.renderThen(s))
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		claims.AddUnknown(s.delivery.Component, err.Error())
	case has.Target != nil:
		claims.AddWaiting(has, target)
		return nil
	}
	if target != nil {
		claims.Add(s.delivery.Component, target)
	}
	return nil
}
