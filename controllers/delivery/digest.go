package delivery

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
	"sync"
)

// digest stands for the content of an object: two objects with the same one are
// the same, but for their status and what the API server counts in them.
type digest [16]byte

// digester encodes objects; its buffers are used again.
type digester struct {
	text []byte
	keys []string
}

// digesters hands out digesters.
type digesters struct{ pool sync.Pool }

// of returns the digest of an object.
func (d *digesters) of(object map[string]any) digest {
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

// object leaves out what no plan is made from: the status, and in the metadata
// what changes with every write.
func (e *digester) object(object map[string]any) {
	e.fields(object, func(key string) bool { return key == "status" || key == "metadata" })
	metadata, _ := object["metadata"].(map[string]any)
	e.fields(metadata, func(key string) bool {
		return key == "managedFields" || key == "resourceVersion" || key == "generation" || key == "selfLink"
	})
}

// fields encodes a map so that no two maps are encoded alike.
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
		key := e.keys[i] // deeper maps use what lies behind
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

// value encodes what client-go decodes JSON to; anything else would be taken for
// changed each time it is another.
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
