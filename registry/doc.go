// Package registry reads a fleet repository: git → [Fleet] at one revision.
//
// Guarantee: a [Fleet] is what git says at one commit, with a file, line and
// column for every value and every mistake. A mistake blocks the narrowest
// thing that it can be pinned to (a delivery, else a cluster, else the fleet),
// and whatever can't be known blocks what it might have said: not knowing is
// never absence. A version is a git tag and can't change; a tag that was moved
// since it was first seen is a mistake, not an update.
//
// Limits: files of the fleet are at most 1 MiB, files of a component 5 MiB, a
// version 10,000 files and 50 MiB, with a packed chart (.tgz) unpacked. Symlinks,
// submodules, YAML anchors, aliases and merge keys are refused. Nothing is checked
// out, and no hook, filter or git binary runs.
//
// Cost: files are decoded once and found again by their git hash, so a [Repo.Load]
// after a small commit reads and decodes what that commit changed; the rest is
// linear in the number of deliveries. A Load with nothing new returns the
// [Fleet] of the time before.
package registry
