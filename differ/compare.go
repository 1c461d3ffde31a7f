// Package differ computes what applying target objects would change.
//
// It takes values and returns values: no client, clock, logger or global. The same arguments give
// the same [Plan], byte for byte. The fields that are shown and the fields that are sent come from
// one decision for each field, so they can't disagree.
package differ

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/configversion"
)

// State is one object: recorded, target and live. A read that failed is not a State: the observer
// returns that error, and no plan is made.
type State struct {
	ID ID
	// Recorded is the object that Keelson last applied, Secret data masked; nil: never.
	Recorded map[string]any
	// Former is the object that Keelson had applied before it began a creation that may have
	// failed, Secret data masked. It is used only if Recorded is nil. An object that does not exist
	// is judged by Former.
	Former map[string]any
	// Foreign is why Former may judge the object, and may not be created: another component
	// recorded it; empty: it may be created.
	Foreign string
	// RecordedUID is the UID of the object that was applied; empty: not known.
	RecordedUID string
	// Uncertain means that a later apply was begun, and may have succeeded: live fields that
	// Keelson owns also count as recorded.
	Uncertain bool
	// Target is nil when the object is no longer rendered.
	Target *renderer.Object
	// Live is nil if the API server answered 404. It may lack metadata.managedFields: if they are
	// needed, the plan says so.
	Live map[string]any
	// OwnersRead means that Live came with its managedFields, if it has any: an object without them
	// has no owner. If Live has managedFields, they count as read in any case.
	OwnersRead bool
	// Unread is why Live of an object without a target could not be read, while all other reads
	// succeeded; empty: Live was read. The plan does nothing about the object, which may exist or
	// not.
	Unread string
	// Waits is why the deletion of an object without a target waits; empty: it does not wait.
	Waits string
	// Used is which pod or kept revision refers to an earlier version of a ConfigMap or Secret;
	// empty: none does, as far as UseRead says that this was read.
	Used    string
	UseRead bool
	// TransferredFrom is the component from which the object is taken over. That component applied it, as
	// Recorded says, its label is still on the object, and its own target lacks the object. Empty:
	// an object with the label of another component is left alone.
	TransferredFrom string
	// Relabelled means that the label of another component on the object is drift. The component's
	// own record has the object, by its UID. The record of the other component does not have it,
	// and no other component wants it.
	Relabelled bool
	// Contested is why the other component keeps the object; empty: not known.
	Contested string
	// CustomResources is the result for the custom resources of a CRD under its target's schema; nil:
	// they were not read. If they are needed, the plan says so.
	CustomResources *CustomResources
	// Normal holds the hashes of differences that are known to be the API server's normal form of
	// the target; see [Residue].
	Normal []string
	// DryRun is the API server's answer to the change that was planned before; nil: no dry run was
	// made.
	DryRun *DryRun
	// ReplacementDryRun is the API server's answer to the creation, under another name, of an object that
	// is to be replaced; nil: no dry run was made. If it is refused or fails, the replacement is
	// held.
	ReplacementDryRun *DryRun
	// Inputs identify the inputs of the comparison. Settled are the inputs of the last comparison
	// with a [Change.Quiet] result. If both are equal, the object is not compared.
	Inputs, Settled Inputs
}

// DuplicateError means that the states have one object twice.
type DuplicateError struct{ ID ID }

func (e *DuplicateError) Error() string { return "object " + e.ID.String() + " stands twice" }

// Compare returns the plan that takes every Live to its Target.
//
// Arguments are not modified, and their order does not matter. The error is a [*DuplicateError], or
// names the object. For a value that is no JSON, is nested too deeply or is too large for any API
// server, the error also names the path. Unreadable managedFields are an error, too. With an error
// the plan is empty.
//
// Time is linear in the number of leaf fields (BenchmarkCompareLeaves). The cost of danger rules is
// bounded: beyond the bound, the error wraps [ErrTooMuch]. The end of ctx is an error.
func Compare(ctx context.Context, schemas Schemas, states []State, policy Policy) (Plan, error) {
	return compare(newEffort(ctx, compareEffort), schemas, states, policy)
}

func compare(effort *effort, schemas Schemas, states []State, policy Policy) (Plan, error) {
	states = slices.Clone(states)
	slices.SortFunc(states, func(a, b State) int { return CompareIDs(a.ID, b.ID) })
	plan := Plan{Changes: make([]Change, 0, len(states))}
	if policy.targets == nil {
		policy = policy.Among(states)
	}
	policy.versions = sync.OnceValue(func() *configVersions { return versionsOf(states) })
	for i, s := range states {
		if i > 0 && states[i-1].ID == s.ID {
			return Plan{}, &DuplicateError{ID: s.ID}
		}
		if s.unchanged() {
			plan.Changes = append(plan.Changes, settled(&s))
			continue
		}
		if err := effort.spend(checkEvery); err != nil {
			return Plan{}, fmt.Errorf("%s: %w", s.ID, err)
		}
		c, err := compareOne(schemas, s, policy, effort)
		if err != nil {
			return Plan{}, fmt.Errorf("%s: %w", s.ID, err)
		}
		plan.Changes = append(plan.Changes, c)
	}
	plan.boundDeletions()
	plan.versionsFirst(states, policy.configVersions())
	plan.deletionsLast(states)
	return plan, nil
}

// CompareIDs orders IDs by group, kind, namespace and name.
func CompareIDs(a, b ID) int {
	for _, c := range [...]int{
		strings.Compare(a.Group, b.Group), strings.Compare(a.Kind, b.Kind),
		strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
	} {
		if c != 0 {
			return c
		}
	}
	return 0
}

// stop leaves the object as it is.
func (c *Change) stop(state ObjectState, rule, because string) {
	if rule != c.Rule {
		c.Fix = ""
	}
	c.Op, c.State, c.Rule, c.Because = OpNone, state, rule, because
	c.Patch, c.DryRunBody, c.First, c.HandOver, c.Migrate, c.RecordStale = nil, nil, nil, nil, nil, false
}

// stopBy leaves the object as it is, by a danger rule.
func (c *Change) stopBy(r finding, state ObjectState) {
	c.stop(state, r.Name, r.because())
	c.Fix = r.Fix
}

func compareOne(schemas Schemas, s State, policy Policy, effort *effort) (Change, error) {
	c := newComparison(schemas, s, policy, effort)
	if err := c.run(); err != nil {
		return Change{}, err
	}
	return c.change, nil
}

func newComparison(schemas Schemas, s State, policy Policy, effort *effort) *comparison {
	c := &comparison{
		state: s, policy: policy, effort: effort, view: objectView{mask: maskFor(s.ID, policy.MaskKey), seen: s.Normal},
		recorded: canonical(s.Recorded), target: canonical(content(s.Target)), live: canonical(s.Live),
		change: Change{ID: s.ID, Op: OpNone, State: StateSynced, Live: s.Live, Record: s.Recorded, Normal: s.Normal},
	}
	c.change.APIVersion, _ = firstOf(c.target, c.live, c.recorded)["apiVersion"].(string)
	if s.Target != nil {
		c.change.Source = s.Target.Source
	}
	c.view.typ, c.view.hash = schemas.typeOf(schema.FromAPIVersionAndKind(c.change.APIVersion, s.ID.Kind))
	status, _ := s.Live["status"].(map[string]any)
	c.rules = ruleSearch{
		id: s.ID, policy: &c.policy, effort: effort, mask: c.view.mask, live: c.live, target: c.target, status: status, unread: &c.change.Unread,
	}
	if v, is := configversion.Of(c.target); is { // rules know it by its name in the chart
		c.rules.version, c.rules.id.Name, c.rules.live, c.rules.target = true, v.Name, configversion.Plain(c.live), configversion.Plain(c.target)
	}
	return c
}

// run fills in the change.
func (c *comparison) run() error {
	for _, err := range []error{
		checkObject("recorded object", c.recorded), checkTarget(c.state.Target, c.target), checkObject("live object", c.live),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case c.target == nil && c.state.Unread != "":
		c.change.State, c.change.Because = StateChanged, c.state.Unread
	case c.target == nil && c.policy.configVersions().keepInForce(c):
	case c.target == nil && c.live == nil && c.state.Waits != "":
		c.change.postpone(c.state.Waits)
	case c.target == nil && c.live == nil:
		c.change.Op, c.change.Record, c.change.RecordStale = OpForget, nil, true
	case c.target == nil:
		if err := c.remove(); err != nil {
			return err
		}
	default:
		if err := c.planTarget(); err != nil {
			return err
		}
	}
	if c.change.Unread.Nodes {
		c.change.Op, c.change.RecordStale = OpNone, false
	}
	return c.effort.err // a decision without all rules is void
}

func content(o *renderer.Object) map[string]any {
	if o == nil {
		return nil
	}
	return o.Content
}

func firstOf(objects ...map[string]any) map[string]any {
	for _, o := range objects {
		if o != nil {
			return o
		}
	}
	return nil
}

// comparison is the work on one object: it finds the fields that differ, decides about each, and
// fills in the change.
type comparison struct {
	state  State
	policy Policy
	effort *effort
	view   objectView
	rules  ruleSearch
	who    owners // unread until a row needs them
	change Change

	recorded, target, live map[string]any // canonical

	newToKeelson bool             // the object exists, and Keelson never wrote to it
	rebuilt      bool             // recorded comes from managedFields
	hollow       []fieldpath.Path // maps and lists that are wanted empty, and are not empty
	immutable    immutableFields

	decisions
}

// decisions are the decisions about all rows of one object.
type decisions struct {
	kept    *fieldpath.Set // fields that are left out of the patch
	dropped *fieldpath.Set // fields that were handed over, and are now removed
	taken   *fieldpath.Set // list items that are removed with persons' changes in them
	waiting *fieldpath.Set // fields that are held while the object is not
	removed *fieldpath.Set // fields, and whole list items, that are removed
	moved   *fieldpath.Set // fields that are set, restored or removed
	letGo   bool           // Keelson still owns a kept or released field
	// differing holds the rows that are set or restored.
	differing []row
	fixed     bool // no update can bring the object to its target
}

func newDecisions() decisions {
	return decisions{
		kept: &fieldpath.Set{}, dropped: &fieldpath.Set{}, taken: &fieldpath.Set{},
		waiting: &fieldpath.Set{}, removed: &fieldpath.Set{}, moved: &fieldpath.Set{},
	}
}

func nested(object map[string]any, path ...string) any {
	for _, name := range path[:len(path)-1] {
		object, _ = object[name].(map[string]any)
	}
	return object[path[len(path)-1]]
}

// planTarget plans the change to the target.
func (c *comparison) planTarget() error {
	if why := c.policy.Limits.Refuses(c.state.ID); why != "" {
		c.change.stop(StateDenied, c.policy.Limits.Rule(), why)
		return nil
	}
	if c.live == nil && c.state.Contested != "" {
		c.change.stop(StateHeld, ruleOtherComponent, c.state.Contested)
		return nil
	}
	if other := c.bearer(); other != "" && other != c.policy.Component && other != c.state.TransferredFrom && !c.state.Relabelled {
		c.change.stop(StateHeld, ruleOtherComponent, cmp.Or(c.state.Contested, "it belongs to component "+other))
		return nil
	}
	if err := c.findRecorded(); err != nil {
		return err
	}
	rows := c.rows()
	if len(rows) > 0 {
		if err := c.readOwners(); err != nil {
			return err
		}
	}
	worst := c.decideApproved(rows)
	if worst == StateChanged && !c.kept.Empty() && !c.who.read {
		c.change.Unread.Owners = true // a kept field may have to be handed over
	}
	if stopped, err := c.recreate(); err != nil || stopped {
		return err
	}
	switch {
	case c.change.Unread.Owners, c.change.Unread.CustomResources:
		c.change.Op, c.change.RecordStale = OpNone, false
	case deleting(c.state.Live):
		c.awaitDeletion(worst)
	case worst == StateHeld || worst == StateDenied:
		c.change.Op, c.change.RecordStale = OpNone, false
	default:
		c.change.Record = c.record()
		c.change.RecordStale = c.change.RecordStale || !equal(c.change.Record, any(c.state.Recorded))
		c.send(worst)
		c.foresee()
		c.foreseeReplacement()
		c.policy.configVersions().show(c)
	}
	if c.change.Op != OpUpdate {
		c.change.Migrate = nil
	}
	return nil
}

// awaitDeletion leaves alone an object that is being deleted. A held change stays held: the rest of the
// component must not count it as done.
func (c *comparison) awaitDeletion(worst ObjectState) {
	hash, approved := c.change.Hash, c.change.Approved
	if c.change.State != StateHeld && c.change.State != StateDenied {
		worst = StateChanged
		c.change.Fields, c.change.Warnings = nil, nil
		hash, approved = "", false
	}
	c.change.stop(max(worst, c.change.State), c.change.Rule, "it is being deleted, and will be created anew when it is gone")
	c.change.Hash, c.change.Approved = hash, approved
}

// approved reports whether git approves the difference.
func (c *comparison) approved() bool {
	return slices.Contains(c.policy.Approved[c.state.ID.String()], c.change.Hash)
}

// decideApproved decides about every row, and again if git approves the held change. It returns the
// result of [comparison.decideAll].
func (c *comparison) decideApproved(rows []row) ObjectState {
	worst := c.decideAll(rows)
	if c.change.State == StateHeld && c.approved() {
		hash := c.change.Hash
		c.change.Approved = true
		worst = c.decideAll(rows)
		c.change.Hash = hash
	}
	return worst
}

// decideAll decides about every row. It returns the state of the object, without fields that wait
// alone.
func (c *comparison) decideAll(rows []row) ObjectState {
	c.decisions, c.rules.trials = newDecisions(), nil
	c.change.Fields, c.change.Warnings, c.change.RecordStale, c.change.Unread.Nodes = nil, nil, false, false
	if !c.judgeCreation() {
		return StateDenied
	}
	all, waiting := sha256.New(), sha256.New()
	worst, table := StateSynced, c.threeWay()
	for i := range rows {
		w := &rows[i]
		if c.effort.spend(1) != nil {
			break // run returns the error
		}
		f, ok := c.decide(w, &table)
		if !ok {
			continue
		}
		c.change.Fields = append(c.change.Fields, f)
		if stateOf(f.Action) != StateSynced { // a field that stays may change without a new approval
			all.Write(w.bytes(w.t))
		}
		if c.waiting.Has(w.path) {
			waiting.Write(w.bytes(w.t))
			continue
		}
		worst = max(worst, stateOf(f.Action))
	}
	c.change.RecordStale = c.change.RecordStale || table.recordStale
	if c.letGo || len(c.change.Migrate) > 0 {
		worst = max(worst, StateChanged)
	}
	worst = max(worst, c.judgeCustomResources(rows, all))
	hash := all
	c.change.State = worst
	if !c.waiting.Empty() && worst < StateHeld {
		// The rest is applied: an approval is for the fields that wait.
		c.change.State, hash = StateHeld, waiting
		c.kept = c.kept.Union(c.waiting)
	}
	c.change.Hash = hex.EncodeToString(hash.Sum(nil)[:16])
	return worst
}

// rows returns the leaf fields that are not settled.
func (c *comparison) rows() []row {
	var rows []row
	rows, c.hollow = c.view.rows(c.recorded, c.target, c.live)
	return rows
}

// threeWay returns the decision about single fields, without danger rules.
func (c *comparison) threeWay() threeWay {
	return threeWay{
		view: &c.view, who: &c.who, exists: c.live != nil, newToKeelson: c.newToKeelson,
		adopt: c.policy.Adopt, reportDrift: c.policy.Drift == v1alpha1.DriftReport, approved: c.change.Approved,
		unread: &c.change.Unread, sets: &c.decisions,
	}
}

// record returns the object to record after the target was applied. Fields that wait stay as they
// were recorded.
func (c *comparison) record() map[string]any {
	target := c.view.mask.apply(c.target)
	if c.waiting.Empty() {
		return target
	}
	carve := carver{c.view.typ.Schema}
	rest := carve.without(c.view.typ.TypeRef, target, c.waiting)
	out, _ := carve.graft(c.view.typ.TypeRef, rest, carve.extract(c.view.typ.TypeRef, c.view.mask.apply(c.recorded), c.waiting)).(map[string]any)
	return out
}

// stateOf returns the state that one field's action gives its object.
func stateOf(a Action) ObjectState {
	switch a {
	case ActionDeny:
		return StateDenied
	case ActionHold:
		return StateHeld
	case ActionSet, ActionRestore, ActionRemove, ActionAdopt:
		return StateChanged
	case ActionKeep, ActionRelease:
		return StateSynced
	}
	return StateDenied
}

// findRecorded replaces a record that was lost, or that is of another version of the API, by the
// live fields that Keelson owns. If a record may be behind, it adds these fields to the record.
func (c *comparison) findRecorded() error {
	lost := c.recorded == nil && c.live != nil
	behind := c.state.Uncertain && c.recorded != nil && c.live != nil && c.recorded["apiVersion"] == c.target["apiVersion"]
	if !lost && !behind && (c.recorded == nil || c.recorded["apiVersion"] == c.target["apiVersion"]) {
		return nil
	}
	if err := c.readOwners(); err != nil {
		return err
	}
	if c.live != nil && !c.who.read {
		c.change.Unread.Owners = true
		return nil
	}
	if c.newToKeelson = lost && !c.who.includesKeelson(); c.newToKeelson {
		c.change.Migrate = c.who.migrate()
	}
	c.rebuilt = true
	carve, known := carver{c.view.typ.Schema}, any(nil)
	if behind {
		known = c.recorded
	}
	owned := carve.extract(c.view.typ.TypeRef, c.live, c.who.union(isApplied))
	c.recorded, _ = carve.graft(c.view.typ.TypeRef, known, owned).(map[string]any)
	return nil
}

// readOwners reads the managedFields if the object has them, or if they were fetched. Without them,
// the record may give the owners; see [Policy.OwnersByRecord].
func (c *comparison) readOwners() error {
	unmanaged := nested(c.state.Live, "metadata", "managedFields") == nil
	if c.who.read || !c.state.OwnersRead && unmanaged {
		return nil
	}
	if c.policy.OwnersByRecord && unmanaged && c.recorded != nil {
		c.who = ownersOf(c.view.typ, c.recorded)
		return nil
	}
	who, err := readOwners(c.state.ID, c.state.Live)
	c.who = who
	return err
}

// send fills in the requests of the applier.
func (c *comparison) send(worst ObjectState) {
	switch {
	case c.live == nil:
		c.change.Op, c.change.State = OpCreate, StateChanged
		c.change.Patch, c.change.DryRunBody = c.target, c.target
	case worst == StateChanged && c.fixed:
		c.replace()
	case worst == StateChanged:
		c.change.Op = OpUpdate
		c.change.Patch = c.without(c.kept)
		c.change.HandOver = c.handOver()
		c.change.DryRunBody = c.dryRunBody()
	}
}

// without returns the target without some fields.
func (c *comparison) without(fields *fieldpath.Set) map[string]any {
	out, _ := carver{c.view.typ.Schema}.without(c.view.typ.TypeRef, c.target, fields).(map[string]any)
	return out
}
