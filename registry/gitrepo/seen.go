package gitrepo

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

	"github.com/keelson-io/keelson/registry/naming"
)

// firstSeen is the state of a tag when it was first seen. A version can't change, so a tag with
// another commit is a mistake.
type firstSeen struct {
	commit plumbing.Hash
	// raw is the hash of the tag object, or of the commit for a lightweight tag. While raw is the
	// same, the commit is too, and no object has to be read.
	raw plumbing.Hash
}

// tagStore stores the first-seen state of the tags of versions.
type tagStore struct {
	file   string        // in the cache folder
	memory *sharedMemory // may be nil
	// readOnly: new tags are not stored in the cache folder.
	readOnly bool
}

// remember sets the first-seen state of the tags of versions, and stores new tags. It uses a file
// instead of refs of its own, because ten thousand refs would be as many files to read at each
// start. The file is not in the repository, because a local repository is read in place.
//
// In a signed repository, only tags with a good signature are remembered. A user who may push but
// not sign must not be able to take the name of a version.
//
// With a [Memory], a tag is stored there before it is used, so that the replica that sees it first
// decides.
func (s tagStore) remember(ctx context.Context, now *Snapshot, t *Trust) error {
	now.keys = t.Digest()
	here, err := readSeen(s.file)
	if err != nil {
		return err
	}
	seen := maps.Clone(here)
	if !now.shared {
		now.see(t, seen)
	} else if seen, err = s.rememberShared(ctx, now, t, here); err != nil {
		return err
	}
	now.seen = seen
	if maps.Equal(seen, here) || s.readOnly {
		return nil
	}
	return writeSeen(s.file, seen)
}

// rememberShared is remember with a memory. It reads the memory again after a conflict with another
// replica.
func (s tagStore) rememberShared(ctx context.Context, now *Snapshot, t *Trust, here map[string]firstSeen) (seen map[string]firstSeen, err error) {
	for range memoryPasses {
		seen = maps.Clone(here)
		if err = s.memory.tagsIn(ctx, seen); err != nil {
			return nil, err
		}
		now.see(t, seen)
		if err = s.memory.keepTags(ctx, seen); !errors.Is(err, ErrMemoryChanged) {
			return seen, err
		}
	}
	return nil, err
}

// see adds new tags to seen.
func (r *Snapshot) see(t *Trust, seen map[string]firstSeen) {
	clear(r.peeled)
	for tag, raw := range r.tags {
		if _, _, ok := naming.SplitTag(tag); !ok {
			continue
		}
		if first, ok := seen[tag]; ok {
			if first.raw == raw {
				r.peeled[tag] = first.commit
			}
			continue
		}
		if t != nil {
			if _, err := t.Tag(tag); err != nil {
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

// readSeen reads a file of writeSeen; a missing file is empty.
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

// parseSeen parses the output of encodeSeen.
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

// writeSeen writes the file for readSeen.
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

// seenSize returns the length of a tag's line, in bytes.
func seenSize(tag string) int { return 2*hash.HexSize + len(tag) + len("  \n") }

// replaceFile replaces a file in one step, so that a killed process leaves either the old file or
// the new file.
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
