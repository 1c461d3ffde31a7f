package sim

import (
	"crypto/sha256"

	"k8s.io/utils/lru"
)

// remembered is the number of merges that are kept.
const remembered = 40_000

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
type merges struct{ cache *lru.Cache }

func (m *merges) lookup(about merge, keep bool, compute func() (*body, error)) (*body, error) {
	if !keep {
		return compute()
	}
	if known, ok := m.cache.Get(about); ok {
		o, _ := known.(outcome)
		return o.body, o.err
	}
	b, err := compute()
	m.cache.Add(about, outcome{b, err})
	return b, err
}
