// Package records keeps what Keelson applied of each component, as Secrets of the cluster: the
// recorded objects, the intents of writes, hooks, history and pin.
//
// Each component has one writer at a time. The resourceVersion of a record's head detects another
// writer. A session takes a component over with its first write, which begins a new epoch
// (docs/decisions/016). Updates are announced in one Secret that all components share (061).
package records

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/differ"
)

// Record is what Keelson stores in a cluster about one component.
type Record struct {
	Format    int    `json:"format"`
	Component string `json:"component"`
	// Epoch counts the sessions that wrote the record, and Writer is the last of
	// them; see [Writer].
	Epoch  int64  `json:"epoch,omitempty"`
	Writer string `json:"writer,omitempty"`
	// IntentsAt is when the open intents were recorded.
	IntentsAt *time.Time `json:"intentsAt,omitempty"`
	// Version, Tree, Revision and TargetHash of the last complete apply; empty before the first.
	Version    string `json:"version,omitempty"`
	Tree       string `json:"tree,omitempty"`
	Revision   string `json:"revision,omitempty"`
	TargetHash string `json:"targetHash,omitempty"`
	// Unfinished: since then, an apply of another target has changed objects, and none was complete.
	// So the objects are those of no target.
	Unfinished bool `json:"unfinished,omitempty"`
	// Objects are what was applied, in the order of their IDs.
	Objects []Object `json:"objects"`
	// Hooks holds the progress of the hooks of a target that is not applied in whole yet, and hooks
	// whose objects must still be deleted.
	Hooks []Hook `json:"hooks,omitempty"`
	// History of complete applies, the newest first.
	History []HistoryEntry `json:"history,omitempty"`
	// Pin keeps the component at an earlier history entry; nil: it follows git.
	Pin *Pin `json:"pin,omitempty"`
}

// Object is one recorded object.
type Object struct {
	differ.ID  `json:",inline"`
	APIVersion string `json:"apiVersion"`
	// UID is empty where it is not known that the object exists.
	UID string `json:"uid,omitempty"`
	// Content as applied, Secret data as keyed hashes.
	Content map[string]any `json:"content"`
	// Normal holds the hashes of the differences that the API server itself makes to the content.
	Normal []string `json:"normal,omitempty"`
	// Intent is the write that was about to be sent when the record was written. It may or may not
	// have happened.
	Intent Intent `json:"intent,omitempty"`
	// Was is the content that was applied before a creation with an open intent; nil: none. If the
	// object is not there, the next plan is judged by it: a creation that failed approves nothing.
	Was map[string]any `json:"was,omitempty"`
	// Pruning marks an object that a later pass may delete; nil: not marked.
	Pruning *Pruning `json:"pruning,omitempty"`
}

// Intent is a write that is recorded before it is sent. The zero Intent: no write.
type Intent string

// The values of [Intent]. With create and replace, Content is the new content; otherwise it is what
// was applied last.
const (
	IntentCreate  Intent = "create"
	IntentUpdate  Intent = "update"
	IntentReplace Intent = "replace"
	IntentDelete  Intent = "delete"
)

// Former returns what the next plan is judged by if the object is not there: what was applied. Of
// an object that Keelson itself was about to replace that is the new content, which git approved.
func (o *Object) Former() map[string]any {
	if o.Intent == IntentCreate {
		return o.Was
	}
	return o.Content
}

// Pruning marks a recorded object that is absent from a complete target. Everything else of the
// target was applied.
type Pruning struct {
	TargetHash string    `json:"targetHash"`
	Revision   string    `json:"revision"`
	Since      time.Time `json:"since"`
}

// HookState is the progress of a hook. The zero HookState: not begun.
type HookState string

// The values of [HookState].
const (
	HookIntended  HookState = "intended" // about to be created: it may or may not exist
	HookRunning   HookState = "running"
	HookSucceeded HookState = "succeeded"
	HookFailed    HookState = "failed"
)

// Hook is the progress of a hook whose target is not applied in whole yet, or a hook whose object
// must still be deleted.
type Hook struct {
	differ.ID  `json:",inline"`
	APIVersion string `json:"apiVersion"`
	Event      string `json:"event"`
	TargetHash string `json:"targetHash"`
	// Attempt counts the runs of the hook for the target, from 1.
	Attempt int       `json:"attempt"`
	State   HookState `json:"state"`
	// At is the start of the apply that recorded the state.
	At time.Time `json:"at"`
	// UID is empty where it is not known that the object exists.
	UID string `json:"uid,omitempty"`
	// Policies define when the object is deleted.
	Policies []string `json:"policies,omitempty"`
	// Contested: a replaced session may still create the object. The object stays, because its
	// presence keeps that creation from running the hook again.
	Contested bool `json:"contested,omitempty"`
	// Message says why the hook failed.
	Message string `json:"message,omitempty"`
}

// HistoryLength is how many entries the history of a record has at most.
const HistoryLength = 10

// HistoryEntry is one complete apply of a component.
type HistoryEntry struct {
	Number     int       `json:"number"`
	Time       time.Time `json:"time"`
	Version    string    `json:"version"`
	Revision   string    `json:"revision"`
	TargetHash string    `json:"targetHash"`
	// Epoch and Writer are the session that applied it.
	Epoch  int64  `json:"epoch,omitempty"`
	Writer string `json:"writer,omitempty"`
	// Pinned: the apply was a rollback, or was made under one.
	Pinned  bool `json:"pinned,omitempty"`
	Created int  `json:"created,omitempty"`
	Updated int  `json:"updated,omitempty"`
	Deleted int  `json:"deleted,omitempty"`
	// Health when the next apply began, or Healthy if this process saw the target settled
	// before. Empty: no apply followed yet, or the health is unknown.
	Health v1alpha1.Health `json:"health,omitempty"`
}

// Delivered is the last complete apply of a component: its version, revision of
// the fleet repository, and rendered target. The zero value: there was none.
type Delivered struct {
	Version, Revision, TargetHash string
}

// AbsentPrefix begins the target hash of a component that git wants absent. That target has no
// objects. No render has such a hash.
const AbsentPrefix = "absent-"

// Removing reports whether the last delivery began to remove the component. Objects of it may be left.
func (d Delivered) Removing() bool { return strings.HasPrefix(d.TargetHash, AbsentPrefix) }

// Pin keeps a component at an earlier history entry until git changes the target: a rollback.
type Pin struct {
	// Number of the history entry, with its version, revision and target.
	Number     int    `json:"number"`
	Version    string `json:"version"`
	Revision   string `json:"revision"`
	TargetHash string `json:"targetHash"`
	// Against is the target that git wanted when the pin was made. The pin ends when git wants
	// another target.
	Against string    `json:"against"`
	By      string    `json:"by,omitempty"`
	At      time.Time `json:"at"`
	Because string    `json:"because,omitempty"`
}

// Holds returns the pin while git wants the target that it was made against, otherwise nil: git
// has moved on, and the pin has ended.
func (p *Pin) Holds(targetHash string) *Pin {
	if p == nil || p.Against != targetHash {
		return nil
	}
	return p
}

// String describes the pin for people: its version, author and reason; "" without a pin.
func (p *Pin) String() string {
	if p == nil {
		return ""
	}
	s := fmt.Sprintf("pinned to %d, %s", p.Number, p.Version)
	if p.By != "" {
		s += ", by " + p.By
	}
	if p.Because != "" {
		s += ": " + p.Because
	}
	return s
}

// Equal reports whether two pins are the same; nil: no pin.
func (p *Pin) Equal(other *Pin) bool {
	if p == nil || other == nil {
		return p == other
	}
	x, y := *p, *other
	x.At, y.At = time.Time{}, time.Time{} // the same time can have several forms
	return x == y && p.At.Equal(other.At)
}

// Open reports whether any object has an intent.
func (r *Record) Open() bool {
	return slices.ContainsFunc(r.Objects, func(o Object) bool { return o.Intent != "" })
}

// Find returns a recorded object, or nil.
func (r *Record) Find(id differ.ID) *Object {
	i, found := slices.BinarySearchFunc(r.Objects, id, func(o Object, id differ.ID) int { return differ.CompareIDs(o.ID, id) })
	if !found {
		return nil
	}
	return &r.Objects[i]
}

// Has reports whether a record holds the same object as applied.
func (r *Record) Has(o *Object) bool {
	has := r.Find(o.ID)
	return has != nil && has.UID == o.UID && has.Intent == ""
}

// Delivered returns the last complete apply.
func (r *Record) Delivered() Delivered {
	return Delivered{Version: r.Version, Revision: r.Revision, TargetHash: r.TargetHash}
}

// DeliveredAs returns the newest history entry that had a target; false: none.
func (r *Record) DeliveredAs(targetHash string) (Delivered, bool) {
	i := slices.IndexFunc(r.History, func(e HistoryEntry) bool { return e.TargetHash == targetHash })
	if i < 0 {
		return Delivered{}, false
	}
	e := r.History[i]
	return Delivered{Version: e.Version, Revision: e.Revision, TargetHash: e.TargetHash}, true
}

// Stored is a Record as it is in the cluster. Its content must not be changed.
type Stored struct {
	Record
	// ResourceVersion of the record's Secret; empty before the first write.
	ResourceVersion string

	sum   fingerprint.Sum // of the Secret's content
	parts []string        // names of the Secrets that hold a large record
	size  int             // in memory, in bytes
	// announced is the announcement made since the record was written; nil: none.
	announced *announcement
}
