package sim

import (
	"crypto/sha256"
	"sync"
)

// remembered is the number of merges per generation. Two generations are kept.
const remembered = 20_000

// merge is the key of a server-side apply: all inputs of its result.
type merge struct {
	kind    *kind
	base    *body // nil: the object does not exist
	key     key
	patch   [sha256.Size]byte
	manager string
	force   bool
	status  bool
}

type outcome struct {
	body *body
	err  error
}

// merges caches the results of server-side applies, because the clusters of a fleet apply the same
// objects repeatedly.
type merges struct {
	mu       sync.Mutex
	new, old map[merge]outcome
}

func (m *merges) lookup(about merge, keep bool, compute func() (*body, error)) (*body, error) {
	if !keep {
		return compute()
	}
	m.mu.Lock()
	known, ok := m.new[about]
	if !ok {
		known, ok = m.old[about]
	}
	m.mu.Unlock()
	if ok {
		return known.body, known.err
	}
	b, err := compute()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.new) >= remembered {
		m.new, m.old = map[merge]outcome{}, m.new
	}
	if m.new == nil {
		m.new = map[merge]outcome{}
	}
	m.new[about] = outcome{b, err}
	return b, err
}
