package applier

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// Desired is one component as git wants it on a cluster.
type Desired struct {
	Component string
	Version   string // tag name without the component, or HEAD
	Tree      string // git hash of the component's folder at the version
	Revision  string // commit of the fleet repository
	Namespace string
	// ServiceAccount of the Namespace that writes the objects; empty: Keelson's own.
	ServiceAccount string
	Target         *renderer.Target
	Rules          differ.Rules
	Health         health.Rules
	Labels         map[string]string // of the cluster, for the rules' conditions
	Adopt          bool
	Limits         *differ.ProjectLimits // the objects that the component may have; nil: any
	Drift          v1alpha1.Drift
	Approved       map[string][]string // hashes of differences that git approves, by object
	Approvals      []differ.Approval   // the same approvals, with their positions
	// Absent: git wants no objects of the component in the cluster. Version, Rules and the hooks of
	// the Target apply to the removal. The objects of the Target are ignored.
	Absent bool
	// Others returns what the other components of the cluster want. It is called only before a
	// deletion or a takeover. Nil: there are no other components.
	Others func(context.Context) (*Claims, error)
	Pin    *records.Pin // pin that the target comes from; nil: the target is what git wants now
	// From is the resourceVersion of the record that was read to find the target, as
	// [Cluster.RecordVersion] returns it. If the record has another version, planning fails with
	// [ErrStale]: the record may have a new pin. Empty: no record was read.
	From string
}

// TagMovedError reports that a version's tag names another tree than the applied one. A version
// must not change, so nothing is done.
type TagMovedError struct {
	Component, Version     string
	AppliedTree, TreeInGit string
}

func (e *TagMovedError) Error() string {
	return fmt.Sprintf("tag %s/%s was moved: the cluster runs tree %.12s under this version, and git now has %.12s; publish the change as a new version",
		e.Component, e.Version, e.AppliedTree, e.TreeInGit)
}

// EmptyTargetError reports that a component with objects in the cluster renders none. A mistake in
// the chart or its values is more likely than a wish to delete everything, so nothing is done.
type EmptyTargetError struct {
	Component, Version string
	Recorded           int
}

func (e *EmptyTargetError) Error() string {
	return fmt.Sprintf("component %s %s renders no object, and the cluster has %d of it: nothing is pruned because of an empty render",
		e.Component, e.Version, e.Recorded)
}

// Prepared is a plan with the data that is needed to carry it out.
type Prepared struct {
	Plan differ.Plan
	// Health of the component's live objects, as the plan read them.
	Health []health.Result
	// Applied is the version that the cluster's record names.
	Applied string

	want     Desired
	states   []differ.State // in the order of the plan's changes
	policy   differ.Policy
	record   *records.Stored
	mappings map[differ.ID]*meta.RESTMapping
	schemas  differ.Schemas
	claims   *Claims  // of the other components; nil: not needed so far
	as       *account // the account that writes the component's objects
	// unasked is the object whose dry run was skipped; the zero ID: none.
	unasked differ.ID
	// fromSettledCache: nothing has changed since the component was found settled, so nothing was read.
	fromSettledCache bool
}

// Settled reports whether there is nothing to write, neither to the component's
// objects nor to its record.
func (p *Prepared) Settled() bool {
	return p.fromSettledCache || p.Plan.Settled() && !p.recordStale() && !p.pinStale() && !p.hooksLeft()
}

// recordStale reports whether only the record must be written: all objects are as wanted, but the
// record names another target, an apply that was not complete, or old intents. A stale mark, or any
// record of an absent component, counts, too.
func (p *Prepared) recordStale() bool {
	r := &p.record.Record
	if p.want.Absent {
		return p.record.ResourceVersion != ""
	}
	if p.markStale() {
		return true
	}
	return !p.Plan.Differs() &&
		(r.Version != p.want.Version || r.Tree != p.want.Tree || r.TargetHash != p.want.Target.Hash || r.Unfinished || r.Open())
}

// statesOf joins the recorded and the wanted objects by ID.
func statesOf(recorded []records.Object, target *renderer.Target) ([]differ.State, map[differ.ID]schema.GroupVersionKind) {
	all := max(len(recorded), len(target.Objects)) // exact for a settled component
	states := make([]differ.State, 0, all)
	versions := make(map[differ.ID]schema.GroupVersionKind, all)
	byID := make(map[differ.ID]*records.Object, len(recorded))
	for i := range recorded {
		byID[recorded[i].ID] = &recorded[i]
	}
	for _, o := range target.Objects {
		id, gvk := differ.Identify(o.Content)
		s := differ.State{ID: id, Target: o}
		// Only the field owners show whether an intended object was created.
		switch r := byID[id]; {
		case r == nil:
		case r.Intent == records.IntentCreate || r.Intent == records.IntentReplace:
			s.Former = r.Former()
		default:
			s.Recorded, s.RecordedUID, s.Normal, s.Uncertain = r.Content, r.UID, r.Normal, r.Intent == records.IntentUpdate
		}
		states = append(states, s)
		versions[id] = gvk
	}
	for id, r := range byID {
		if _, wanted := versions[id]; !wanted {
			states = append(states, differ.State{ID: id, Recorded: r.Content, RecordedUID: r.UID})
			versions[id] = schema.FromAPIVersionAndKind(r.APIVersion, id.Kind)
		}
	}
	return states, versions
}

// compare decides about the objects again, by what is known of them now.
func (p *Prepared) compare(ctx context.Context) (err error) {
	if p.Plan, err = differ.Compare(ctx, p.schemas, p.states, p.policy); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	return nil
}

func resourceVersionOf(live map[string]any) string {
	return (&unstructured.Unstructured{Object: live}).GetResourceVersion()
}

// unhealthy returns the objects of a plan that are not healthy.
func (p *Prepared) unhealthy() []health.Unhealthy {
	live := map[differ.ID]map[string]any{}
	for i := range p.Plan.Changes {
		live[p.Plan.Changes[i].ID] = p.Plan.Changes[i].Live
	}
	var out []health.Unhealthy
	for _, h := range p.Health {
		if h.Health != v1alpha1.HealthHealthy {
			out = append(out, health.Unhealthy{Result: h, Live: live[h.ID]})
		}
	}
	return out
}
