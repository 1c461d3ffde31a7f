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

// What differs between objects of one content stands in their bodies as these
// values, and is replaced when an object is read.
const (
	anyUID     = "00000000-0000-4000-8000-00000000a11e"
	anyVersion = "8999999999999999989"
	anyBirth   = "2001-01-01T01:01:01Z"
	anyTime    = "2002-02-02T02:02:02Z" // of the last write
)

// body is the content of an object, of as many clusters as have the same. It
// never changes.
type body struct {
	text   string // JSON without the values of slots
	slots  []slot // in order
	labels map[string]string
	sum    [sha256.Size]byte
}

// slot is where a value belongs into a body.
type slot struct {
	at   int32
	what byte // u(id), v(ersion), b(irth) or t(ime)
}

// object is one object of one cluster. It never changes: a write makes another.
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

// bodies shares bodies of the same content, and forgets those that nobody has.
type bodies struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]weak.Pointer[body]
}

// of returns the body of an object's content, which it modifies.
func (b *bodies) of(content map[string]any, shared bool) (*body, error) {
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

// anonymize takes out what differs between objects of one content.
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

// cut takes the stand-ins out of a text.
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

// next finds the first stand-in: where, which, and how long it is.
func next(text []byte) (at int, what byte, length int) {
	at = len(text)
	for _, s := range []struct {
		text string
		what byte
	}{{`"` + anyUID + `"`, 'u'}, {`"` + anyVersion + `"`, 'v'}, {`"` + anyBirth + `"`, 'b'}, {`"` + anyTime + `"`, 't'}} {
		if i := bytes.Index(text[:at], []byte(s.text)); i >= 0 {
			at, what, length = i, s.what, len(s.text)
		}
	}
	return at, what, length
}

// append appends the object as JSON.
func (o *object) append(to []byte) []byte {
	from := int32(0)
	for _, s := range o.slots {
		to = append(to, o.text[from:s.at]...)
		from = s.at
		to = append(to, '"')
		switch s.what {
		case 'u':
			to = append(to, o.uidText()...)
		case 'v':
			to = strconv.AppendUint(to, o.version, 10)
		case 'b':
			to = time.Unix(o.birth, 0).UTC().AppendFormat(to, time.RFC3339)
		case 't':
			to = time.Unix(o.change, 0).UTC().AppendFormat(to, time.RFC3339)
		}
		to = append(to, '"')
	}
	return append(to, o.text[from:]...)
}

// anonymous is the content with stand-ins.
func (b *body) anonymous() (map[string]any, error) {
	o := object{body: b}
	var text []byte
	from := int32(0)
	for _, s := range o.slots {
		text = append(text, b.text[from:s.at]...)
		from = s.at
		text = append(text, '"')
		text = append(text, map[byte]string{'u': anyUID, 'v': anyVersion, 'b': anyBirth, 't': anyTime}[s.what]...)
		text = append(text, '"')
	}
	text = append(text, b.text[from:]...)
	return decoded(text)
}

// content is the object.
func (o *object) content() (map[string]any, error) { return decoded(o.append(nil)) }

func decoded(text []byte) (map[string]any, error) {
	var out map[string]any
	if err := utiljson.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("decode an object: %w", err)
	}
	return out, nil
}

// uidText is a UUID of version 4 as its number says.
func (o *object) uidText() string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], mix(o.uid))
	binary.BigEndian.PutUint64(raw[8:], mix(^o.uid))
	raw[6], raw[8] = raw[6]&0x0f|0x40, raw[8]&0x3f|0x80
	h := hex.EncodeToString(raw[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// mix is splitmix64's: no two numbers give the same.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
