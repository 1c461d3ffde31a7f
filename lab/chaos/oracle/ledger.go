package oracle

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/keelson-io/keelson/lab/audit"
)

// Object identifies an object as the audit log does, without the API version.
type Object struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"` // "deployments"
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func (o Object) String() string {
	return audit.Resource{Group: o.Group, Resource: o.Resource, Namespace: o.Namespace, Name: o.Name}.String()
}

// Ledger holds what a scenario allows Keelson to do: the objects that components own,
// and the wanted deletions. A scenario makes the entries before Keelson can act. The
// methods are safe for concurrent use. The zero Ledger allows nothing.
type Ledger struct {
	mu      sync.Mutex
	entries ledger
}

type ledger struct {
	// Owned are the objects that the targets of the fleet contain, or contained at some
	// commit.
	Owned []Object `json:"owned"`
	// Namespaces are the namespaces in which every object is owned.
	Namespaces []string `json:"namespaces,omitempty"`
	// Deletions are the wanted deletions: the object left a complete target, or needs a
	// replacement.
	Deletions []Deletion `json:"deletions"`
	// Restores are the times at which etcd was restored to an older state. An object
	// that was deleted before may exist again, with the same UID.
	Restores []time.Time `json:"restores,omitempty"`
}

// Deletion is a deletion that is wanted from a time on.
type Deletion struct {
	Object `json:",inline"`
	From   time.Time `json:"from"`
	Why    string    `json:"why"`
}

func (l *Ledger) enter(into func(*ledger)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	into(&l.entries)
}

// Own enters objects that components own.
func (l *Ledger) Own(objects ...Object) {
	l.enter(func(e *ledger) { e.Owned = append(e.Owned, objects...) })
}

// OwnNamespace enters a namespace that components own, with every object in it.
func (l *Ledger) OwnNamespace(name string) {
	l.enter(func(e *ledger) { e.Namespaces = append(e.Namespaces, name) })
}

// MayDelete permits the deletion of each of the objects from a time on, once per UID.
func (l *Ledger) MayDelete(from time.Time, why string, objects ...Object) {
	l.enter(func(e *ledger) {
		for _, o := range objects {
			e.Deletions = append(e.Deletions, Deletion{Object: o, From: from, Why: why})
		}
	})
}

// Restored enters the time of a restore of etcd to an older state. The API server must
// have been down at that time.
func (l *Ledger) Restored(at time.Time) {
	l.enter(func(e *ledger) { e.Restores = append(e.Restores, at) })
}

// Save writes the ledger to a file that [Load] can read.
func (l *Ledger) Save(path string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	data, err := json.MarshalIndent(l.entries, "", " ")
	if err != nil {
		return fmt.Errorf("encode the ledger: %w", err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	return nil
}

// Load reads a ledger from a file that [Ledger.Save] wrote.
func Load(path string) (*Ledger, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	l := &Ledger{}
	if err := json.Unmarshal(data, &l.entries); err != nil {
		return nil, fmt.Errorf("read the ledger %s: %w", path, err)
	}
	return l, nil
}
