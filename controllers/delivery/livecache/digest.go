package livecache

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
	"sync"
)

// digest stands for the content of an object. Objects with the same digest differ at most in their
// status and in fields that every write changes.
type digest [16]byte

// digester encodes objects, and reuses its buffers.
type digester struct {
	text []byte
	keys []string
}

// digesters is a pool of digesters.
type digesters struct{ pool sync.Pool }

// digest returns the digest of an object.
func (d *digesters) digest(object map[string]any) digest {
	e, _ := d.pool.Get().(*digester)
	if e == nil {
		e = &digester{}
	}
	defer d.pool.Put(e)
	e.text = e.text[:0]
	e.object(object)
	sum := sha256.Sum256(e.text)
	return digest(sum[:16])
}

// object leaves out the fields that no plan depends on: the status, and the metadata that change
// with every write.
func (e *digester) object(object map[string]any) {
	e.fields(object, func(key string) bool { return key == "status" || key == "metadata" })
	metadata, _ := object["metadata"].(map[string]any)
	e.fields(metadata, func(key string) bool {
		return key == "managedFields" || key == "resourceVersion" || key == "generation" || key == "selfLink"
	})
}

// fields encodes a map unambiguously.
func (e *digester) fields(m map[string]any, without func(key string) bool) {
	first := len(e.keys)
	for key := range m {
		if without == nil || !without(key) {
			e.keys = append(e.keys, key)
		}
	}
	slices.Sort(e.keys[first:])
	last := len(e.keys)
	e.head('m', uint64(last-first)) //nolint:gosec // it is not negative
	for i := first; i < last; i++ {
		key := e.keys[i] // nested maps append behind last
		e.string(key)
		e.value(m[key])
	}
	e.keys = e.keys[:first]
}

func (e *digester) head(kind byte, n uint64) {
	e.text = binary.AppendUvarint(append(e.text, kind), n)
}

func (e *digester) string(s string) {
	e.head('s', uint64(len(s)))
	e.text = append(e.text, s...)
}

// value encodes the types to which client-go decodes JSON. All other types are encoded alike, as
// nil.
func (e *digester) value(v any) {
	switch v := v.(type) {
	case map[string]any:
		e.fields(v, nil)
	case []any:
		e.head('l', uint64(len(v)))
		for _, item := range v {
			e.value(item)
		}
	case string:
		e.string(v)
	case int64:
		e.head('i', uint64(v)) //nolint:gosec // its bits are what is encoded
	case float64:
		e.head('f', math.Float64bits(v))
	case bool:
		if v {
			e.head('b', 1)
		} else {
			e.head('b', 0)
		}
	default:
		e.head('n', 0)
	}
}
