package applier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/deletion"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

const (
	// establishTimeout bounds the wait for new CRDs to be served.
	establishTimeout = time.Minute
	// publishTimeout bounds the wait for their schemas.
	publishTimeout = 10 * time.Second
	pollInterval   = 250 * time.Millisecond
)

// Step is one finished write.
type Step struct {
	Component string
	ID        differ.ID
	Op        differ.Op
	Hook      string // event of a hook, for example pre-install; empty: no hook
	Err       error
}

// Outcome holds what an apply did. It is valid after a failed apply, too.
type Outcome struct {
	// A replacement counts as a deletion and a creation.
	Created, Updated, Deleted, Restored int
	// Again is the delay after which to plan again, because no event may announce the change; 0:
	// not needed.
	Again time.Duration
	// Removed: git wants the component absent, and neither its objects nor its record are left.
	Removed bool
	// TransferredFrom names the components from which objects were taken over.
	TransferredFrom []string
	// Kept lists objects that a hook's policy would have deleted and a danger rule kept. They stay
	// in the cluster and belong to no component from then on.
	Kept []*HookError
	// Health of the target objects, from the last answers of the API server.
	Health []health.Result
}

// Wrote reports whether any object was created, updated or deleted.
func (o *Outcome) Wrote() bool { return o.Created+o.Updated+o.Deleted > 0 }

// requeueAfter requests another pass after a delay. The earliest request wins: that pass makes the
// other requests again.
func (o *Outcome) requeueAfter(after time.Duration) {
	if o.Again == 0 || after < o.Again {
		o.Again = after
	}
}

// applying is an apply in progress.
type applying struct {
	*Prepared
	cluster *Cluster
	now     time.Time
	timeout time.Duration

	mu      sync.Mutex
	objects map[differ.ID]records.Object // the record that will be written
	before  map[differ.ID]records.Object // the record before the apply
	live    map[differ.ID]map[string]any
	outcome Outcome

	hooks      []records.Hook // as they will be recorded
	retryHooks bool
	reach      []batch            // batches that this pass can reach, in order
	hooksWait  bool               // hooks are pending, and must not run: only recreations are carried out
	tried      map[differ.ID]bool // writes that were sent
	announced  string             // version of the record that lacks the intents, because they are announced instead; empty: not announced
}

// ApplyOptions are the settings of one apply.
type ApplyOptions struct {
	// Now is the time that the history shows.
	Now time.Time
	// Timeout bounds the wait between waves, for each hook, and for health
	// before the last hooks; 0: five minutes.
	Timeout time.Duration
	// RetryHooks runs a failed hook again without the usual pause, because a user asked for it.
	RetryHooks bool
}

// Apply carries out a prepared plan: the record of the intents first, then the batches in order,
// deletions last, then the record of what was done. It writes the last record also after an error.
// The Outcome is valid with an error, too.
//
// The error wraps [ErrStale] when another writer changed something meanwhile.
func (c *Cluster) Apply(ctx context.Context, p *Prepared, o ApplyOptions) (Outcome, error) {
	if p.fromSettledCache {
		return Outcome{Health: p.Health}, nil
	}
	a := &applying{
		Prepared: p, cluster: c, now: o.Now, timeout: o.Timeout,
		objects: map[differ.ID]records.Object{}, live: map[differ.ID]map[string]any{},
		hooks: p.record.Hooks, retryHooks: o.RetryHooks, tried: map[differ.ID]bool{},
	}
	if a.timeout == 0 {
		a.timeout = 5 * time.Minute
	}
	for _, r := range p.record.Objects {
		a.objects[r.ID] = r
	}
	a.before = maps.Clone(a.objects)
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
	if err := a.fence(ctx); err != nil {
		return err
	}
	a.requestNextPass()
	if err := a.sweepHooks(ctx); err != nil {
		return err
	}
	if !a.Plan.Writes() && !a.recordStale() && !a.pinStale() && !a.hooksPending(a.events()) {
		if len(a.hooks) < len(a.record.Hooks) {
			return a.writeFacts(ctx, false)
		}
		return nil // held changes wait, without any write
	}
	a.hooksWait = a.hooksPending(a.events()) && (anyHeld(a.wanted()) || a.hooksHeld(a.events()) || a.want.Absent && a.stopped())
	if a.hooksWait {
		// Hooks run for the target as a whole: a migration must not run before a held change. Nor
		// may a hook run whose name belongs to an object that must not be deleted. The pin is
		// recorded nevertheless, and an object that was deleted in the cluster is created again as it
		// was recorded.
		if a.reach = recreations(a.Plan); len(a.reach) == 0 {
			return a.writePin(ctx)
		}
	} else {
		if err := a.hookPause(); err != nil {
			return errors.Join(err, a.writeFacts(ctx, false))
		}
		a.reach = a.reachable()
	}
	if err := a.intend(ctx); err != nil {
		return err
	}
	err := a.carryOut(ctx)
	a.settleRecord()
	a.taken()
	if err == nil {
		a.mark()
	}
	if err == nil && a.want.Absent && len(a.objects) == 0 {
		return a.remove(ctx)
	}
	return errors.Join(err, a.conclude(ctx, err == nil && !a.hooksWait))
}

// conclude writes the record, and ends the announcement that it replaces.
func (a *applying) conclude(ctx context.Context, whole bool) error {
	err := a.writeFacts(ctx, whole)
	switch {
	case err != nil || a.announced == "":
	case a.announced == a.record.ResourceVersion:
		a.cluster.records.RetractAnnouncement(ctx, a.want.Component)
	default:
		a.cluster.records.EndAnnouncement(a.want.Component) // the record now holds what is still uncertain
	}
	return err
}

// writePin records the pin, if it is another one.
func (a *applying) writePin(ctx context.Context) error {
	if a.pinStale() {
		return a.writeFacts(ctx, false)
	}
	return nil
}

// settleRecord records the changes that needed no write in the cluster.
func (a *applying) settleRecord() {
	for i := range a.Plan.Changes {
		ch := &a.Plan.Changes[i]
		r := a.objects[ch.ID]
		switch {
		case ch.Op == differ.OpForget && (r.Intent == records.IntentCreate || r.Intent == records.IntentReplace) && a.mayCome():
			a.outcome.requeueAfter(inFlight)
		case ch.Op == differ.OpForget:
			delete(a.objects, ch.ID)
		case ch.Op == differ.OpNone && (ch.RecordStale || r.Intent != "" && ch.State == differ.StateSynced):
			a.objects[ch.ID] = records.Object{
				ID: ch.ID, APIVersion: ch.APIVersion, UID: uidOf(ch.Live), Content: ch.Record, Normal: ch.Normal,
			}
		}
	}
}

// mayCome reports whether a write that another session began may still take effect.
func (a *applying) mayCome() bool {
	at := a.record.IntentsAt
	return at != nil && a.now.Sub(*at) < inFlight
}

// writeFacts records what was done. The write outlives the apply's context, so that created objects
// are not forgotten.
func (a *applying) writeFacts(ctx context.Context, whole bool) error {
	ctx, cancel := records.Outlive(ctx)
	defer cancel()
	rec := a.record.Record
	rec.Objects, rec.Hooks, rec.Pin = a.inventory(), a.hooks, a.want.Pin
	if a.announced != "" {
		rec.History = a.judged(rec.History)
	}
	if !rec.Open() {
		rec.IntentsAt = nil
	}
	if whole && !a.stopped() {
		w := a.want
		if !w.Absent && (rec.TargetHash != w.Target.Hash || rec.Version != w.Version) {
			rec.History = a.history(rec.History)
		}
		rec.Version, rec.Tree, rec.Revision, rec.TargetHash = w.Version, w.Tree, w.Revision, w.Target.Hash
		rec.Hooks = leftHooks(a.hooks)
	}
	if reflect.DeepEqual(rec, a.record.Record) {
		return nil
	}
	next, err := a.cluster.records.Write(ctx, a.record, rec)
	if err != nil {
		return stale(err)
	}
	a.record = next
	return nil
}

// stopped reports whether a danger rule kept any change from being applied.
func (a *applying) stopped() bool {
	return slices.ContainsFunc(a.Plan.Changes, func(c differ.Change) bool {
		return c.State == differ.StateHeld || c.State == differ.StateDenied
	})
}

// judged returns the history with the health of its last delivery, because another delivery begins.
// The health is written with the first record of the new delivery: afterwards the cluster no longer
// holds the last delivery alone.
func (a *applying) judged(history []records.HistoryEntry) []records.HistoryEntry {
	if len(history) == 0 || history[0].Health != "" || a.record.TargetHash == a.want.Target.Hash {
		return history
	}
	out := slices.Clone(history)
	out[0].Health = a.lastHealth()
	return out
}

// lastHealth returns the health of the last delivery, from the objects that the plan read.
func (a *applying) lastHealth() v1alpha1.Health {
	if a.cluster.settled.wasHealthy(a.want.Component, a.record.Delivered()) {
		return v1alpha1.HealthHealthy
	}
	var objects []health.Result
	for i := range a.states {
		switch s := &a.states[i]; {
		case s.RecordedUID == "": // not part of the last delivery
		case s.Live == nil:
			return v1alpha1.HealthDegraded
		default:
			objects = append(objects, a.want.Health.Of(s.ID, s.Live))
		}
	}
	health, _ := health.Worst(objects)
	return health
}

func (a *applying) history(old []records.HistoryEntry) []records.HistoryEntry {
	old = a.judged(old)
	entry := records.HistoryEntry{
		Number: 1, Time: a.now.UTC(), Version: a.want.Version, Revision: a.want.Revision, TargetHash: a.want.Target.Hash,
		Epoch: a.cluster.records.Epoch(a.record), Writer: a.cluster.records.Session(), Pinned: a.want.Pin != nil,
		Created: a.outcome.Created, Updated: a.outcome.Updated, Deleted: a.outcome.Deleted,
	}
	if len(old) > 0 {
		entry.Number = old[0].Number + 1
	}
	out := append([]records.HistoryEntry{entry}, old...)
	return out[:min(len(out), records.HistoryLength)]
}

// one writes one object.
func (a *applying) one(ctx context.Context, c *differ.Change) error {
	m, err := a.mapping(ctx, c.ID, c.APIVersion)
	if err != nil {
		return err
	}
	defer a.cluster.dryRuns.forget(c.ID)
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

// mapping finds the resource of an object, also of a kind whose CRD this apply created.
func (a *applying) mapping(ctx context.Context, id differ.ID, apiVersion string) (*meta.RESTMapping, error) {
	if m := a.mappings[id]; m != nil {
		return m, nil
	}
	s, err := a.cluster.discovery.surface(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.mapping(schema.FromAPIVersionAndKind(apiVersion, id.Kind))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	return m, nil
}

// makeRoom deletes an object that is to be created anew, and waits until it is gone. The record
// already has the intent to replace it, so another process can continue after a crash.
func (a *applying) makeRoom(ctx context.Context, m *meta.RESTMapping, c *differ.Change) error {
	old := &unstructured.Unstructured{Object: c.Live}
	err := deletion.Send(ctx, deletion.OfChange(c), a.resource(m, c.ID), DeleteOptions(old))
	if err != nil && !apierrors.IsNotFound(err) {
		return stale(fmt.Errorf("replace %s: delete: %w", c.ID, a.forbidden(ctx, m, c.ID, err, "delete")))
	}
	var left *unstructured.Unstructured
	err = wait.PollUntilContextTimeout(ctx, pollInterval, a.timeout, true, func(ctx context.Context) (bool, error) {
		live, err := a.cluster.live.Fresh(ctx, m, c.ID)
		if err != nil {
			return false, err
		}
		left = &unstructured.Unstructured{Object: live}
		return live == nil, nil
	})
	switch {
	case wait.Interrupted(err) && left != nil && left.GetUID() != old.GetUID():
		return fmt.Errorf("%w: replace %s: another client created it anew", ErrStale, c.ID)
	case wait.Interrupted(err) && ctx.Err() == nil && left != nil:
		return fmt.Errorf("replace %s: it is not gone after %s; its finalizers: %v", c.ID, a.timeout, left.GetFinalizers())
	case err != nil:
		return fmt.Errorf("replace %s: wait until it is gone: %w", c.ID, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outcome.Deleted++
	// The recorded object is gone, and git approved the new one. If its creation is refused, the
	// intent stays: the next plan is judged by what was approved.
	a.before[c.ID] = a.objects[c.ID]
	return nil
}

func (a *applying) patch(ctx context.Context, m *meta.RESTMapping, c *differ.Change) error {
	objects := a.resource(m, c.ID)
	var base *unstructured.Unstructured // an update requires this version
	if c.Op == differ.OpUpdate {
		base = &unstructured.Unstructured{Object: c.Live}
	}
	migrated, err := migrate(ctx, objects, c)
	if err != nil {
		return a.forbidden(ctx, m, c.ID, err, "patch")
	}
	if migrated != nil {
		base = migrated
	}
	for _, step := range Applies(c) {
		answer, err := bind(ctx, c.ID, func() (*unstructured.Unstructured, error) {
			return send(ctx, objects, step.Patch, base, step.Manager)
		})
		if err != nil {
			err = a.unlearn(c, a.forbidden(ctx, m, c.ID, err, verbs(c)...))
			return fmt.Errorf("%s %s%s: %w", c.Op, c.ID, step.Why, err)
		}
		base = answer
	}
	a.cluster.live.Wrote(c.ID, base.Object)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.live[c.ID] = base.Object
	a.objects[c.ID] = records.Object{
		ID: c.ID, APIVersion: c.APIVersion, UID: string(base.GetUID()), Content: c.Record,
		Normal: differ.Residue(a.schemas, *c, base.Object, a.policy),
	}
	a.count(c)
	return nil
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

// delete removes an object. The record keeps it until it is gone.
func (a *applying) delete(ctx context.Context, m *meta.RESTMapping, c *differ.Change) error {
	err := deletion.Send(ctx, deletion.OfChange(c), a.resource(m, c.ID), DeleteOptions(&unstructured.Unstructured{Object: c.Live}))
	if err != nil && !apierrors.IsNotFound(err) {
		return stale(fmt.Errorf("delete %s: %w", c.ID, a.forbidden(ctx, m, c.ID, err, "delete")))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outcome.Deleted++
	return nil
}

func (a *applying) health() []health.Result {
	var out []health.Result
	for _, o := range a.want.Target.Objects {
		id, _ := differ.Identify(o.Content)
		if live := a.live[id]; live != nil {
			out = append(out, a.want.Health.Of(id, live))
		}
	}
	return out
}
