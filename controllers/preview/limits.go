package preview

import (
	"errors"
	"fmt"

	"github.com/keelson-io/keelson/differ"
)

// ErrTooMuch is wrapped by the error of a preview that would exceed its memory bound.
var ErrTooMuch = errors.New("too much to preview")

// Approximate bytes of a value beside its text. They bound the memory, and do not measure it.
const (
	changeBytes = 400
	fieldBytes  = 160
	valueBytes  = 16
	entryBytes  = 48 // of a map
)

// keep removes the parts of a plan that are not shown, and counts the rest. The error wraps
// [ErrTooMuch].
func (m *maker) keep(p *differ.Plan) error {
	size := int64(0)
	for i := range p.Changes {
		c := &p.Changes[i]
		c.Patch, c.DryRunBody, c.First, c.HandOver, c.Live, c.Normal = nil, nil, nil, nil, nil, nil
		if c.Op != differ.OpCreate {
			c.Record = nil
		}
		size += changeBytes + int64(len(c.Because)+len(c.Fix)) + sizeOf(c.Record)
		for j := range c.Fields {
			f := &c.Fields[j]
			size += fieldBytes + int64(len(f.Path)+len(f.Because)+len(f.Fix)) + sizeOf(f.Recorded) + sizeOf(f.Target) + sizeOf(f.Live)
		}
	}
	size += sizeOfWarnings(p)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept += size; m.kept > m.Bytes {
		return fmt.Errorf("%w: the differences take more than %d MiB of memory; split the change, by component or by cluster", ErrTooMuch, m.Bytes>>20)
	}
	return nil
}

// sizeOfWarnings returns about how many bytes the warnings of a plan take in memory.
func sizeOfWarnings(p *differ.Plan) int64 {
	size := int64(0)
	for i := range p.Changes {
		for _, w := range p.Changes[i].Warnings {
			size += fieldBytes + int64(len(w.Because)+len(w.Fix))
			for _, path := range w.Paths {
				size += valueBytes + int64(len(path))
			}
		}
	}
	return size
}

// sizeOf returns about how many bytes a value takes in memory.
func sizeOf(v any) int64 {
	size := int64(valueBytes)
	switch v := v.(type) {
	case string:
		size += int64(len(v))
	case []any:
		for _, item := range v {
			size += sizeOf(item)
		}
	case map[string]any:
		for name, item := range v {
			size += entryBytes + int64(len(name)) + sizeOf(item)
		}
	}
	return size
}
