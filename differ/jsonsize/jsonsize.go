// Package jsonsize tells how large JSON from outside is before it is decoded, and how large
// what was decoded of it is in memory.
//
// Bytes alone say little: the three bytes of {}, become a map of some fifty, and the three of
// an item of a typed list become a struct of some hundreds.
package jsonsize

import (
	"fmt"
	"math"
)

// Never is a depth at which no value ends.
const Never = math.MinInt

// Meter counts JSON as it is read. It needs no more of it than where strings, lists and maps
// begin and end. What is no JSON is counted in the same way. The zero Meter allows nothing.
type Meter struct {
	// MaxBytes and MaxValues are the most that there may be.
	MaxBytes, MaxValues int64
	// Each is the depth at which the count begins anew when a list or map ends there: 0
	// counts each of many documents alone, and Never all of them.
	Each int

	bytes, values int64
	depth         int
	text, escaped bool
}

// Count adds what was read, and is an error where that was too much.
func (m *Meter) Count(p []byte) error {
	began := 0 // of what counts
	for i, c := range p {
		if m.text {
			switch {
			case m.escaped:
				m.escaped = false
			case c == '\\':
				m.escaped = true
			case c == '"':
				m.text = false
			}
			continue
		}
		switch c {
		case '"':
			m.text = true
		case ',':
			m.values++
		case '{', '[':
			m.values++
			m.depth++
		case '}', ']':
			if m.depth--; m.depth == m.Each {
				m.bytes, m.values, began = 0, 0, i+1
			}
		}
		if m.values > m.MaxValues {
			return fmt.Errorf("more than %d JSON values", m.MaxValues)
		}
	}
	if m.bytes += int64(len(p) - began); m.bytes > m.MaxBytes {
		if m.MaxBytes < 1<<20 {
			return fmt.Errorf("more than %d bytes", m.MaxBytes)
		}
		return fmt.Errorf("more than %d MiB", m.MaxBytes>>20)
	}
	return nil
}

// Bytes is how many were counted.
func (m *Meter) Bytes() int64 { return m.bytes }

// Values is how many were counted: lists, maps, and what commas separate.
func (m *Meter) Values() int64 { return m.values }

// What Go takes for values; rounded up.
const (
	wordBytes  = 16
	mapBytes   = 48
	groupBytes = 8 + 8*(wordBytes+wordBytes) // of up to eight entries of a map
	listBytes  = 24
)

// Memory estimates the bytes that a decoded JSON value takes.
func Memory(value any) int {
	switch v := value.(type) {
	case map[string]any:
		n := wordBytes + mapBytes + (len(v)+7)/8*groupBytes
		for key, field := range v {
			n += len(key) + Memory(field)
		}
		return n
	case []any:
		n := wordBytes + listBytes
		for _, item := range v {
			n += Memory(item)
		}
		return n
	case string:
		return 2*wordBytes + len(v)
	default:
		return wordBytes + wordBytes/2
	}
}
