package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"

	"github.com/keelson-io/keelson/registry/naming"
)

// Memory stores the accepted heads and the seen tags of a repository. It survives restarts, and all
// replicas share it. Without a Memory, only the cache folder stores them. Implementations must be
// safe for concurrent use.
type Memory interface {
	// Read returns the entry of a name. A missing entry has no data and no version.
	Read(ctx context.Context, name string) (MemoryEntry, error)
	// Write replaces the entry of a name if it still has the version; "" means that it must not
	// exist. The error is [ErrMemoryChanged] if the entry has changed.
	Write(ctx context.Context, name, version string, data []byte) (MemoryEntry, error)
}

// MemoryEntry is an entry of a [Memory].
type MemoryEntry struct {
	Data    []byte
	Version string
}

// ErrMemoryChanged means that another process changed the entry of a [Memory] first.
var ErrMemoryChanged = errors.New("another process has written to the memory")

// The names under which a [Memory] stores the heads of branches, and the tags of components. The
// tags are spread over several entries, so that no entry gets too large.
const (
	memoryHeads  = "heads"
	memoryTags   = "tags-%d"
	memoryParts  = 8
	memoryPasses = 10 // attempts before a replica gives up after conflicts
	// memoryOfOne bounds the bytes of the tags of one component in a part, some 2,000 tags.
	// memoryOfPart bounds the bytes of a part. A pusher of tags must not be able to fill the space
	// of other components, or to make a part too large to be written. Further tags are stored only
	// in the cache folder.
	memoryOfOne, memoryOfPart = 250_000, 500_000
)

// MemoryNames returns all names under which a repository stores entries.
func MemoryNames() []string {
	names := []string{memoryHeads}
	for i := range memoryParts {
		names = append(names, fmt.Sprintf(memoryTags, i))
	}
	return names
}

// sharedMemory caches the entries of a [Memory]. If a write finds that another process changed the
// entry, it reads the entry again. The cache is safe because every decision that is based on an
// entry is written before it takes effect.
type sharedMemory struct {
	in   Memory
	mu   sync.Mutex
	kept map[string]MemoryEntry
}

// read returns the entry of a name, from the cache if possible.
func (m *sharedMemory) read(ctx context.Context, name string) (MemoryEntry, error) {
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

// write replaces the entry that read returned last. After an error, the next read asks the Memory.
func (m *sharedMemory) write(ctx context.Context, name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if bytes.Equal(m.kept[name].Data, data) {
		return nil
	}
	k, err := m.in.Write(ctx, name, m.kept[name].Version, data)
	if err != nil {
		delete(m.kept, name) // also if the answer was lost, because the write may have succeeded
		return fmt.Errorf("write the memory of this repository: %w", err)
	}
	m.kept[name] = k
	return nil
}

// forget makes the next read ask the Memory.
func (m *sharedMemory) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.kept, name)
}

// tagsIn adds the tags of the memory to seen. They override the tags in seen.
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

// keepTags stores the seen tags.
func (m *sharedMemory) keepTags(ctx context.Context, seen map[string]firstSeen) error {
	byComponent := map[string][]string{}
	for _, tag := range slices.Sorted(maps.Keys(seen)) {
		component, _, _ := naming.SplitTag(tag)
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

// seenPart is one of the entries for tags.
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

// fill adds tags of one component while there is room. Stored tags stay unchanged.
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
