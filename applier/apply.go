package applier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/csaupgrade"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

const (
	// establishTimeout bounds the wait for new CRDs to be served.
	establishTimeout = time.Minute
	// publishTimeout bounds the wait for their schemas.
	publishTimeout = 10 * time.Second
	// recordTimeout bounds the last write of the record, which happens also
	// when the apply itself was cancelled.
	recordTimeout = 20 * time.Second
	pollInterval  = 250 * time.Millisecond
)

// ErrStale says that an object changed after the plan was made. Nothing of it
// was overwritten: plan again.
var ErrStale = errors.New("the object changed meanwhile")

// Step is one finished write.
type Step struct {
	Component string
	ID        differ.ID
	Op        differ.Op
	Err       error
}

// Outcome is what an apply did, also when it broke off.
type Outcome struct {
	// A replacement is a deletion and a creation.
	Created, Updated, Deleted, Restored int
	// Health of the target objects, as the last answers show them.
	Health []ObjectHealth
}

// applying is one apply on its way.
type applying struct {
	*Prepared
	cluster *Cluster
	now     time.Time
	timeout time.Duration

	mu      sync.Mutex
	objects map[differ.ID]RecordedObject // the record that will be written
	live    map[differ.ID]map[string]any
	outcome Outcome
}

// ApplyOptions are the settings of one apply.
type ApplyOptions struct {
	// Now is the time that the history shows.
	Now time.Time
	// Timeout bounds the wait between waves; 0: five minutes.
	Timeout time.Duration
}

// Apply carries out a prepared plan: the record of what is intended first, then
// batch after batch, deletions last, then the record of what was done, also
// when the apply broke off. The Outcome is valid with an error, too.
//
// The error is [ErrStale] when somebody else wrote meanwhile.
func (c *Cluster) Apply(ctx context.Context, p *Prepared, o ApplyOptions) (Outcome, error) {
	a := &applying{
		Prepared: p, cluster: c, now: o.Now, timeout: o.Timeout,
		objects: map[differ.ID]RecordedObject{}, live: map[differ.ID]map[string]any{},
	}
	if a.timeout == 0 {
		a.timeout = 5 * time.Minute
	}
	for _, r := range p.record.Objects {
		a.objects[r.ID] = r
	}
	for i := range p.Plan.Changes {
		a.live[p.Plan.Changes[i].ID] = p.Plan.Changes[i].Live
	}
	err := a.run(ctx)
	a.outcome.Health = a.health()
	if err != nil {
		return a.outcome, fmt.Errorf("cluster %s: component %s: %w", c.name, p.want.Component, err)
	}
	return a.outcome, nil
}

func (a *applying) run(ctx context.Context) error {
	if !a.Plan.Writes() && !a.recordStale() {
		return nil // what is held waits, and costs nothing
	}
	if err := a.intend(ctx); err != nil {
		return err
	}
	err := a.batches(ctx)
	a.settleRecord()
	if werr := a.writeFacts(ctx, err == nil); werr != nil {
		return errors.Join(err, werr)
	}
	return err
}

// intend records what is about to be created, so that a killed process does
// not forget it.
func (a *applying) intend(ctx context.Context) error {
	creates := a.Plan.Count(differ.OpCreate) + a.Plan.Count(differ.OpReplace)
	if err := a.cluster.Prepare(ctx); err != nil {
		return err
	}
	if creates == 0 {
		return nil
	}
	key, err := a.cluster.key(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(key, a.policy.MaskKey) {
		return fmt.Errorf("%w: the key of the record was made meanwhile", ErrStale)
	}
	for i := range a.Plan.Changes {
		if ch := &a.Plan.Changes[i]; ch.Op == differ.OpCreate || ch.Op == differ.OpReplace {
			a.objects[ch.ID] = RecordedObject{ID: ch.ID, APIVersion: ch.APIVersion, Content: ch.Record, Intended: true}
		}
	}
	rec := a.record.Record
	rec.Objects = a.inventory()
	a.record, err = a.cluster.writeRecord(ctx, a.record, rec)
	return stale(err)
}

func (a *applying) inventory() []RecordedObject {
	return slices.SortedFunc(maps.Values(a.objects), func(x, y RecordedObject) int {
		return differ.CompareIDs(x.ID, y.ID)
	})
}

func stale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%w: %w", ErrStale, err)
	}
	return err
}

// settleRecord takes in what needed no write in the cluster.
func (a *applying) settleRecord() {
	for i := range a.Plan.Changes {
		ch := &a.Plan.Changes[i]
		switch {
		case ch.Op == differ.OpForget:
			delete(a.objects, ch.ID)
		case ch.Op == differ.OpNone && ch.RecordStale:
			r := a.objects[ch.ID]
			r.ID, r.APIVersion, r.Content, r.Intended = ch.ID, ch.APIVersion, ch.Record, false
			r.UID, r.Normal = uidOf(ch.Live), ch.Normal
			a.objects[ch.ID] = r
		}
	}
}

func uidOf(live map[string]any) string {
	return string((&unstructured.Unstructured{Object: live}).GetUID())
}

// writeFacts records what was done. The time to do so does not end with the
// apply's context: what was created must not be forgotten.
func (a *applying) writeFacts(ctx context.Context, whole bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	rec := a.record.Record
	rec.Objects = a.inventory()
	if whole && !a.stopped() {
		w := a.want
		if rec.TargetHash != w.Target.Hash || rec.Version != w.Version {
			rec.History = a.history(rec.History)
		}
		rec.Version, rec.Tree, rec.Revision, rec.TargetHash = w.Version, w.Tree, w.Revision, w.Target.Hash
	}
	next, err := a.cluster.writeRecord(ctx, a.record, rec)
	if err != nil {
		return stale(err)
	}
	a.record = next
	return nil
}

// stopped reports whether a danger rule kept anything from being applied.
func (a *applying) stopped() bool {
	return slices.ContainsFunc(a.Plan.Changes, func(c differ.Change) bool {
		return c.State == differ.StateHeld || c.State == differ.StateDenied
	})
}

func (a *applying) history(old []HistoryEntry) []HistoryEntry {
	entry := HistoryEntry{
		Number: 1, Time: a.now.UTC(), Version: a.want.Version, Revision: a.want.Revision, TargetHash: a.want.Target.Hash,
		Created: a.outcome.Created, Updated: a.outcome.Updated, Deleted: a.outcome.Deleted,
	}
	if len(old) > 0 {
		entry.Number = old[0].Number + 1
	}
	out := append([]HistoryEntry{entry}, old...)
	return out[:min(len(out), historyLength)]
}

// batches does one batch after another and stops behind the first that failed.
func (a *applying) batches(ctx context.Context) error {
	if err := a.namespace(ctx); err != nil {
		return err
	}
	list := batches(&a.Plan)
	for i, b := range list {
		if i > 0 && b.wave > list[i-1].wave {
			if err := a.waitHealthy(ctx, list[:i]); err != nil {
				return err
			}
		}
		if err := a.batch(ctx, b); err != nil {
			return err
		}
		if b.phase == phaseCRD {
			if err := a.establish(ctx, b.changes); err != nil {
				return err
			}
		}
	}
	return nil
}

// namespace creates the component's namespace before anything in it.
func (a *applying) namespace(ctx context.Context) error {
	for i := range a.Plan.Changes {
		c := &a.Plan.Changes[i]
		if c.Op == differ.OpCreate && c.ID.Namespace == a.want.Namespace {
			return a.cluster.ensureNamespace(ctx, a.want.Namespace)
		}
	}
	return nil
}

func (a *applying) batch(ctx context.Context, b batch) error {
	var g errgroup.Group
	g.SetLimit(parallel)
	errs := make([]error, len(b.changes))
	for i, c := range b.changes {
		g.Go(func() error {
			errs[i] = a.one(ctx, c)
			a.cluster.progress(Step{Component: a.want.Component, ID: c.ID, Op: c.Op, Err: errs[i]})
			return nil
		})
	}
	_ = g.Wait() // every error is in errs: all objects of a batch are tried
	return errors.Join(errs...)
}

// one writes one object.
func (a *applying) one(ctx context.Context, c *differ.Change) error {
	m := a.mappings[c.ID]
	if m == nil {
		s, err := a.cluster.discovery.surface(ctx)
		if err != nil {
			return err
		}
		if m, err = s.mapping(schema.FromAPIVersionAndKind(c.APIVersion, c.ID.Kind)); err != nil {
			return fmt.Errorf("%s: %w", c.ID, err)
		}
	}
	defer a.cluster.forgetAnswers(c.ID)
	switch c.Op {
	case differ.OpDelete:
		return a.delete(ctx, m, c)
	case differ.OpReplace:
		if err := a.makeRoom(ctx, m, c); err != nil {
			return err
		}
	case differ.OpCreate, differ.OpUpdate, differ.OpNone, differ.OpForget:
	}
	return a.patch(ctx, m, c)
}

// makeRoom deletes an object that is to be created anew, and waits until it is
// gone. The record says by now that the new one is intended: a killed process
// goes on from there.
func (a *applying) makeRoom(ctx context.Context, m *meta.RESTMapping, c *differ.Change) error {
	old := &unstructured.Unstructured{Object: c.Live}
	err := a.cluster.resource(m, c.ID).Delete(ctx, c.ID.Name, DeleteOptions(old))
	if err != nil && !apierrors.IsNotFound(err) {
		return stale(fmt.Errorf("replace %s: delete: %w", c.ID, err))
	}
	var left *unstructured.Unstructured
	err = wait.PollUntilContextTimeout(ctx, pollInterval, a.timeout, true, func(ctx context.Context) (bool, error) {
		live, err := a.cluster.reader.Fresh(ctx, m, c.ID)
		left = &unstructured.Unstructured{Object: live}
		return err == nil && live == nil, err
	})
	switch {
	case wait.Interrupted(err) && left != nil && left.GetUID() != old.GetUID():
		return fmt.Errorf("%w: replace %s: somebody created it anew", ErrStale, c.ID)
	case wait.Interrupted(err) && ctx.Err() == nil && left != nil:
		return fmt.Errorf("replace %s: it is not gone after %s; its finalizers: %v", c.ID, a.timeout, left.GetFinalizers())
	case err != nil:
		return fmt.Errorf("replace %s: wait until it is gone: %w", c.ID, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outcome.Deleted++
	return nil
}

func (a *applying) patch(ctx context.Context, m *meta.RESTMapping, c *differ.Change) error {
	objects := a.cluster.resource(m, c.ID)
	var base *unstructured.Unstructured // what an update must find
	if c.Op == differ.OpUpdate {
		base = &unstructured.Unstructured{Object: c.Live}
	}
	migrated, err := migrate(ctx, objects, c)
	if err != nil {
		return err
	}
	if migrated != nil {
		base = migrated
	}
	for _, step := range Applies(c) {
		answer, err := send(ctx, objects, step.Patch, base, step.Manager)
		if err != nil {
			return fmt.Errorf("%s %s%s: %w", c.Op, c.ID, step.Why, withheld(c.ID, err))
		}
		base = answer
	}
	a.cluster.reader.Wrote(c.ID, base.Object)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.live[c.ID] = base.Object
	a.objects[c.ID] = RecordedObject{
		ID: c.ID, APIVersion: c.APIVersion, UID: string(base.GetUID()), Content: c.Record,
		Normal: differ.Residue(a.schemas, *c, base.Object, a.policy),
	}
	a.count(c)
	return nil
}

// ServerSideApply is one request of a change.
type ServerSideApply struct {
	Patch   map[string]any
	Manager string
	Why     string // empty for the change itself
}

// Applies are the requests of a create, an update, or the second half of a
// replacement, in the order in which they are sent.
func Applies(c *differ.Change) []ServerSideApply {
	var out []ServerSideApply
	if c.HandOver != nil {
		out = append(out, ServerSideApply{Patch: c.HandOver, Manager: differ.HandOverManager(), Why: ": hand over fields"})
	}
	if c.First != nil {
		out = append(out, ServerSideApply{Patch: c.First, Manager: v1alpha1.FieldManager, Why: ": remove what becomes empty"})
	}
	return append(out, ServerSideApply{Patch: c.Patch, Manager: v1alpha1.FieldManager})
}

// Migration is the JSON patch that makes Keelson's what client-side tools own of
// an object, and drops kubectl's copy of it; nil when there is nothing to do. It
// conflicts when the object is no longer the one that was planned for.
func Migration(c *differ.Change) ([]any, error) {
	if len(c.Migrate) == 0 {
		return nil, nil
	}
	live := &unstructured.Unstructured{Object: c.Live}
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(live, sets.New(c.Migrate...), v1alpha1.FieldManager)
	if err != nil {
		return nil, fmt.Errorf("managedFields of %s: %w", c.ID, err)
	}
	var operations []any
	if len(patch) > 0 {
		if err := json.Unmarshal(patch, &operations); err != nil {
			return nil, fmt.Errorf("managedFields of %s: %w", c.ID, err)
		}
	}
	if _, ok := live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]; ok && len(operations) > 0 {
		path := "/metadata/annotations/" + strings.ReplaceAll(corev1.LastAppliedConfigAnnotation, "/", "~1")
		operations = append(operations, map[string]any{"op": "remove", "path": path})
	}
	return operations, nil
}

// migrate makes Keelson's what client-side tools own, and returns the object as
// it is then; nil when there is nothing to migrate.
func migrate(ctx context.Context, objects dynamic.ResourceInterface, c *differ.Change) (*unstructured.Unstructured, error) {
	operations, err := Migration(c)
	if err != nil || operations == nil {
		return nil, err
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return nil, fmt.Errorf("managedFields of %s: %w", c.ID, err)
	}
	answer, err := objects.Patch(ctx, c.ID.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: v1alpha1.FieldManager})
	if err != nil {
		return nil, fmt.Errorf("take over the fields of %s in %s: %w", strings.Join(c.Migrate, ", "), c.ID, withheld(c.ID, stale(err)))
	}
	return answer, nil
}

func (a *applying) count(c *differ.Change) {
	switch {
	case c.Op == differ.OpCreate, c.Op == differ.OpReplace:
		a.outcome.Created++
	case slices.ContainsFunc(c.Fields, func(f differ.Field) bool { return f.Action == differ.ActionRestore }):
		a.outcome.Restored++
		a.outcome.Updated++
	default:
		a.outcome.Updated++
	}
}

// send applies an object server-side. With a base the object is changed only if
// it still is the base. That guard is what makes force safe; a create has none
// and goes without force.
func send(ctx context.Context, objects dynamic.ResourceInterface, patch map[string]any, base *unstructured.Unstructured, manager string) (*unstructured.Unstructured, error) {
	body := Body(patch, base)
	answer, err := objects.Apply(ctx, body.GetName(), body, metav1.ApplyOptions{FieldManager: manager, Force: base != nil})
	if err != nil {
		return nil, stale(err)
	}
	return answer, nil
}

// withheld keeps from an error what it may quote of a Secret: the API server
// shows values that have the wrong type.
func withheld(id differ.ID, err error) error {
	if id.Group != "" || id.Kind != "Secret" || errors.Is(err, ErrStale) {
		return err
	}
	if refused, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return fmt.Errorf("the API server refused it (%d %s); why is withheld, since it may quote the data: kubectl apply --server-side --dry-run=server tells",
			refused.ErrStatus.Code, refused.ErrStatus.Reason)
	}
	return err
}

// Body is what is sent to apply a patch: without nulls, which server-side apply
// would take for empty values, and with UID and resourceVersion of the object
// that an update must find; nil for a create. The patch is not modified.
func Body(patch map[string]any, base *unstructured.Unstructured) *unstructured.Unstructured {
	body := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(patch)}
	dropNulls(body.Object)
	if base != nil {
		body.SetUID(base.GetUID())
		body.SetResourceVersion(base.GetResourceVersion())
	}
	return body
}

func dropNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			if child == nil {
				delete(v, name)
				continue
			}
			dropNulls(child)
		}
	case []any:
		for _, item := range v {
			dropNulls(item)
		}
	}
}

// DeleteOptions are what is sent to delete an object, if it is still the one
// that the plan was made from: in the foreground, dependents first.
func DeleteOptions(live *unstructured.Unstructured) metav1.DeleteOptions {
	uid, version, foreground := live.GetUID(), live.GetResourceVersion(), metav1.DeletePropagationForeground
	return metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		PropagationPolicy: &foreground,
	}
}

// delete removes an object. The record keeps it until it is gone.
func (a *applying) delete(ctx context.Context, m *meta.RESTMapping, c *differ.Change) error {
	err := a.cluster.resource(m, c.ID).Delete(ctx, c.ID.Name, DeleteOptions(&unstructured.Unstructured{Object: c.Live}))
	if err != nil && !apierrors.IsNotFound(err) {
		return stale(fmt.Errorf("delete %s: %w", c.ID, err))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outcome.Deleted++
	return nil
}

// establish waits until new CRDs are served, then learns the API anew.
func (a *applying) establish(ctx context.Context, crds []*differ.Change) error {
	for _, c := range crds {
		if c.Op == differ.OpDelete {
			continue
		}
		err := wait.PollUntilContextTimeout(ctx, pollInterval, establishTimeout, true, func(ctx context.Context) (bool, error) {
			live, err := a.cluster.reader.Fresh(ctx, a.mappings[c.ID], c.ID)
			if err != nil || live == nil {
				return false, err
			}
			return HealthOf(c.ID, live).Health == v1alpha1.HealthHealthy, nil
		})
		if err != nil {
			return fmt.Errorf("%s was not established within %s: %w", c.ID, establishTimeout, err)
		}
	}
	if err := a.published(ctx, crds); err != nil {
		return err
	}
	versions := map[differ.ID]schema.GroupVersionKind{}
	for i := range a.Plan.Changes {
		c := &a.Plan.Changes[i]
		versions[c.ID] = schema.FromAPIVersionAndKind(c.APIVersion, c.ID.Kind)
	}
	schemas, err := a.cluster.schemas(ctx, versions)
	if err != nil {
		return err
	}
	a.schemas = schemas
	return nil
}

// published waits until the API server publishes the schemas of new kinds, some
// moments after it serves them. Without them types would be deduced; that is no
// failure, so the wait just ends.
func (a *applying) published(ctx context.Context, crds []*differ.Change) error {
	var versions []schema.GroupVersion
	var kinds []schema.GroupVersionKind
	var groups []string
	for _, c := range crds {
		for _, gv := range servedVersions(c.Patch) {
			versions, groups = append(versions, gv), append(groups, gv.Group)
			kinds = append(kinds, gv.WithKind(definedKind(c.Patch).Kind))
		}
	}
	err := wait.PollUntilContextTimeout(ctx, pollInterval, publishTimeout, true, func(ctx context.Context) (bool, error) {
		a.cluster.discovery.rediscover(groups...)
		schemas, err := a.cluster.discovery.schemasFor(ctx, versions)
		if err != nil {
			return false, err
		}
		unknown := func(gvk schema.GroupVersionKind) bool { return !schemas.Knows(gvk) }
		return !slices.ContainsFunc(kinds, unknown), nil
	})
	if err != nil && (!wait.Interrupted(err) || ctx.Err() != nil) {
		return fmt.Errorf("schemas of new kinds: %w", err)
	}
	// Learnt now, so that the next look at a settled cluster asks for nothing.
	if _, err := a.cluster.discovery.surface(ctx); err != nil {
		return err
	}
	return nil
}

// servedVersions are those of the kind that a CRD defines.
func servedVersions(crd map[string]any) []schema.GroupVersion {
	spec, _ := crd["spec"].(map[string]any)
	versions, _ := spec["versions"].([]any)
	group := definedKind(crd).Group
	var out []schema.GroupVersion
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if name, ok := version["name"].(string); ok && version["served"] == true {
			out = append(out, schema.GroupVersion{Group: group, Version: name})
		}
	}
	return out
}

// waitHealthy waits for the objects of earlier waves.
func (a *applying) waitHealthy(ctx context.Context, done []batch) error {
	for _, b := range done {
		for _, c := range b.changes {
			if c.Op == differ.OpDelete || a.mappings[c.ID] == nil {
				continue
			}
			var last ObjectHealth
			err := wait.PollUntilContextTimeout(ctx, pollInterval, a.timeout, true, func(ctx context.Context) (bool, error) {
				live, err := a.cluster.reader.Get(ctx, a.mappings[c.ID], c.ID)
				if err != nil {
					return false, err
				}
				last = HealthOf(c.ID, live)
				return last.Health == v1alpha1.HealthHealthy, nil
			})
			if err != nil {
				return fmt.Errorf("wave %d: %s is not healthy after %s (%s): %w", b.wave, c.ID, a.timeout, last.Message, err)
			}
		}
	}
	return nil
}

func (a *applying) health() []ObjectHealth {
	var out []ObjectHealth
	for _, o := range a.want.Target.Objects {
		id, _ := identify(o.Content)
		if live := a.live[id]; live != nil {
			out = append(out, HealthOf(id, live))
		}
	}
	return out
}
