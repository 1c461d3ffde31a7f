package apis

import (
	"cmp"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"sync"
	"weak"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/jsonsize"
)

// valueBytes is the memory that a schema takes per value of its document, if the document has many
// values.
const valueBytes = 64

// retainedBytes bounds the OpenAPI documents whose schemas a cache remembers while no cluster uses
// them. A stock Kubernetes publishes about 4 MB.
const retainedBytes = 32 << 20

// parsingValues bounds the JSON values of all documents that are parsed at the same time, of all
// clusters. A large document waits until others are parsed. Each parse ends, because documents are
// bounded.
const parsingValues = 250_000

// clusterValues bounds the JSON values of all documents that one cluster publishes for the kinds
// that it needs. A stock Kubernetes has about 100,000.
const clusterValues = 500_000

// digest is the SHA-512 of an OpenAPI document: the hash under which API servers publish the
// document (k8s.io/kube-openapi, pkg/handler3). The zero digest: no document.
type digest [sha512.Size]byte

// SchemaCache shares parsed OpenAPI documents and discovered surfaces between clusters of one
// Kubernetes version.
//
// A schema is stored under the digest of the bytes that were parsed, never under the
// digest that an API server claims. So a cluster that publishes a wrong document, or a document
// under a wrong hash, changes nothing for the other clusters.
type SchemaCache struct {
	parsing singleflight.Group
	slots   *semaphore.Weighted // of parsingValues

	mu       sync.Mutex
	parsed   map[digest]weak.Pointer[differ.Schema]
	recent   []retained // oldest first; at most retainedBytes together, or one
	surfaces map[fingerprint.Sum]weak.Pointer[Surface]
}

// retained keeps a schema that no cluster may use at the moment.
type retained struct {
	schema *differ.Schema
	size   int // in bytes: of the document, or of its schema if that is larger
}

// NewSchemaCache returns an empty cache.
func NewSchemaCache() *SchemaCache {
	return &SchemaCache{slots: semaphore.NewWeighted(parsingValues), parsed: map[digest]weak.Pointer[differ.Schema]{}, surfaces: map[fingerprint.Sum]weak.Pointer[Surface]{}}
}

// publishedDigest reads the hash from the path of a document; the zero digest: the path has
// none, or one of another kind.
func publishedDigest(path string) digest {
	var out digest
	u, err := url.Parse(path)
	if err != nil {
		return digest{}
	}
	if b, err := hex.DecodeString(u.Query().Get("hash")); err == nil && len(b) == len(out) {
		copy(out[:], b)
	}
	return out
}

// find returns the schema of the document with a digest; nil: not known.
func (c *SchemaCache) find(of digest) *differ.Schema {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.parsed[of].Value()
}

// parse returns the schema of a document, which is parsed once even if many clusters publish it. It
// holds no lock meanwhile: a slow document delays only callers that need the same one.
func (c *SchemaCache) parse(ctx context.Context, document []byte) (*differ.Schema, error) {
	of := digest(sha512.Sum512(document))
	out, err, _ := c.parsing.Do(string(of[:]), func() (any, error) {
		if s := c.find(of); s != nil {
			return s, nil
		}
		values := jsonsize.Meter{MaxBytes: math.MaxInt64, MaxValues: parsingValues, Each: jsonsize.Never}
		_ = values.Count(document) // the parser refuses a document that has more
		weight := min(values.Values(), parsingValues)
		if err := c.slots.Acquire(context.WithoutCancel(ctx), weight); err != nil { // the parse serves all waiting callers
			return nil, err //nolint:wrapcheck // it waits as long as it takes
		}
		defer c.slots.Release(weight)
		s, err := differ.ParseOpenAPI(document)
		if err != nil {
			return nil, err
		}
		c.retain(of, s, max(len(document), s.Values()*valueBytes))
		return s, nil
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says of what
	}
	return out.(*differ.Schema), nil //nolint:forcetypeassert // as returned above
}

func (c *SchemaCache) retain(of digest, s *differ.Schema, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.parsed, func(_ digest, p weak.Pointer[differ.Schema]) bool { return p.Value() == nil })
	c.parsed[of] = weak.Make(s)
	c.recent = append(c.recent, retained{s, size})
	total := 0
	for _, r := range c.recent {
		total += r.size
	}
	for ; total > retainedBytes && len(c.recent) > 1; c.recent = slices.Delete(c.recent, 0, 1) {
		total -= c.recent[0].size
	}
}

// share returns the surface of another cluster that serves the same, if there is one.
func (c *SchemaCache) share(s *Surface) *Surface {
	if len(s.failed) > 0 {
		return s // incomplete, so not shared
	}
	of := s.sum()
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.surfaces[of].Value(); other != nil {
		return other
	}
	maps.DeleteFunc(c.surfaces, func(_ fingerprint.Sum, p weak.Pointer[Surface]) bool { return p.Value() == nil })
	c.surfaces[of] = weak.Make(s)
	return s
}

func compareKinds(a, b schema.GroupKind) int { return cmp.Compare(a.String(), b.String()) }

// sum hashes everything that is served and its mappings: two clusters with the same sum share one
// surface.
func (s *Surface) sum() fingerprint.Sum {
	h := fingerprint.New(s.capabilities.KubeVersion)
	h.Add(s.capabilities.APIVersions...)
	name := func(m *meta.RESTMapping) string {
		return fmt.Sprint(m.GroupVersionKind, m.Resource, m.Scope.Name())
	}
	for _, m := range slices.SortedFunc(maps.Values(s.mappings), func(a, b *meta.RESTMapping) int { return cmp.Compare(name(a), name(b)) }) {
		h.Add(name(m))
	}
	for _, kind := range slices.SortedFunc(maps.Keys(s.preferred), compareKinds) {
		h.Add(name(s.preferred[kind]), fmt.Sprint(s.capabilities.ClusterScoped[kind]))
	}
	return h.Sum()
}
