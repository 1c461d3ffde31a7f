package registry

import (
	"fmt"
)

// Limits of a fleet. They are far above any real fleet: in a small repository, a thousand names in
// one folder can be a thousand components or clusters.
const (
	// maxVersionFiles counts files and folders, including files in packed charts.
	maxVersionFiles = 500_000
	maxVersionBytes = 1 << 30
	maxClusterFiles = 250_000
	// maxPairs counts pairs of a cluster and a component that its files or layers name.
	maxPairs = 400_000
	// maxTopFiles and maxTopBytes bound layers/, and each folder like it.
	maxTopFiles = 1000
	maxTopBytes = 16 << 20
)

// budget counts what one Load holds, whether read now or by an earlier Load. Otherwise a fleet
// could grow in small steps until a restart could not load it.
type budget struct {
	versions     holding
	clusterFiles int
	pairs        int
}

// holding is how much of something is in memory.
type holding struct {
	files int // and folders
	bytes int64
}

// allows reports whether a version of this size may be read.
func (b *budget) allows(v holding) bool {
	return b.versions.files+v.files <= maxVersionFiles && b.versions.bytes+v.bytes <= maxVersionBytes
}

// version counts a version. It returns false if the limit is exceeded.
func (b *budget) version(v holding) (ok bool) {
	b.versions.files += v.files
	b.versions.bytes += v.bytes
	return b.allows(holding{})
}

// exhaust makes budget refuse all further versions.
func (b *budget) exhaust() { b.versions.files = maxVersionFiles + 1 }

// clusterFolder counts the files of one cluster.
func (b *budget) clusterFolder(files int) error {
	if b.clusterFiles += files; b.clusterFiles > maxClusterFiles {
		return fmt.Errorf("clusters/ holds more than %d files", maxClusterFiles)
	}
	return nil
}

// cluster counts the components that files and layers name for one cluster.
func (b *budget) cluster(components int) error {
	if b.pairs += components; b.pairs > maxPairs {
		return fmt.Errorf("clusters/ and layers/ speak of more than %d components, counted on each cluster", maxPairs)
	}
	return nil
}
