package registry

import (
	"context"
	"fmt"
)

// Limits of a fleet. They are far above any real one: a thousand names of one
// folder are a thousand components or clusters, in a repository that is small.
const (
	// maxVersionFiles are files and folders, those in packed charts among them.
	maxVersionFiles = 500_000
	maxVersionBytes = 1 << 30
	maxClusterFiles = 250_000
	// maxPairs of a cluster and a component that its files or layers speak of.
	maxPairs = 400_000
	// maxTopFiles and maxTopBytes are those of layers/, and of each folder like it.
	maxTopFiles = 1000
	maxTopBytes = 16 << 20
)

// budget counts what one Load holds, whether it was read now or before: else a
// fleet could be loaded bit by bit that could not be loaded at a start.
type budget struct {
	versions     holding
	clusterFiles int
	pairs        int
}

// holding is what is in memory of something.
type holding struct {
	files int // and folders
	bytes int64
}

// allows says whether a version may be read.
func (b *budget) allows(v holding) bool {
	return b.versions.files+v.files <= maxVersionFiles && b.versions.bytes+v.bytes <= maxVersionBytes
}

// version counts a version. Not ok: that is too much.
func (b *budget) version(v holding) (ok bool) {
	b.versions.files += v.files
	b.versions.bytes += v.bytes
	return b.allows(holding{})
}

// exhaust lets no more versions be read.
func (b *budget) exhaust() { b.versions.files = maxVersionFiles + 1 }

// clusterFolder counts the files of one cluster.
func (b *budget) clusterFolder(files int) error {
	if b.clusterFiles += files; b.clusterFiles > maxClusterFiles {
		return fmt.Errorf("clusters/ holds more than %d files", maxClusterFiles)
	}
	return nil
}

// cluster counts the components that are spoken of for one cluster.
func (b *budget) cluster(components int) error {
	if b.pairs += components; b.pairs > maxPairs {
		return fmt.Errorf("clusters/ and layers/ speak of more than %d components, counted on each cluster", maxPairs)
	}
	return nil
}

// tooMuch says what is too much in a folder at the top; "" is nothing.
func (l *loader) tooMuch(ctx context.Context, folder string, entries []entry) (string, error) {
	var holds holding
	for _, e := range entries {
		if e.kind != entryFile || !isYAML(e.name) {
			continue
		}
		if holds.files++; holds.files > maxTopFiles {
			return fmt.Sprintf("%s/ holds more than %d files", folder, maxTopFiles), nil
		}
		size, err := l.tree.size(ctx, e)
		if err != nil {
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			continue // reported where it is read
		}
		if size <= maxFleetFile { // else it is not read
			holds.bytes += size
		}
	}
	if holds.bytes > maxTopBytes {
		return fmt.Sprintf("the files in %s/ are larger than %d MiB in all", folder, maxTopBytes>>20), nil
	}
	return "", nil
}
