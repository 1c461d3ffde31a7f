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

// sum is a hash of what makes two things equal; zero: equal to nothing else.
type sum [sha256.Size]byte

// sharing holds what a [Repo] has one of, whoever wrote it how often: a layer
// of which one line changed gives all other components the sources that they
// had, so their Values, and so their deliveries; and clusters whose files are
// alike share what is merged from them.
type sharing struct {
	sources interned[sourceKey, source]
	merged  interned[mergedKey, merged]
	values  interned[valuesKey, Values]
	// files of charts, by the hash of their content: a version shares with the
	// one before what did not change.
	files interned[string, fileData]
	// packed are charts out of archives, by the hash of the archive.
	packed interned[string, packedChart]
}

// fileData is what a file holds. Who shares it holds this, too.
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

// source returns the source that has a file's values at these places.
func (t *sharing) source(s *source) *source {
	data, err := json.Marshal(s.values) // sorts keys
	if err != nil {
		return s // of no file: what stands in one has a form in JSON
	}
	if s.sealed == nil {
		s.sealedAt = nil
	} else { // other files with this text may open to something else
		data = append(data, s.sealed.hash+strings.Join(s.sealedAt, ".")...)
	}
	s.sum = sha256.Sum256(data)
	h := sha256.New()
	s.places.hash(h)
	return t.sources.get(sourceKey{s.file, s.sum, sum(h.Sum(nil))}, func() *source { return s })
}

// lay lays a source over Values.
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

// hash writes all places to h.
func (p *places) hash(h hash.Hash) {
	if p == nil {
		h.Write([]byte{0})
		return
	}
	number := func(n int) { h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n))) } //nolint:gosec // a line or a length
	h.Write([]byte{1})
	number(p.line)
	number(p.column)
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
