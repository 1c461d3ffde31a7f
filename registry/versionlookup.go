package registry

import (
	"context"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

type versionKey struct{ component, version string }

// versionLookup is the result of looking up a version by its name: the version, or the problems with it.
type versionLookup struct {
	key     versionKey
	version *Version
	// refused is set if no such version can exist. It is reported at the reference, not at the
	// version.
	refused *yamlfile.Problem
	// problems are those of the version, with their own positions.
	problems yamlfile.Problems
}

// at returns all problems of the answer, for a reference at place.
func (a *versionLookup) at(place yamlfile.Position) yamlfile.Problems {
	if a.refused == nil {
		return a.problems
	}
	problem := *a.refused
	problem.At = place
	return yamlfile.Problems{problem}
}

func (a *versionLookup) equal(b *versionLookup) bool {
	if (a.refused == nil) != (b.refused == nil) || a.refused != nil && *a.refused != *b.refused {
		return false
	}
	return a.key == b.key && a.version == b.version && slices.Equal(a.problems, b.problems)
}

// lookupVersion looks up a version by the name in a file, once a Load. The name "" stands for a file that
// names no version.
func (l *loader) lookupVersion(ctx context.Context, key versionKey) (*versionLookup, error) {
	if a, ok := l.answers[key]; ok {
		return a, nil
	}
	a := &versionLookup{key: key, refused: l.refuse(key)}
	if a.refused == nil {
		result, err := l.version(ctx, key.component, key.version)
		if err != nil {
			return nil, err
		}
		a.version, a.problems = result.version, result.problems
	}
	l.answers[key] = a
	return a, nil
}

// refuse returns why a version can't exist, or nil.
func (l *loader) refuse(key versionKey) *yamlfile.Problem {
	if key.version == "" {
		problem := l.unpublished(key.component, v1alpha1.VersionHead, yamlfile.Position{})
		if problem == nil || len(l.at.Snapshot.Versions(key.component)) > 0 {
			problem = &yamlfile.Problem{
				Message: "neither this file nor a layer names a version of " + key.component + " for this cluster",
				Hint:    "add version: vX.Y.Z",
			}
		}
		return problem
	}
	if message, hint := naming.CheckVersion(key.version); message != "" {
		return &yamlfile.Problem{Message: message, Hint: hint}
	}
	return l.unpublished(key.component, key.version, yamlfile.Position{})
}

// isCurrent reports whether an answer of an earlier Load is still correct.
func (l *loader) isCurrent(ctx context.Context, before *versionLookup) (bool, error) {
	if same, ok := l.same[before]; ok {
		return same, nil
	}
	now, err := l.lookupVersion(ctx, before.key)
	if err != nil {
		return false, err
	}
	same := before.equal(now)
	l.same[before] = same
	return same, nil
}
