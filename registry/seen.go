package registry

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
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
func (r *Repo) remember(now *refs) error {
	t, err := r.trust(now.objects)
	if err != nil {
		return err
	}
	now.keys = t.digest()
	file := filepath.Join(r.folder, "first-seen")
	seen, err := readSeen(file)
	if err != nil {
		return err
	}
	added := false
	for tag, raw := range now.tags {
		if _, _, ok := splitTag(tag); !ok {
			continue
		}
		if first, ok := seen[tag]; ok {
			if first.raw == raw {
				now.peeled[tag] = first.commit
			}
			continue
		}
		if t != nil {
			if _, err := t.tag(tag, raw); err != nil {
				continue // reported where the tag is used
			}
		}
		commit, err := now.objects.peel(raw)
		if err != nil {
			continue // as above
		}
		now.peeled[tag] = commit
		seen[tag] = firstSeen{commit: commit, raw: raw}
		added = true
	}
	now.seen = seen
	if !added || r.looks && r.location.path != "" {
		return nil
	}
	return writeSeen(file, seen)
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
	var b bytes.Buffer
	b.WriteString("# COMMIT TAG-OBJECT TAG of each component's version when Keelson first saw it.\n")
	for _, tag := range slices.Sorted(maps.Keys(seen)) {
		fmt.Fprintf(&b, "%s %s %s\n", seen[tag].commit, seen[tag].raw, tag)
	}
	return replaceFile(file, b.Bytes())
}

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
