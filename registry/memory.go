package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
)

// Memory keeps what a repository was when it was looked at before, where no restart loses
// it and all replicas share it. Without one, that is in the cache folder alone.
// Implementations are safe for concurrent use.
type Memory interface {
	// Read returns what is kept under a name; nothing, and no version, where nothing is.
	Read(ctx context.Context, name string) (Kept, error)
	// Write replaces what is kept under a name, which still has to be of the version; "": it
	// must not be there. The error is [ErrMemoryChanged] where it is another by now.
	Write(ctx context.Context, name, version string, data []byte) (Kept, error)
}

// Kept is what a [Memory] has under a name.
type Kept struct {
	Data    []byte
	Version string
}

// ErrMemoryChanged says that another process wrote to a [Memory] meanwhile.
var ErrMemoryChanged = errors.New("another process has written to the memory")

// The names under which a [Memory] keeps the heads of branches, and the tags of components,
// which are spread over some: none gets too large.
const (
	memoryHeads  = "heads"
	memoryTags   = "tags-%d"
	memoryParts  = 8
	memoryPasses = 10 // in which a replica may lose against others
	// memoryOfOne is how many bytes the tags of one component may take in a part, some 2,000
	// tags, and memoryOfPart how many the part may: a pusher of tags must not be able to fill
	// what others need, or to make a part so large that it can't be written. Further tags are
	// remembered in the cache folder.
	memoryOfOne, memoryOfPart = 250_000, 500_000
)

// MemoryNames are all names under which a repository keeps something.
func MemoryNames() []string {
	names := []string{memoryHeads}
	for i := range memoryParts {
		names = append(names, fmt.Sprintf(memoryTags, i))
	}
	return names
}

// sharedMemory is what a [Memory] kept when it was last read or written. It asks again
// where a write finds that another process was faster: what this one would do by what it
// knows, it has to write down before.
type sharedMemory struct {
	in   Memory
	mu   sync.Mutex
	kept map[string]Kept
}

// read returns what is kept under a name, as it was when it was last heard of.
func (m *sharedMemory) read(ctx context.Context, name string) (Kept, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k, ok := m.kept[name]; ok {
		return k, nil
	}
	k, err := m.in.Read(ctx, name)
	if err != nil {
		return k, fmt.Errorf("read the memory of this repository: %w", err)
	}
	m.kept[name] = k
	return k, nil
}

// write replaces what read returned last. With ErrMemoryChanged, read asks again.
func (m *sharedMemory) write(ctx context.Context, name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if bytes.Equal(m.kept[name].Data, data) {
		return nil
	}
	k, err := m.in.Write(ctx, name, m.kept[name].Version, data)
	if err != nil {
		delete(m.kept, name) // an answer that is lost says nothing either
		return fmt.Errorf("write the memory of this repository: %w", err)
	}
	m.kept[name] = k
	return nil
}

// forget has read ask again.
func (m *sharedMemory) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.kept, name)
}

// tagsIn adds to what was seen here what the memory has; the latter counts.
func (m *sharedMemory) tagsIn(ctx context.Context, seen map[string]firstSeen) error {
	for i := range memoryParts {
		name := fmt.Sprintf(memoryTags, i)
		k, err := m.read(ctx, name)
		if err != nil {
			return err
		}
		known, err := parseSeen("the memory of this repository", k.Data)
		if err != nil {
			return err
		}
		maps.Copy(seen, known)
	}
	return nil
}

// keepTags writes down what was seen.
func (m *sharedMemory) keepTags(ctx context.Context, seen map[string]firstSeen) error {
	byComponent := map[string][]string{}
	for _, tag := range slices.Sorted(maps.Keys(seen)) {
		component, _, _ := splitTag(tag)
		byComponent[component] = append(byComponent[component], tag)
	}
	parts := map[string]*seenPart{}
	for component, tags := range byComponent {
		h := fnv.New32a()
		_, _ = h.Write([]byte(component)) // never fails
		name := fmt.Sprintf(memoryTags, h.Sum32()%memoryParts)
		if parts[name] == nil {
			k, err := m.read(ctx, name)
			if err != nil {
				return err
			}
			kept, err := parseSeen("the memory of this repository", k.Data)
			if err != nil {
				return err
			}
			parts[name] = newSeenPart(kept)
		}
		parts[name].fill(tags, seen)
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if err := m.write(ctx, name, encodeSeen(parts[name].kept)); err != nil {
			return err
		}
	}
	return nil
}

// seenPart is one part of the memory of tags.
type seenPart struct {
	kept map[string]firstSeen
	room int // bytes
}

func newSeenPart(kept map[string]firstSeen) *seenPart {
	p := &seenPart{kept: kept, room: memoryOfPart}
	for tag := range kept {
		p.room -= seenSize(tag)
	}
	return p
}

// fill adds tags of one component to those that are kept, as long as there is room for it.
// What is kept already stays.
func (p *seenPart) fill(tags []string, seen map[string]firstSeen) {
	var fresh []string
	one := memoryOfOne
	for _, tag := range tags {
		if _, ok := p.kept[tag]; ok {
			one -= seenSize(tag)
		} else {
			fresh = append(fresh, tag)
		}
	}
	for _, tag := range fresh {
		size := seenSize(tag)
		if one -= size; min(one, p.room-size) < 0 {
			return
		}
		p.room -= size
		p.kept[tag] = seen[tag]
	}
}
