package differ

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Inputs identify everything that a comparison of one object is made from:
// equal Inputs give equal changes. They are comparable; the zero value says that
// it is not known.
type Inputs struct {
	// Recorded, Target and Live tell the three objects from all others: the
	// resourceVersion of the record, the hash of the target, UID and
	// resourceVersion of the live object.
	Recorded, Target, Live string
	Policy                 string // [Policy.Hash]
	Schema                 string // [Schemas.Hash]
	Scaled                 Scaling
}

// unchanged reports whether an object was found settled with the inputs that it
// has now.
func (s *State) unchanged() bool {
	return s.Inputs != Inputs{} && s.Inputs == s.Settled && s.Target != nil && s.Live != nil
}

// settled is the change of an object of which nothing has changed.
func settled(s *State) Change {
	c := Change{ID: s.ID, Op: OpNone, State: StateSynced, Source: s.Target.Source, Live: s.Live, Record: s.Recorded, Normal: s.Normal}
	c.APIVersion, _ = s.Target.Content["apiVersion"].(string)
	return c
}

// Quiet reports whether there is nothing to do for the object, nothing to wait
// for and nothing to show. Its [Inputs] may then stand in [State.Settled].
func (c *Change) Quiet() bool {
	return c.Op == OpNone && c.State == StateSynced && !c.RecordStale && !c.OwnersUnread && !c.NodesUnread && len(c.Fields) == 0 && c.Because == ""
}

// Hash tells a policy from every other, but for what it knows of one object
// alone: Approved and Scaled.
func (p Policy) Hash() string {
	sum := sha256.New()
	write(sum, p.Component, fmt.Sprint(p.AnyComponent), fmt.Sprint(p.OwnersByRecord), fmt.Sprint(p.Adopt), string(p.Drift), string(p.MaskKey))
	fence := p.Fence.parts()
	write(sum, fmt.Sprint(p.Fence != nil, len(fence)))
	write(sum, fence...)
	if p.Rules.readsCluster {
		for _, name := range slices.Sorted(maps.Keys(p.Cluster)) {
			write(sum, name, p.Cluster[name])
		}
	}
	_, _ = sum.Write(p.Rules.sum[:])
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// ReadsCluster reports whether a CEL expression may depend on the cluster's labels:
// one that does not name the variable can't. A longer word, such as cluster-admin in a text,
// is not the variable.
func ReadsCluster(expression string) bool {
	inWord := func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }
	for rest := expression; ; {
		before, after, found := strings.Cut(rest, "cluster")
		if !found {
			return false
		}
		last, _ := utf8.DecodeLastRuneInString(before)
		first, _ := utf8.DecodeRuneInString(after)
		if !inWord(last) && !inWord(first) && first != '-' {
			return true
		}
		rest = after
	}
}

// sumOf tells a rule from every other.
func sumOf(r v1alpha1.DangerRule) [sha256.Size]byte {
	sum := sha256.New()
	write(sum, r.Name, r.Path, r.When, r.MessageExpression, string(r.Effect), string(r.Scope), r.Because, fmt.Sprint(r.On), // Locked decides about the order alone
		r.Match.Group, r.Match.Namespace, r.Match.Name, fmt.Sprint(r.Match.Kinds))
	return [sha256.Size]byte(sum.Sum(nil))
}

// write hashes strings so that no two lists of them are hashed alike.
func write(h hash.Hash, parts ...string) {
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part) // a hash takes everything
	}
}

// Hash tells the schema of a kind from every other; empty for a kind without one.
func (s Schemas) Hash(gvk schema.GroupVersionKind) string {
	_, hash := s.typeOf(gvk)
	return hash
}
