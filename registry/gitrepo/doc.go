// Package gitrepo reads and changes one git repository, local or on a server: fetch, push, history,
// objects and signatures. It knows no fleet.
//
// Guarantee: what a commit or tag holds is what git stores under its hash. Nothing is checked out,
// and no hook, filter or git binary runs. [Repo.Admit] gives only commits that may be used: with
// [Options.TrustedKeys], a commit without a signature of a trusted key is refused, and so is a
// branch that was rewound; see docs/decisions/009. The commit of a version's tag is remembered, so
// that a tag that moves is noticed.
//
// Limits: [Limits] bound what a server may send. Sizes are checked before anything is inflated, and
// hashes are checked after. Data of a remote server is checked before go-git reads it.
//
// Not bounded, because go-git does not bound them: the packs of a local repository, which is read
// in place, and the list of refs. The indexes of local packs are read into memory, and a crafted
// pack may cost more than its size. Up to 32 MiB of the list of refs are in memory at once.
//
// Cost: a [Repo.Fetch] without changes is one request. Objects are read one by one, and trees are
// cached.
package gitrepo
