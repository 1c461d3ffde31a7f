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

// loadLimits counts what one Load holds, whether read now or by an earlier Load. Otherwise a fleet
// could grow in small steps until a restart could not load it.
type loadLimits struct {
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
func (l *loadLimits) allows(v holding) bool {
	return l.versions.files+v.files <= maxVersionFiles && l.versions.bytes+v.bytes <= maxVersionBytes
}

// version counts a version. It returns false if the limit is exceeded.
func (l *loadLimits) version(v holding) (ok bool) {
	l.versions.files += v.files
	l.versions.bytes += v.bytes
	return l.allows(holding{})
}

// exhaust makes loadLimits refuse all further versions.
func (l *loadLimits) exhaust() { l.versions.files = maxVersionFiles + 1 }

// clusterFolder counts the files of one cluster.
func (l *loadLimits) clusterFolder(files int) error {
	if l.clusterFiles += files; l.clusterFiles > maxClusterFiles {
		return fmt.Errorf("clusters/ holds more than %d files", maxClusterFiles)
	}
	return nil
}

// cluster counts the components that files and layers name for one cluster.
func (l *loadLimits) cluster(components int) error {
	if l.pairs += components; l.pairs > maxPairs {
		return fmt.Errorf("clusters/ and layers/ speak of more than %d components, counted on each cluster", maxPairs)
	}
	return nil
}
