// Package fingerprint identifies content by a short hash. Fingerprints are compared within one
// process: they are neither stored nor sent.
package fingerprint

import (
	"crypto/sha256"
	"fmt"
	"hash"
)

// Sum is the fingerprint of some content. The zero Sum stands for no content.
type Sum [16]byte

// Hash computes a [Sum]. Use [New].
type Hash struct{ of hash.Hash }

// New returns a Hash of the given texts.
func New(parts ...string) Hash {
	h := Hash{sha256.New()}
	h.Add(parts...)
	return h
}

// Add adds texts so that two different lists never give the same input.
func (h Hash) Add(parts ...string) {
	for _, part := range parts {
		_, _ = fmt.Fprintf(h.of, "%d:%s", len(part), part) // a hash never fails
	}
}

// Sum returns the fingerprint of all that was added.
func (h Hash) Sum() Sum { return Sum(h.of.Sum(nil)[:len(Sum{})]) }

// Of returns the fingerprint of one text.
func Of(data []byte) Sum {
	all := sha256.Sum256(data)
	return Sum(all[:len(Sum{})])
}
