package chartsource

import (
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// exact reports whether version is a single version like 1.45.0 or v1.45.0, not a range.
func exact(version string) bool {
	_, err := semver.StrictNewVersion(strings.TrimPrefix(version, "v"))
	return err == nil
}

// same reports whether two versions are equal, with or without a v.
func same(a, b string) bool {
	if a == b {
		return true
	}
	va, errA := semver.NewVersion(a)
	vb, errB := semver.NewVersion(b)
	return errA == nil && errB == nil && va.Equal(vb) && va.Metadata() == vb.Metadata()
}

// satisfies reports whether a version is in a range.
func satisfies(constraint, version string) bool {
	c, errC := semver.NewConstraint(constraint)
	v, errV := semver.NewVersion(version)
	return errC == nil && errV == nil && c.Check(v)
}

// newest returns the newest version in the range want. The range "" excludes pre-releases, like
// helm. An exact version is found with or without its v.
func newest(versions []string, want string) (string, error) {
	if exact(want) {
		if slices.Contains(versions, want) {
			return want, nil
		}
		for _, v := range versions {
			if same(v, want) {
				return v, nil
			}
		}
		return "", fmt.Errorf("there is no version %s: %s", want, few(versions))
	}
	constraint := want
	if constraint == "" {
		constraint = "*"
	}
	c, err := semver.NewConstraint(constraint)
	if err != nil {
		return "", fmt.Errorf("%q is neither a version nor a range of versions: %w", want, err)
	}
	var best *semver.Version
	for _, text := range versions {
		if v, err := semver.NewVersion(text); err == nil && c.Check(v) && (best == nil || v.GreaterThan(best)) {
			best = v
		}
	}
	if best == nil {
		return "", fmt.Errorf("there is no version in the range %q: %s", constraint, few(versions))
	}
	return best.Original(), nil
}

// few returns a text with the four newest versions and the number of older versions.
func few(versions []string) string {
	var all []*semver.Version
	for _, text := range versions {
		if v, err := semver.NewVersion(text); err == nil {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return "there are none"
	}
	slices.SortFunc(all, func(a, b *semver.Version) int { return b.Compare(a) })
	names := make([]string, 0, 5)
	for _, v := range all[:min(len(all), 4)] {
		names = append(names, v.Original())
	}
	if len(all) > 4 {
		return fmt.Sprintf("there are %s and %d older ones", strings.Join(names, ", "), len(all)-4)
	}
	return "there is " + strings.Join(names, ", ")
}
