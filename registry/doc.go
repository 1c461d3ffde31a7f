// Package registry reads a fleet repository: git → [Fleet] at one revision.
//
// Guarantee: a [Fleet] is what git says at one commit, with a file, line and
// column for every value and every mistake. A mistake blocks the narrowest
// thing that it can be pinned to (a delivery, else a cluster, else the fleet),
// and whatever can't be known blocks what it might have said: not knowing is
// never absence. So a broken pipeline blocks the components that go by it, and a
// broken freeze all that it may be for. A version is a git tag and can't change; a tag that was moved
// since it was first seen is a mistake, not an update. With [Options.TrustedKeys]
// a commit or tag that none of them signed, or a branch that was rewound, is
// refused; see docs/decisions/009.
//
// Limits: files of the fleet are at most 1 MiB, files of a component 5 MiB, a
// version 10,000 files and 50 MiB with a packed chart (.tgz) unpacked, all
// versions in use 1 GiB, clusters/ 250,000 files; see [Limits] for what a server
// may send. Sizes are looked at before anything is inflated, and hashes are
// checked after. Symlinks, submodules, names that lead elsewhere, YAML anchors,
// aliases and merge keys are refused. Nothing is checked out, and no hook, filter or git binary runs.
//
// Not bounded, since go-git does not: the packs of a repository on this machine,
// which is read in place (its indexes are read into memory, and a crafted pack
// may cost more than it holds), and the list of refs, of which up to 32 MiB are
// in memory at once. What a remote server sends is looked at before go-git
// sees it.
//
// Cost: files are decoded once and found again by their git hash, so a [Repo.Load]
// after a small commit reads and decodes what that commit changed, and makes
// anew the clusters whose inputs it changed. A Load with nothing new returns the
// [Fleet] of the time before.
package registry
