package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/hash"
)

// firstSeen is what a tag was when it was first seen. A version can't change,
// so a tag whose commit differs from it is a mistake.
type firstSeen struct {
	commit plumbing.Hash
	// raw is the tag object, or the commit again: while it is the same, the
	// commit is too, and no object needs to be read.
	raw plumbing.Hash
}

// remember fills in what the tags of components were when first seen, and
// writes down those that are new. It is a file and not refs of our own, since
// ten thousand refs would be as many files, to be read at each start; and it
// is not in the repository, which is read in place when it is local.
//
// Of a signed repository only tags with a good signature are remembered: who
// may push but not sign must not get to take a version's name.
//
// With a [Memory], a tag is in it before it is used: what another replica saw first counts.
func (r *Repo) remember(ctx context.Context, now *refs) error {
	t, err := r.trust(now.objects)
	if err != nil {
		return err
	}
	now.keys = t.digest()
	file := filepath.Join(r.folder, "first-seen")
	here, err := readSeen(file)
	if err != nil {
		return err
	}
	seen := maps.Clone(here)
	if !now.shared {
		now.see(t, seen)
	} else if seen, err = r.rememberShared(ctx, now, t, here); err != nil {
		return err
	}
	now.seen = seen
	if maps.Equal(seen, here) || r.looks && r.location.path != "" {
		return nil
	}
	return writeSeen(file, seen)
}

// rememberShared is remember with a memory: what others wrote meanwhile is looked at again.
func (r *Repo) rememberShared(ctx context.Context, now *refs, t *trust, here map[string]firstSeen) (seen map[string]firstSeen, err error) {
	for range memoryPasses {
		seen = maps.Clone(here)
		if err = r.memory.tagsIn(ctx, seen); err != nil {
			return nil, err
		}
		now.see(t, seen)
		if err = r.memory.keepTags(ctx, seen); !errors.Is(err, ErrMemoryChanged) {
			return seen, err
		}
	}
	return nil, err
}

// see adds the tags that are new to those that were seen.
func (r *refs) see(t *trust, seen map[string]firstSeen) {
	clear(r.peeled)
	for tag, raw := range r.tags {
		if _, _, ok := splitTag(tag); !ok {
			continue
		}
		if first, ok := seen[tag]; ok {
			if first.raw == raw {
				r.peeled[tag] = first.commit
			}
			continue
		}
		if t != nil {
			if _, err := t.tag(tag, raw); err != nil {
				continue // reported where the tag is used
			}
		}
		commit, err := r.objects.peel(raw)
		if err != nil {
			continue // as above
		}
		r.peeled[tag] = commit
		seen[tag] = firstSeen{commit: commit, raw: raw}
	}
}

// readSeen reads the file that writeSeen wrote; none is an empty memory.
func readSeen(file string) (map[string]firstSeen, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return map[string]firstSeen{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the tags that were seen before: %w", err)
	}
	return parseSeen(file, data)
}

// parseSeen reads what encodeSeen wrote.
func parseSeen(file string, data []byte) (map[string]firstSeen, error) {
	seen := map[string]firstSeen{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, " ")
		if len(fields) != 3 || !plumbing.IsHash(fields[0]) || !plumbing.IsHash(fields[1]) {
			return nil, fmt.Errorf("%s is damaged: %q is not a line of it", file, line)
		}
		seen[fields[2]] = firstSeen{commit: plumbing.NewHash(fields[0]), raw: plumbing.NewHash(fields[1])}
	}
	return seen, nil
}

// writeSeen writes what readSeen reads.
func writeSeen(file string, seen map[string]firstSeen) error {
	return replaceFile(file, encodeSeen(seen))
}

func encodeSeen(seen map[string]firstSeen) []byte {
	var b bytes.Buffer
	b.WriteString("# COMMIT TAG-OBJECT TAG of each component's version when Keelson first saw it.\n")
	for _, tag := range slices.Sorted(maps.Keys(seen)) {
		b.WriteString(seenLine(tag, seen[tag]))
	}
	return b.Bytes()
}

func seenLine(tag string, first firstSeen) string {
	return fmt.Sprintf("%s %s %s\n", first.commit, first.raw, tag)
}

// seenSize is the length of a tag's line.
func seenSize(tag string) int { return 2*hash.HexSize + len(tag) + len("  \n") }

// replaceFile replaces a file in one step, so that a killed process leaves the
// old one or the new one.
func replaceFile(file string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
