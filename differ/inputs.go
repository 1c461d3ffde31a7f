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

// Inputs identify everything that a comparison of one object depends on: equal Inputs give equal
// changes. They are comparable; the zero value means not known.
type Inputs struct {
	// Recorded, Target and Live identify the three objects: the resourceVersion of the record, the
	// hash of the target, and UID and resourceVersion of the live object.
	Recorded, Target, Live string
	Policy                 string // [Policy.Hash]
	Schema                 string // [Schemas.Hash]
	Scaled                 Scaling
}

// unchanged reports whether an object was found settled with its present inputs.
func (s *State) unchanged() bool {
	return s.Inputs != Inputs{} && s.Inputs == s.Settled && s.Target != nil && s.Live != nil
}

// settled returns the change of an object that is still settled.
func settled(s *State) Change {
	c := Change{ID: s.ID, Op: OpNone, State: StateSynced, Source: s.Target.Source, Live: s.Live, Record: s.Recorded, Normal: s.Normal}
	c.APIVersion, _ = s.Target.Content["apiVersion"].(string)
	return c
}

// Quiet reports whether there is nothing to do for the object, nothing to wait for and nothing to
// show. Its [Inputs] may then be recorded as [State.Settled].
func (c *Change) Quiet() bool {
	return c.Op == OpNone && c.State == StateSynced && !c.RecordStale && !c.Unread.Owners && !c.Unread.Nodes && !c.Unread.Uses && len(c.Fields) == 0 && c.Because == ""
}

// Hash identifies a policy, without Approved, Scaled, the nodes, and the objects of [Policy.Among].
func (p Policy) Hash() string {
	sum := sha256.New()
	write(sum, p.Component, fmt.Sprint(p.AnyComponent), fmt.Sprint(p.OwnersByRecord), fmt.Sprint(p.Adopt), string(p.Drift), string(p.MaskKey))
	fence := p.Limits.parts()
	write(sum, fmt.Sprint(p.Limits != nil, len(fence)))
	write(sum, fence...)
	if p.Rules.readsCluster {
		for _, name := range slices.Sorted(maps.Keys(p.Cluster)) {
			write(sum, name, p.Cluster[name])
		}
	}
	_, _ = sum.Write(p.Rules.sum[:])
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// ReadsCluster reports whether a CEL expression may depend on the labels of the cluster. Without
// the word cluster, it can't. A longer word, such as cluster-admin in a text, does not count.
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

// sumOf returns a hash of the fields of a rule that decide or give the reason.
func sumOf(r v1alpha1.DangerRule) [sha256.Size]byte {
	sum := sha256.New()
	write(sum, r.Name, r.Path, r.When, r.MessageExpression, string(r.Effect), string(r.Scope), r.Because, fmt.Sprint(r.On), // Locked decides only the order
		r.Match.Group, r.Match.Namespace, r.Match.Name, fmt.Sprint(r.Match.Kinds))
	return [sha256.Size]byte(sum.Sum(nil))
}

// write hashes strings so that different lists have different input.
func write(h hash.Hash, parts ...string) {
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part) // a hash never fails
	}
}

// Hash identifies the schema of a kind; empty for a kind without a schema.
func (s Schemas) Hash(gvk schema.GroupVersionKind) string {
	_, hash := s.typeOf(gvk)
	return hash
}
