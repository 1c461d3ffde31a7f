package differ

import (
	"encoding/json"
	"fmt"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Op is the applier's operation on one object. The zero Op is invalid, so a Change without an Op
// can't be taken for [OpNone].
type Op uint8

// The values of [Op].
const (
	OpNone    Op = iota + 1 // leave the object as it is
	OpCreate                // create an object that does not exist
	OpUpdate                // send First, HandOver and Patch
	OpReplace               // delete the object, and create it anew from Patch: no update can change it
	OpDelete                // delete an object that is no longer wanted
	OpForget                // drop the object from the record, and leave the cluster as it is
)

// String returns the name in the JSON contract. OpForget is "none": it needs no operation in the
// cluster.
func (o Op) String() string {
	switch o {
	case OpNone, OpForget:
		return "none"
	case OpCreate:
		return "create"
	case OpUpdate:
		return "update"
	case OpReplace:
		return "replace"
	case OpDelete:
		return "delete"
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// MarshalText returns the name.
func (o Op) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// ObjectState is the result of the comparison for an object. The zero value is invalid.
type ObjectState uint8

// The values of [ObjectState].
const (
	StateSynced  ObjectState = iota + 1 // nothing to do
	StateChanged                        // the Op brings the object to its target; OpNone: the change waits
	StateHeld                           // a dangerous change waits; an Op moves only the rest, or creates what was recorded
	StateDenied                         // a rule forbids the change; an Op can only create what was recorded
)

// String returns the name in the JSON contract.
func (s ObjectState) String() string {
	switch s {
	case StateSynced:
		return "synced"
	case StateChanged:
		return "changed"
	case StateHeld:
		return "held"
	case StateDenied:
		return "denied"
	}
	return fmt.Sprintf("ObjectState(%d)", uint8(s))
}

// MarshalText returns the name.
func (s ObjectState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Action is the decision for one field. The zero Action is invalid.
type Action uint8

// The values of [Action].
const (
	ActionSet     Action = iota + 1 // a wanted change
	ActionRestore                   // drift that is undone
	ActionRemove                    // no longer wanted
	ActionKeep                      // the live value stays
	ActionRelease                   // no longer wanted, but not Keelson's to remove
	ActionHold                      // waits for approval
	ActionDeny                      // forbidden
	ActionAdopt                     // already present: Keelson only takes ownership
)

// String returns the name in the JSON contract.
func (a Action) String() string {
	names := [...]string{"", "set", "restore", "remove", "keep", "release", "hold", "deny", "adopt"}
	if a == 0 || int(a) >= len(names) {
		return fmt.Sprintf("Action(%d)", uint8(a))
	}
	return names[a]
}

// MarshalText returns the name.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Field is one leaf field that is not settled.
type Field struct {
	// Path in structured-merge-diff syntax.
	Path string
	// Recorded, Target and Live are nil if absent. Data of Secrets is masked by a keyed hash.
	Recorded, Target, Live any
	Action                 Action
	// Rule is the danger rule that decided, if any. Because is the reason, if any. Fix says what to do
	// instead, if the rule stops the change.
	Rule, Because, Fix string
	// at is the path. item is the length of the path of the list item with which the field comes or
	// goes as a whole; 0 without such an item.
	at   fieldpath.Path
	item int
}

// MarshalJSON omits absent values, but not false, 0 and "".
func (f Field) MarshalJSON() ([]byte, error) {
	m := map[string]any{"path": f.Path, "action": f.Action}
	for name, v := range map[string]any{"recorded": f.Recorded, "target": f.Target, "live": f.Live} {
		if v != nil {
			m[name] = v
		}
	}
	if f.Rule != "" {
		m["rule"] = f.Rule
	}
	if f.Because != "" {
		m["because"] = f.Because
	}
	if f.Fix != "" {
		m["fix"] = f.Fix
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("field %s: %w", f.Path, err)
	}
	return data, nil
}

// Change is the plan for one object.
type Change struct {
	ID         ID
	APIVersion string
	Op         Op
	State      ObjectState
	// Fields that are not settled: maps by name, lists in the target's order.
	Fields []Field
	// Warnings about fields that change, and about the object's creation or deletion.
	Warnings []Warning
	// Rule is the danger rule that decided about the object as a whole, if any. Because is the
	// reason why the object is held, denied, forgotten or waits, if any. Fix says what to do instead
	// of what the rule stops.
	Rule, Because, Fix string
	ConfigVersion
	// Hash identifies the difference. An approval names this hash.
	Hash string
	// Approved reports that git approves a deletion, or a difference that would be held otherwise.
	Approved bool
	// Missed describes approvals in git that seem to be meant for this change, but do not match it;
	// see [Plan.NoteApprovals].
	Missed []string
	// Admission lists the changes of the API server beyond those of git: defaults, and fields from
	// webhooks. Only a dry run finds them.
	Admission []Addition
	// Unpredicted is why a dry run had no result; empty if it had one, or was not made.
	Unpredicted string
	// Source is the position of the target in git.
	Source yamlfile.Position

	Requests
	// Live is the live object that was compared; nil if absent.
	Live map[string]any
	// Record is the object to record once the Op is done; nil removes the object from the record.
	// Data of Secrets is masked.
	Record map[string]any
	// RecordStale reports that the record must be written even without an Op.
	RecordStale bool
	// Normal is the value to record as [State.Normal].
	Normal []string
	// Unread is what the decision needs and the comparison lacked. If there is any, the Op is OpNone.
	Unread Unread
}

// ConfigVersion is what a change says about a version of a ConfigMap or Secret. The zero value is that
// of any other object.
type ConfigVersion struct {
	// Retained is why an earlier version stays, although the target no longer has it; empty: the object
	// is none. A retained object is synced.
	Retained string
	// Follows is the name of the earlier version that a created version follows; empty: there is none.
	// DataChanges are the differences of their data.
	Follows     string
	DataChanges []Field
	// Unused means that the deletion is of an earlier version that is not needed any more.
	Unused bool
}

// Requests are what the applier sends for a change.
type Requests struct {
	// Migrate names the field managers of tools that apply on the client's side (kubectl apply,
	// Helm). Their fields become Keelson's before anything is sent. Otherwise fields that leave git
	// could never be removed.
	Migrate []string
	// Patch is the body that OpCreate, OpUpdate and OpReplace send by server-side apply, without
	// fields that stay as they are. Patch is not masked: never print it.
	Patch map[string]any
	// DryRunBody is the body of a dry run, in one request: Patch with the fields that are handed over.
	// It is nil where one request can't predict the result.
	DryRunBody map[string]any
	// First is sent before Patch unless it is nil: Patch without the maps and lists that become
	// empty. Server-side apply sets these to null, which the API server refuses in a custom
	// resource.
	First map[string]any
	// HandOver is sent before First and Patch, by the manager [HandOverManager]: fields that stay,
	// and that would be removed when Keelson stops sending them. HandOver may have no field at all,
	// to remove a field that was handed over before.
	HandOver map[string]any
}

// Unread names the facts that a comparison needs and was not given: most comparisons need none of
// them, and each costs requests. The caller reads them, and compares again, until a plan needs none.
// The facts are needed one after another: with the owners known, custom resources may be needed.
type Unread struct {
	// Owners are the managedFields of the object: fetch the object with them.
	Owners bool
	// CustomResources are those of a CRD: read them, judge them with a [CRDJudge], and set
	// [State.CustomResources].
	CustomResources bool
	// Nodes are those of the cluster: read them into [Policy.Nodes].
	Nodes bool
	// Uses are the references of pods and kept revisions to an earlier version of a ConfigMap or
	// Secret: read them into [State.Used].
	Uses bool
}

// Any reports whether a fact is needed.
func (u Unread) Any() bool { return u != Unread{} }

// HandOverManager returns the field manager that applies [Change.HandOver].
func HandOverManager() string { return handOverManager }

// Plan has one change for each object, in the order of [CompareIDs].
type Plan struct {
	Changes []Change
	// Against names what the objects were compared with, for the head of a diff; empty: live.
	Against string
}

// Count returns how many objects have the given operation.
func (p Plan) Count(op Op) int {
	n := 0
	for i := range p.Changes {
		if p.Changes[i].Op == op {
			n++
		}
	}
	return n
}

// Unread returns what any change of the plan needs, and the comparison lacked.
func (p Plan) Unread() Unread {
	var out Unread
	for i := range p.Changes {
		u := p.Changes[i].Unread
		out.Owners = out.Owners || u.Owners
		out.CustomResources = out.CustomResources || u.CustomResources
		out.Nodes = out.Nodes || u.Nodes
		out.Uses = out.Uses || u.Uses
	}
	return out
}

// Settled reports whether nothing is to be written, held or read: the cluster is as git wants it,
// and so is the record.
func (p Plan) Settled() bool {
	for i := range p.Changes {
		c := &p.Changes[i]
		if c.Op != OpNone || c.State != StateSynced || c.RecordStale || c.Unread.Any() {
			return false
		}
	}
	return true
}

// Writes reports whether the plan changes the cluster or the record. A plan whose changes are only
// held does not.
func (p Plan) Writes() bool {
	for i := range p.Changes {
		c := &p.Changes[i]
		if c.RecordStale || c.Op != OpNone {
			return true
		}
	}
	return false
}

// Differs reports whether any object is not as git wants it.
func (p Plan) Differs() bool {
	for i := range p.Changes {
		if p.Changes[i].State != StateSynced {
			return true
		}
	}
	return false
}

// Approval is a line in git that approves a change.
type Approval struct {
	Object, Hash string
	At           string // file and line
}

// missedShown bounds [Change.Missed]: old approvals of an object stay in git.
const missedShown = 3

// NoteApprovals fills in [Change.Missed] of each change that waits for an approval. An approval
// misses a change if it names another difference of the object, or the same hash for another
// object. Only the last approvals are kept.
func (p Plan) NoteApprovals(list []Approval) {
	for i := range p.Changes {
		c := &p.Changes[i]
		if c.Missed = nil; !c.Approvable() {
			continue
		}
		for _, a := range list {
			switch object := c.ID.String(); {
			case a.Object == object && a.Hash != c.Hash:
				c.Missed = append(c.Missed, fmt.Sprintf("%s approves another difference of it: hash %s", a.At, a.Hash))
			case a.Object != object && a.Hash == c.Hash:
				c.Missed = append(c.Missed, fmt.Sprintf("%s approves this hash for another object: %s", a.At, a.Object))
			}
		}
		if n := len(c.Missed) - missedShown; n > 0 {
			c.Missed = append(c.Missed[n:], fmt.Sprintf("and %d approvals before these", n))
		}
	}
}
