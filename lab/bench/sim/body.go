package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"weak"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Bodies contain these values as placeholders for values that differ between objects with the same
// content. A read of the object replaces them.
const (
	anyUID     = "00000000-0000-4000-8000-00000000a11e"
	anyVersion = "8999999999999999989"
	anyBirth   = "2001-01-01T01:01:01Z"
	anyTime    = "2002-02-02T02:02:02Z" // of the last write
)

// placeholders by the kind of a slot.
var placeholders = map[byte]string{'u': anyUID, 'v': anyVersion, 'b': anyBirth, 't': anyTime} //nolint:gochecknoglobals // never changed

// body is the content of an object. Clusters with equal content share one body. A body is
// immutable.
type body struct {
	text   string // JSON without the values of the slots
	slots  []slot // in order
	labels map[string]string
	sum    [sha256.Size]byte
}

// slot is a position in a body at which a value is inserted.
type slot struct {
	at   int32
	what byte // u(id), v(ersion), b(irth) or t(ime)
}

// object is one object of one cluster. An object is immutable: a write creates another.
type object struct {
	*body
	key
	uid           uint64
	version       uint64
	birth, change int64 // Unix seconds
}

type key struct{ namespace, name string }

func (a key) compare(b key) int {
	if c := strings.Compare(a.namespace, b.namespace); c != 0 {
		return c
	}
	return strings.Compare(a.name, b.name)
}

// bodies shares bodies with equal content, and drops bodies without references.
type bodies struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]weak.Pointer[body]
}

// intern returns the body for an object's content. It modifies content.
func (b *bodies) intern(content map[string]any, shared bool) (*body, error) {
	anonymize(content)
	text, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encode an object: %w", err)
	}
	made := cut(text)
	made.sum = sha256.Sum256(text)
	made.labels = labelsOf(content)
	if !shared {
		return made, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := b.known[made.sum].Value(); known != nil {
		return known, nil
	}
	b.known[made.sum] = weak.Make(made)
	runtime.AddCleanup(made, b.forget, made.sum)
	return made, nil
}

func (b *bodies) forget(sum [sha256.Size]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p, ok := b.known[sum]; ok && p.Value() == nil {
		delete(b.known, sum)
	}
}

func labelsOf(content map[string]any) map[string]string {
	metadata, _ := content["metadata"].(map[string]any)
	labels, _ := metadata["labels"].(map[string]any)
	if len(labels) == 0 {
		return nil
	}
	out := make(map[string]string, len(labels))
	for name, v := range labels {
		out[name], _ = v.(string)
	}
	return out
}

// anonymize replaces the values that differ between objects with the same content by placeholders.
func anonymize(content map[string]any) {
	metadata, ok := content["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
	}
	metadata = maps.Clone(metadata)
	content["metadata"] = metadata
	metadata["uid"], metadata["resourceVersion"], metadata["creationTimestamp"] = anyUID, anyVersion, anyBirth
	delete(metadata, "selfLink")
	fields, _ := metadata["managedFields"].([]any)
	if len(fields) == 0 {
		delete(metadata, "managedFields")
		return
	}
	dated := make([]any, len(fields))
	for i, f := range fields {
		dated[i] = f
		if entry, ok := f.(map[string]any); ok {
			entry = maps.Clone(entry)
			entry["time"] = anyTime
			dated[i] = entry
		}
	}
	metadata["managedFields"] = dated
}

// cut removes the placeholders from a text and records their positions.
func cut(text []byte) *body {
	var out bytes.Buffer
	b := &body{}
	for len(text) > 0 {
		at, what, n := next(text)
		out.Write(text[:at])
		if what != 0 {
			b.slots = append(b.slots, slot{int32(out.Len()), what}) //nolint:gosec // requests are smaller
		}
		text = text[at+n:]
	}
	b.text = out.String()
	return b
}

// next finds the first placeholder: its position, its kind and its length in bytes.
func next(text []byte) (at int, what byte, length int) {
	at = len(text)
	for kind, placeholder := range placeholders {
		quoted := []byte(`"` + placeholder + `"`)
		if i := bytes.Index(text[:at], quoted); i >= 0 {
			at, what, length = i, kind, len(quoted)
		}
	}
	return at, what, length
}

// append appends the object as JSON.
func (o *object) append(to []byte) []byte {
	return o.fill(to, func(to []byte, what byte) []byte {
		switch what {
		case 'u':
			return append(to, o.uidText()...)
		case 'v':
			return strconv.AppendUint(to, o.version, 10)
		case 'b':
			return time.Unix(o.birth, 0).UTC().AppendFormat(to, time.RFC3339)
		}
		return time.Unix(o.change, 0).UTC().AppendFormat(to, time.RFC3339)
	})
}

// anonymous returns the content with placeholders.
func (b *body) anonymous() (map[string]any, error) {
	return decoded(b.fill(nil, func(to []byte, what byte) []byte { return append(to, placeholders[what]...) }))
}

// fill appends the body. value appends the value of a slot.
func (b *body) fill(to []byte, value func(to []byte, what byte) []byte) []byte {
	from := int32(0)
	for _, s := range b.slots {
		to = append(append(to, b.text[from:s.at]...), '"')
		to = append(value(to, s.what), '"')
		from = s.at
	}
	return append(to, b.text[from:]...)
}

// content returns the object's full content.
func (o *object) content() (map[string]any, error) { return decoded(o.append(nil)) }

func decoded(text []byte) (map[string]any, error) {
	var out map[string]any
	if err := utiljson.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("decode an object: %w", err)
	}
	return out, nil
}

// uidText returns the UID as a UUID of version 4, derived from the object's number.
func (o *object) uidText() string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], mix(o.uid))
	binary.BigEndian.PutUint64(raw[8:], mix(^o.uid))
	raw[6], raw[8] = raw[6]&0x0f|0x40, raw[8]&0x3f|0x80
	h := hex.EncodeToString(raw[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// mix is the function of splitmix64. It is injective: different numbers give different results.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
