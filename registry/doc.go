// Package registry reads a fleet repository: git → [Fleet] at one revision.
//
// Guarantee: a [Fleet] is the content of one commit in git, with a file, line and column for every
// value and every mistake. A mistake blocks the narrowest thing that it can be assigned to: a
// delivery, else a cluster, else the fleet. Content that can't be read blocks everything that it
// could affect, and never counts as absent. So a broken pipeline blocks the components that use it,
// and a broken freeze blocks everything that it may cover. A version is a git tag and can't change.
// A tag that was moved since it was first seen is a mistake, not an update. With
// [Options.TrustedKeys], a commit or tag without a signature of a trusted key is refused, and so is
// a branch that was rewound; see docs/decisions/009.
//
// Limits: files of the fleet are at most 1 MiB, and files of a component at most 5 MiB. A version
// has at most 10,000 files and 50 MiB, with a packed chart (.tgz) unpacked. All versions in use
// have at most 1 GiB, and clusters/ at most 250,000 files. [Limits] bound what a server may send.
// Sizes are checked before anything is inflated, and hashes are checked after. Symlinks,
// submodules, names that lead elsewhere, YAML anchors, aliases and merge keys are refused. Nothing
// is checked out, and no hook, filter or git binary runs.
//
// Not bounded, because go-git does not bound them: the packs of a local repository, which is read
// in place, and the list of refs. The indexes of local packs are read into memory, and a crafted
// pack may cost more than its size. Up to 32 MiB of the list of refs are in memory at once. Data of
// a remote server is checked before go-git reads it.
//
// Cost: files are decoded once and found again by their git hash. A [Repo.Load] after a small
// commit reads and decodes only the changed files, and makes only the affected clusters again. A
// Load with nothing new returns the previous [Fleet].
package registry
