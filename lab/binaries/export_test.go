package binaries

import "io"

// Load exposes load.
func Load(modules, cache string) (Set, error) { return load(modules, cache) }

// Flags exposes what the named program is built with.
func Flags(name, version string) []string {
	for _, b := range All() {
		if b.Name == name {
			return flags(b, version)
		}
	}
	return nil
}

// Follow exposes follow: the number of packages and the complaints.
func Follow(stderr io.Reader) (packages int, complaints []string) {
	p := newProgress(nil)
	complaints = follow(stderr, p)
	return p.packages, complaints
}
