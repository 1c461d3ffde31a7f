package differ

import (
	"encoding/json"
	"fmt"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/registry"
)

// Op is what the applier does to one object. The zero Op is invalid, so a
// Change built without one can't pass for [OpNone].
type Op uint8

// The values of [Op].
const (
	OpNone    Op = iota + 1 // leave the object alone
	OpCreate                // it does not exist
	OpUpdate                // send First, HandOver and Patch
	OpReplace               // delete it, and create it anew from Patch: no update can change it
	OpDelete                // it is no longer wanted
	OpForget                // gone already: drop it from the record
)

// String is the name in the JSON contract; a forgotten object needs no
// operation in the cluster.
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

// MarshalText writes the name.
func (o Op) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// ObjectState says how an object stands. The zero value is invalid.
type ObjectState uint8

// The values of [ObjectState].
const (
	StateSynced  ObjectState = iota + 1 // nothing to do
	StateChanged                        // the Op brings it to its target
	StateHeld                           // a dangerous change waits, and the object with it unless the Op is OpUpdate
	StateDenied                         // a rule forbids the change; nothing of the object moves
)

// String is the name in the JSON contract.
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

// MarshalText writes the name.
func (s ObjectState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Action is what happens to one field. The zero Action is invalid.
type Action uint8

// The values of [Action].
const (
	ActionSet     Action = iota + 1 // a wanted change
	ActionRestore                   // drift that is undone
	ActionRemove                    // no longer wanted
	ActionKeep                      // the live value stays
	ActionRelease                   // no longer wanted, but somebody else's by now
	ActionHold                      // waits for approval
	ActionDeny                      // forbidden
	ActionAdopt                     // there already: only its ownership is taken
)

// String is the name in the JSON contract.
func (a Action) String() string {
	names := [...]string{"", "set", "restore", "remove", "keep", "release", "hold", "deny", "adopt"}
	if a == 0 || int(a) >= len(names) {
		return fmt.Sprintf("Action(%d)", uint8(a))
	}
	return names[a]
}

// MarshalText writes the name.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Field is one leaf field that is not settled.
type Field struct {
	// Path in structured-merge-diff syntax.
	Path string
	// Recorded, Target and Live are nil where absent. Data of Secrets is
	// masked by a keyed hash.
	Recorded, Target, Live any
	Action                 Action
	// Rule and Because are set when a danger rule or an owner decided.
	Rule, Because string
	// at is the path, and item the length of that of the list item that comes or goes as a
	// whole, and the field with it; 0 when there is none.
	at   fieldpath.Path
	item int
}

// MarshalJSON leaves out absent values but not false, 0 and "".
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
	// Warnings are about fields that change, and about the object's creation or deletion.
	Warnings []Warning
	// Rule and Because are set when the object's deletion, or the object as a
	// whole, is held or denied.
	Rule, Because string
	// Hash identifies the difference; an approval is bound to it.
	Hash string
	// Approved says that git approves the difference, which was held else.
	Approved bool
	// Missed are approvals in git that were meant for this change, as it seems, and let
	// it not pass; see [Plan.NoteApprovals].
	Missed []string
	// Admission is what the API server would make of the object beside what git
	// changes: defaults, and what webhooks add. Only a dry run tells.
	Admission []Addition
	// Unpredicted is why a dry run told nothing; empty: it did, or was not made.
	Unpredicted string
	// Source is where the target comes from.
	Source registry.Position

	// Migrate names the field managers of tools that apply on the client's side
	// (kubectl apply, Helm). What they own becomes Keelson's before anything is
	// sent, or what git no longer has could never go.
	Migrate []string
	// Patch is what OpCreate, OpUpdate and OpReplace send by server-side apply,
	// without the fields that stay as they are. It is not masked: never print it.
	Patch map[string]any
	// Probe is what a dry run sends, in one request: Patch, with what is handed
	// over. It is nil where one request can't tell.
	Probe map[string]any
	// First is sent before Patch, where it is not nil: the patch without the maps
	// and lists that become empty. Server-side apply makes null of those, which
	// the API server refuses in a custom resource.
	First map[string]any
	// HandOver is sent before both, in the name of [HandOverManager]: fields that
	// stay, and that would vanish when Keelson stops sending them. It may name
	// no field at all, where what was handed over once must go.
	HandOver map[string]any
	// Live is the object that the plan was made from; nil when absent.
	Live map[string]any
	// Record is what to record once the Op is done; nil to forget the object.
	// Data of Secrets is masked.
	Record map[string]any
	// RecordStale says that the record must be written even without an Op.
	RecordStale bool
	// Normal is what to record as [State.Normal].
	Normal []string
	// OwnersUnread says that the plan could not be decided without
	// managedFields: fetch the object and compare again. The Op is OpNone.
	OwnersUnread bool
	// InstancesUnread says that the plan could not be decided without the custom
	// resources of a CRD: read them, let a [CRDJudge] look at them, and compare
	// again. The Op is OpNone.
	InstancesUnread bool
	// NodesUnread says that the plan could not be decided without the nodes of the cluster:
	// read them into [Policy.Nodes], and compare again. The Op is OpNone.
	NodesUnread bool
}

// HandOverManager is the field manager that [Change.HandOver] is applied with.
func HandOverManager() string { return handOverManager }

// Plan is one change an object, in the order of the states' IDs.
type Plan struct {
	Changes []Change
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

// Settled reports whether nothing is to be written, held or looked up: the
// cluster is as git wants it, and the record says so.
func (p Plan) Settled() bool {
	for i := range p.Changes {
		c := &p.Changes[i]
		if c.Op != OpNone || c.State != StateSynced || c.RecordStale || c.OwnersUnread || c.InstancesUnread || c.NodesUnread {
			return false
		}
	}
	return true
}

// Writes reports whether the plan changes anything, be it only the record. A
// plan that only waits, held, does not.
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

// Approval is a line in git that lets a change pass.
type Approval struct {
	Object, Hash string
	At           string // file and line
}

// missedShown bounds [Change.Missed]: old approvals of an object stay in git.
const missedShown = 3

// NoteApprovals says of each change that waits for an approval which lines miss it, the
// last ones of many: they are bound to another difference of the object, or name another
// object with its hash.
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
