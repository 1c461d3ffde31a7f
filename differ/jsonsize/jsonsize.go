// Package jsonsize measures JSON from outside before it is decoded, and estimates the memory of
// decoded values.
//
// The number of bytes alone says little: the three bytes of {}, become a map of some fifty bytes.
// The three bytes of an item of a typed list become a struct of some hundreds.
package jsonsize

import (
	"fmt"
	"math"
)

// Never is a depth at which no value ends.
const Never = math.MinInt

// Meter counts JSON while it is read. It only recognises where strings, lists and maps begin and
// end, and counts text that is no JSON in the same way. The zero Meter allows nothing.
type Meter struct {
	// MaxBytes and MaxValues are the limits of the count.
	MaxBytes, MaxValues int64
	// Each is the depth at which the count restarts when a list or map ends there: 0 counts each
	// document separately, and Never counts all documents together.
	Each int

	bytes, values int64
	depth         int
	text, escaped bool
}

// Count adds text that was read. It returns an error if the text exceeds a limit.
func (m *Meter) Count(p []byte) error {
	began := 0 // start of the text that counts
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

// Bytes returns the number of bytes since the count last restarted.
func (m *Meter) Bytes() int64 { return m.bytes }

// Values returns the number of values since the count last restarted: lists, maps, and commas.
func (m *Meter) Values() int64 { return m.values }

// Memory that Go needs for values, rounded up.
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
