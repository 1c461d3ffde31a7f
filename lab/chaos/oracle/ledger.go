package oracle

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/keelson-io/keelson/lab/audit"
)

// Object is an object as the audit log names it, in any version.
type Object struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"` // "deployments"
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func (o Object) String() string {
	return audit.Resource{Group: o.Group, Resource: o.Resource, Namespace: o.Namespace, Name: o.Name}.String()
}

// Ledger is what a scenario allows Keelson to do, written down before Keelson
// could: which objects its components own, and which deletions are wanted. Its
// methods may be called at the same time.
type Ledger struct {
	mu      sync.Mutex
	entries ledger
}

type ledger struct {
	// Owned are what the targets of the fleet hold, or held at a commit.
	Owned []Object `json:"owned"`
	// Namespaces are those in which everything is owned.
	Namespaces []string `json:"namespaces,omitempty"`
	// Deletions that became right at a time: the object left a complete target,
	// or has to be replaced.
	Deletions []Deletion `json:"deletions"`
	// Restores are the times at which etcd was set back to an older state: what
	// was deleted by then may be there again, with its UID.
	Restores []time.Time `json:"restores,omitempty"`
}

// Deletion is one that is wanted.
type Deletion struct {
	Object `json:",inline"`
	From   time.Time `json:"from"`
	Why    string    `json:"why"`
}

// NewLedger returns one that allows nothing.
func NewLedger() *Ledger { return &Ledger{} }

// Own says that components own the objects.
func (l *Ledger) Own(objects ...Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries.Owned = append(l.entries.Owned, objects...)
}

// OwnNamespace says that components own everything in a namespace, and it.
func (l *Ledger) OwnNamespace(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries.Namespaces = append(l.entries.Namespaces, name)
}

// MayDelete says that from a time on each of the objects may be deleted, once
// per UID.
func (l *Ledger) MayDelete(from time.Time, why string, objects ...Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range objects {
		l.entries.Deletions = append(l.entries.Deletions, Deletion{Object: o, From: from, Why: why})
	}
}

// Restored says that at a time, while the API server was down, etcd was set back
// to an older state.
func (l *Ledger) Restored(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries.Restores = append(l.entries.Restores, at)
}

// Save writes the ledger to a file, which [Load] reads.
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

// Load reads a ledger.
func Load(path string) (*Ledger, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	l := NewLedger()
	if err := json.Unmarshal(data, &l.entries); err != nil {
		return nil, fmt.Errorf("read the ledger %s: %w", path, err)
	}
	return l, nil
}
