package applier

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/jsonsize"
	"github.com/keelson-io/keelson/renderer"
)

// parallel bounds the requests of one component to a cluster that run at the same time.
const parallel = 8

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
// record names another target or has old intents. A stale mark, or any record of an absent
// component, counts, too.
func (p *Prepared) recordStale() bool {
	r := &p.record.Record
	if p.want.Absent {
		return p.record.ResourceVersion != ""
	}
	if p.markStale() {
		return true
	}
	return !p.Plan.Differs() &&
		(r.Version != p.want.Version || r.Tree != p.want.Tree || r.TargetHash != p.want.Target.Hash || r.Open())
}

// Plan computes what applying would change. It writes nothing. The error wraps [ErrStale] when the
// record has another version than w.From.
func (c *Cluster) Plan(ctx context.Context, w Desired) (*Prepared, error) {
	p, err := (*Prepared)(nil), c.registerTargetSecrets(w)
	if err == nil {
		p, err = c.plan(ctx, w)
	}
	if err != nil {
		return nil, fmt.Errorf("cluster %s: component %s: %w", c.name, w.Component, err)
	}
	return p, nil
}

func (c *Cluster) plan(ctx context.Context, w Desired) (*Prepared, error) {
	if p := c.settledPlan(ctx, w); p != nil {
		return p, nil
	}
	mark := c.unsettle(w.Component)
	rec, err := c.records.Read(ctx, w.Component)
	if err != nil {
		return nil, err
	}
	if w.From != "" && w.From != rec.ResourceVersion {
		return nil, fmt.Errorf("%w: another writer wrote its record", ErrStale)
	}
	if err := w.checkTarget(rec); err != nil {
		return nil, err
	}
	if w.Absent {
		w.Target = absentFrom(rec, w.Target) // w.Target may be nil
	}
	p := &Prepared{want: w, record: rec, Applied: rec.Version}
	if p.as, err = c.account(w); err != nil {
		return nil, err
	}
	states, versions := statesOf(rec.Objects, w.Target)
	slices.SortFunc(states, func(a, b differ.State) int { return differ.CompareIDs(a.ID, b.ID) })
	p.states = states
	if p.deletesNow() {
		c.discovery.rediscover()
	}
	if p.mappings, err = c.mappings(ctx, states, versions); err != nil {
		return nil, err
	}
	if p.policy, err = c.policy(ctx, w); err != nil {
		return nil, err
	}
	if p.schemas, err = c.schemas(ctx, versions); err != nil {
		return nil, err
	}
	if err := c.observe(ctx, p.mappings, states, c.get(p)); err != nil {
		return nil, err
	}
	if err := c.recordedElsewhere(ctx, p); err != nil {
		return nil, err
	}
	c.registerLiveSecrets(w, states)
	c.recognise(p, versions)
	if p.Plan, err = differ.Compare(ctx, p.schemas, states, p.policy); err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	c.rememberSettled(p)
	if err := c.complete(ctx, p); err != nil {
		return nil, err
	}
	p.Plan.NoteApprovals(w.Approvals)
	for i := range p.Plan.Changes {
		if s := &p.Plan.Changes[i]; s.Op != differ.OpForget && s.Live != nil {
			p.Health = append(p.Health, w.Health.Of(s.ID, s.Live))
		}
	}
	c.storeSettled(p, mark, versions)
	return p, nil
}

// complete reads what the first comparison lacked, each only where it is needed, and compares again. It
// reads owners of fields, the nodes, the wishes of other components, the custom resources of a CRD,
// and the API server's dry-run answers.
//
// Nodes may turn out to be needed late, for example once another component's record of an object is
// known. Then everything is decided again.
func (c *Cluster) complete(ctx context.Context, p *Prepared) error {
	if err := c.readOwners(ctx, p); err != nil {
		return err
	}
	for again := true; again; {
		if _, err := c.readNodes(ctx, p); err != nil {
			return err
		}
		steps := []func(context.Context, *Prepared) error{
			c.readOwners, c.askOthers, c.readCustomResources, c.predictUpdates, c.predictReplacements,
		}
		for _, step := range steps {
			if err := step(ctx, p); err != nil {
				return err
			}
		}
		var err error
		if again, err = c.readNodes(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) predictUpdates(ctx context.Context, p *Prepared) error {
	return c.predict(ctx, p, differ.OpUpdate)
}

// predictReplacements follows predictUpdates, because an update may turn out to be a replacement.
func (c *Cluster) predictReplacements(ctx context.Context, p *Prepared) error {
	return c.predict(ctx, p, differ.OpReplace)
}

// recognise sets for each object the inputs of its comparison, and the inputs with which it was
// settled before.
func (c *Cluster) recognise(p *Prepared, versions map[differ.ID]schema.GroupVersionKind) {
	if p.record.ResourceVersion == "" {
		return // nothing was ever recorded, so nothing is settled
	}
	c.mu.Lock()
	settled := c.settled[p.want.Component]
	c.mu.Unlock()
	policy := p.policy.Hash()
	for i := range p.states {
		s := &p.states[i]
		s.Inputs = differ.Inputs{
			Recorded: p.record.ResourceVersion, Target: p.want.Target.Hash, Live: uidOf(s.Live) + "/" + resourceVersionOf(s.Live),
			Policy: policy, Schema: p.schemas.Hash(versions[s.ID]), Scaled: p.policy.Scaled[s.ID],
		}
		s.Settled = settled[s.ID]
	}
}

func resourceVersionOf(live map[string]any) string {
	return (&unstructured.Unstructured{Object: live}).GetResourceVersion()
}

func (c *Cluster) rememberSettled(p *Prepared) {
	settled := make(map[differ.ID]differ.Inputs, len(p.states))
	for i := range p.Plan.Changes {
		if ch := &p.Plan.Changes[i]; ch.Quiet() {
			settled[ch.ID] = p.states[i].Inputs
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled[p.want.Component] = settled
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

// mappings finds each object's resource. A target's kind may be missing when its CRD is among the
// targets: the CRD is created first. A recorded object's kind may be missing when a complete
// discovery made for this plan lacks it: then its CRD is gone, and the object with it. After an
// incomplete discovery, the object is not read.
func (c *Cluster) mappings(ctx context.Context, states []differ.State, versions map[differ.ID]schema.GroupVersionKind) (map[differ.ID]*meta.RESTMapping, error) {
	defined := map[schema.GroupKind]bool{}
	for _, s := range states {
		if s.Target != nil && s.ID.Kind == "CustomResourceDefinition" {
			defined[definedKind(s.Target.Content)] = true
		}
	}
	for fresh := false; ; fresh = true {
		if fresh {
			c.discovery.rediscover()
		}
		s, err := c.discovery.surface(ctx)
		if err != nil {
			return nil, err
		}
		out, again, missing := s.find(states, versions, defined)
		if missing == nil && !again || fresh {
			return out, missing
		}
	}
}

// find maps the objects with one discovery. again reports that an object that is no longer wanted
// needs a fresh discovery.
func (s *surface) find(states []differ.State, versions map[differ.ID]schema.GroupVersionKind, defined map[schema.GroupKind]bool) (
	out map[differ.ID]*meta.RESTMapping, again bool, missing error,
) {
	out = make(map[differ.ID]*meta.RESTMapping, len(states))
	for i := range states {
		state := &states[i]
		gvk := versions[state.ID]
		m, err := s.mapping(gvk)
		not, unserved := notServed(err)
		if state.Target == nil {
			state.Unread = s.unread(gvk)
			again = again || state.Unread != "" || unserved
		}
		switch {
		case state.Unread != "":
		case err == nil:
			out[state.ID] = m
		case unserved && not.Unknown == nil && (state.Target == nil || defined[gvk.GroupKind()]):
		default:
			missing = errors.Join(missing, fmt.Errorf("%s: %w", state.ID, err))
		}
	}
	return out, again, missing
}

func definedKind(crd map[string]any) schema.GroupKind {
	spec, _ := crd["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	group, _ := spec["group"].(string)
	kind, _ := names["kind"].(string)
	return schema.GroupKind{Group: group, Kind: kind}
}

func (c *Cluster) policy(ctx context.Context, w Desired) (differ.Policy, error) {
	key, err := c.key(ctx)
	if err != nil {
		return differ.Policy{}, err
	}
	if key == nil {
		// Nothing was recorded here yet. A temporary key hides Secret data in the output; prepare
		// makes the permanent key.
		key = make([]byte, 32)
		if _, err := rand.Read(key); err != nil {
			return differ.Policy{}, fmt.Errorf("make a key: %w", err)
		}
	}
	scaled, err := c.scaled(ctx)
	if err != nil {
		return differ.Policy{}, err
	}
	return differ.Policy{
		Component: w.Component, Rules: w.Rules, Adopt: w.Adopt, Limits: w.Limits, Drift: w.Drift,
		Scaled: scaled, Approved: w.Approved, Cluster: w.Labels, MaskKey: key, NodesReadable: true,
	}, nil
}

// scaled returns what autoscalers own, for the autoscaler kinds that the cluster serves.
func (c *Cluster) scaled(ctx context.Context) (map[differ.ID]differ.Scaling, error) {
	s, err := c.discovery.surface(ctx)
	if err != nil {
		return nil, err
	}
	var served []schema.GroupVersionResource
	for gvk := range Autoscalers() {
		m, err := s.mapping(gvk)
		var not *NotServedError
		switch {
		case err == nil && m.GroupVersionKind == gvk:
			served = append(served, m.Resource)
		case errors.As(err, &not) && not.Unknown != nil:
			return nil, fmt.Errorf("autoscalers: %w", err)
		}
	}
	slices.SortFunc(served, func(a, b schema.GroupVersionResource) int { return strings.Compare(a.String(), b.String()) })
	scaled, err := c.reader.Scaled(ctx, served)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", c.name, err)
	}
	return scaled, nil
}

func (c *Cluster) schemas(ctx context.Context, versions map[differ.ID]schema.GroupVersionKind) (differ.Schemas, error) {
	wanted := map[schema.GroupVersion]bool{}
	for _, gvk := range versions {
		wanted[gvk.GroupVersion()] = true
	}
	return c.discovery.schemasFor(ctx, slices.Collect(maps.Keys(wanted)))
}

type getFunc func(context.Context, *meta.RESTMapping, *differ.State) (map[string]any, error)

// current reads an object. An object that the cache lacks counts as new without a request, unless
// it is recorded or doubted. Its creation fails if the object exists.
func (c *Cluster) current(ctx context.Context, m *meta.RESTMapping, s *differ.State) (map[string]any, error) {
	c.mu.Lock()
	doubted := c.distrusted[s.ID]
	c.mu.Unlock()
	live, err := c.reader.Get(ctx, m, s.ID)
	if live != nil || err != nil || s.Recorded == nil && !doubted {
		return live, err
	}
	return Get(ctx, c.dynamic, m, s.ID)
}

// fresh reads an object with its managedFields.
func (c *Cluster) fresh(ctx context.Context, m *meta.RESTMapping, s *differ.State) (map[string]any, error) {
	return c.reader.Fresh(ctx, m, s.ID)
}

// observedBytes is how much memory the live objects of one component may take together: a
// plan holds them all. 1,000 Deployments take 20 MiB, ten CRDs of half a megabyte 30 MiB.
const observedBytes = 96 << 20

// observe reads the live objects of all states that have a mapping.
func (c *Cluster) observe(ctx context.Context, mappings map[differ.ID]*meta.RESTMapping, states []differ.State, get getFunc) error {
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

// readOwners reads the managedFields of the objects that can't be decided without them, and
// compares again.
func (c *Cluster) readOwners(ctx context.Context, p *Prepared) error {
	unread := map[differ.ID]bool{}
	for i := range p.Plan.Changes {
		if p.Plan.Changes[i].OwnersUnread {
			unread[p.Plan.Changes[i].ID] = true
		}
	}
	if len(unread) == 0 {
		return nil
	}
	mappings := map[differ.ID]*meta.RESTMapping{}
	for id := range unread {
		mappings[id] = p.mappings[id]
	}
	if err := c.observe(ctx, mappings, p.states, c.fresh); err != nil {
		return err
	}
	for i := range p.states {
		s := &p.states[i]
		s.OwnersRead = s.OwnersRead || unread[s.ID]
	}
	plan, err := differ.Compare(ctx, p.schemas, p.states, p.policy)
	if err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	p.Plan = plan
	return nil
}
