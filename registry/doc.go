// Package registry reads a fleet repository: git → [Fleet] at one revision.
//
// Guarantee: a [Fleet] is the content of one commit in git, with a file, line and column for every
// value and every mistake. A mistake blocks the narrowest thing that it can be assigned to: a
// delivery, else a cluster, else the fleet. Content that can't be read blocks everything that it
// could affect, and never counts as absent. So a broken pipeline blocks the components that use it,
// and a broken freeze blocks everything that it may cover. A version is a git tag and can't change.
// A tag that was moved since it was first seen is a mistake, not an update. What is said about git
// itself, signatures and servers is in the package gitrepo.
//
// Limits: files of the fleet are at most 1 MiB, and files of a component at most 5 MiB. A version
// has at most 10,000 files and 50 MiB, with a packed chart (.tgz) unpacked. All versions in use
// have at most 1 GiB, and clusters/ at most 250,000 files. Symlinks, submodules, names that lead
// elsewhere, YAML anchors, aliases and merge keys are refused.
//
// Cost: files are decoded once and found again by their git hash. A [Repo.Load] after a small
// commit reads and decodes only the changed files, and makes only the affected clusters again. A
// Load with nothing new returns the previous [Fleet].
package registry
