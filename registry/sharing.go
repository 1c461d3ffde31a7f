package registry

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"hash"
	"maps"
	"slices"
	"strings"
)

// sum is a hash of the content that makes two values equal; a zero sum equals no other value.
type sum [sha256.Size]byte

// sharing holds the parts of which a [Repo] keeps one copy each. If one line of a layer changes,
// all other components keep their sources, so their Values and their deliveries. Clusters with
// equal files share the merged values.
type sharing struct {
	sources interned[sourceKey, source]
	merged  interned[mergedKey, merged]
	values  interned[valuesKey, Values]
	// files are the files of charts, by the hash of their content. Versions share unchanged files.
	files interned[string, fileData]
	// packed are the charts from archives, by the hash of the archive.
	packed interned[string, packedChart]
}

// fileData is the content of a file. A user of the content must reference it.
type fileData struct{ data []byte }

type sourceKey struct {
	file           string
	values, places sum
}

type mergedKey struct {
	base *merged
	over sum
}

type valuesKey struct {
	base   *Values
	source *source
}

// source returns the shared source with the same file, values and positions.
func (t *sharing) source(s *source) *source {
	data, err := json.Marshal(s.values) // Marshal sorts keys
	if err != nil {
		return s // not from a file: values in files have a form in JSON
	}
	if s.encrypted == nil {
		s.encryptedAt = nil
	} else { // other files with this text may decrypt to other values
		data = append(data, s.encrypted.hash+strings.Join(s.encryptedAt, ".")...)
	}
	s.sum = sha256.Sum256(data)
	h := sha256.New()
	s.places.hash(h)
	return t.sources.get(sourceKey{s.file, s.sum, sum(h.Sum(nil))}, func() *source { return s })
}

// lay returns Values with a source merged over base.
func (t *sharing) lay(base *Values, s *source) *Values {
	if s == nil {
		return base
	}
	return t.values.get(valuesKey{base, s}, func() *Values {
		v := newValues(base, s)
		if s.sum != (sum{}) {
			v.merged = t.merged.get(mergedKey{v.merged.base, s.sum}, func() *merged { return v.merged })
		}
		return v
	})
}

// hash writes all positions to h.
func (p *places) hash(h hash.Hash) {
	if p == nil {
		h.Write([]byte{0})
		return
	}
	number := func(n int) { h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n))) } //nolint:gosec // a line or a length
	h.Write([]byte{1})
	number(p.Line)
	number(p.Column)
	number(len(p.keys))
	for _, key := range slices.Sorted(maps.Keys(p.keys)) {
		number(len(key))
		h.Write([]byte(key))
		p.keys[key].hash(h)
	}
	number(len(p.items))
	for _, item := range p.items {
		item.hash(h)
	}
}
