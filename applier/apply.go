package applier

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
)

// pollInterval is the time between two reads of an object that is about to change.
const pollInterval = 250 * time.Millisecond

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
	Counts
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
	options ApplyOptions
	began   *records.Stored // the record that the plan was made with
	objects *appliedObjects
	writer  *objectWriter
	hooks   *hookRunner
	healthy healthWait
	kinds   kindWait
	scope   scope
	outcome Outcome
	// announced is the version of the record that lacks the intents, because they are announced
	// instead; empty: not announced.
	announced string
}

// newApplying prepares an apply. It makes no request.
func newApplying(c *Cluster, p *Prepared, o ApplyOptions) *applying {
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Minute
	}
	objects := newAppliedObjects(p)
	a := &applying{Prepared: p, cluster: c, options: o, began: p.record, objects: objects}
	a.writer = &objectWriter{
		plan: p, discovery: c.discovery, live: c.live, dryRuns: c.dryRuns, namespaces: c.namespaces, objects: objects, timeout: o.Timeout,
	}
	a.hooks = &hookRunner{
		plan: p, client: c.dynamic, discovery: c.discovery, reader: c.live, judge: c.judge, diagnoser: c.diagnoser, report: c.progress,
		objects: objects, options: o, outcome: &a.outcome, hooks: p.record.Hooks,
		record: func(ctx context.Context) error { return a.writeFacts(ctx, false) },
	}
	a.healthy = healthWait{plan: p, discovery: c.discovery, reader: c.live, objects: objects, diagnoser: c.diagnoser, timeout: o.Timeout}
	a.kinds = kindWait{plan: p, discovery: c.discovery, reader: c.live}
	return a
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
	a := newApplying(c, p, o)
	err := a.run(ctx)
	a.outcome.Counts, a.outcome.Health = a.writer.total(), a.health()
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
	if err := a.hooks.sweep(ctx); err != nil {
		return err
	}
	if !a.Plan.Writes() && !a.recordStale() && !a.pinStale() && !a.hooksPending(a.events()) {
		if len(a.hooks.hooks) < len(a.record.Hooks) {
			return a.writeFacts(ctx, false)
		}
		return nil // held changes wait, without any write
	}
	switch a.scope = scopeOf(a.Prepared, a.hooks); {
	case a.scope.stop != nil:
		return errors.Join(a.scope.stop, a.writeFacts(ctx, false))
	case a.scope.held && len(a.scope.batches) == 0:
		return a.writePin(ctx)
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
	if err == nil && a.want.Absent && len(a.objects.list()) == 0 {
		return a.remove(ctx)
	}
	return errors.Join(err, a.conclude(ctx, err == nil && !a.scope.held))
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
		r, _ := a.objects.get(ch.ID)
		switch {
		case ch.Op == differ.OpForget && (r.Intent == records.IntentCreate || r.Intent == records.IntentReplace) && a.mayCome():
			a.outcome.requeueAfter(inFlight)
		case ch.Op == differ.OpForget:
			a.objects.drop(ch.ID)
		case ch.Op == differ.OpNone && (ch.RecordStale || r.Intent != "" && ch.State == differ.StateSynced):
			a.objects.put(records.Object{
				ID: ch.ID, APIVersion: ch.APIVersion, UID: uidOf(ch.Live), Content: ch.Record, Normal: ch.Normal,
			})
		}
	}
}

// mayCome reports whether a write that another session began may still take effect.
func (a *applying) mayCome() bool {
	at := a.record.IntentsAt
	return at != nil && a.options.Now.Sub(*at) < inFlight
}

// writeFacts records what was done. The write outlives the apply's context, so that created objects
// are not forgotten.
func (a *applying) writeFacts(ctx context.Context, whole bool) error {
	ctx, cancel := records.Outlive(ctx)
	defer cancel()
	rec := a.record.Record
	rec.Objects, rec.Hooks, rec.Pin = a.objects.list(), a.hooks.hooks, a.want.Pin
	if a.announced != "" {
		rec.History = a.judged(rec.History)
	}
	if !rec.Open() {
		rec.IntentsAt = nil
	}
	rec.Unfinished = a.began.Unfinished || a.otherTarget() && !sameContent(a.began.Objects, rec.Objects)
	if whole && !a.stopped() {
		rec.Unfinished = false
		w := a.want
		if !w.Absent && (rec.TargetHash != w.Target.Hash || rec.Version != w.Version) {
			rec.History = a.history(rec.History)
		}
		rec.Version, rec.Tree, rec.Revision, rec.TargetHash = w.Version, w.Tree, w.Revision, w.Target.Hash
		rec.Hooks = leftHooks(a.hooks.hooks)
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

// otherTarget reports whether the apply is to another target than the last delivery.
func (a *applying) otherTarget() bool {
	return a.want.Absent || a.want.Target.Hash != a.began.TargetHash
}

// sameContent reports whether two records hold the same objects with the same content, and the
// second has no write that may or may not have happened. Drift that was corrected, an object that
// was created as recorded, and writes that all failed leave the content as it was.
func sameContent(before, after []records.Object) bool {
	return slices.EqualFunc(before, after, func(a, b records.Object) bool {
		return a.ID == b.ID && b.Intent == "" && reflect.DeepEqual(a.Content, b.Content)
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
	done := a.writer.total()
	entry := records.HistoryEntry{
		Number: 1, Time: a.options.Now.UTC(), Version: a.want.Version, Revision: a.want.Revision, TargetHash: a.want.Target.Hash,
		Epoch: a.cluster.records.Epoch(a.record), Writer: a.cluster.records.Session(), Pinned: a.want.Pin != nil,
		Created: done.Created, Updated: done.Updated, Deleted: done.Deleted,
	}
	if len(old) > 0 {
		entry.Number = old[0].Number + 1
	}
	out := append([]records.HistoryEntry{entry}, old...)
	return out[:min(len(out), records.HistoryLength)]
}

func (a *applying) health() []health.Result {
	var out []health.Result
	for _, o := range a.want.Target.Objects {
		id, _ := differ.Identify(o.Content)
		if live := a.objects.lastAnswer(id); live != nil {
			out = append(out, a.want.Health.Of(id, live))
		}
	}
	return out
}
