package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/keelson-io/keelson/registry/naming"
)

// clone is the bare clone of a remote repository. It is changed under the lock of its folder.
type clone struct {
	path     string
	location location
	limits   Limits
	// proposals: many proposals are fetched, so their packs are bounded.
	proposals bool
}

// objects returns the objects of the clone.
func (c clone) objects(repo *git.Repository) *objects { return &objects{s: repo.Storer, clone: c.path} }

// fetch updates the clone. It requests the list of refs first, so that a poll without
// changes costs one request.
//
// It does not use go-git's Remote.Fetch. That function finds its transport in a global, and writes
// a file for each ref. To index a pack, it reads the pack into memory before any check of its
// content.
//
// also names one more ref to fetch, which the clone does not follow; "" for none. extra is its
// hash. known are the branches before the fetch, or nil.
func (c clone) fetch(ctx context.Context, also plumbing.ReferenceName, known *Snapshot) (changed bool, extra plumbing.Hash, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.limits.Time, fmt.Errorf("it takes longer than %s", c.limits.Time))
	defer cancel()
	ctx, dog, stop := watch(ctx, c.limits.Silence)
	defer stop()
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
	}()

	if err := c.sweep(); err != nil {
		return false, extra, err
	}
	storage := openStorage(c.path)
	repo, err := initClone(storage)
	if err != nil {
		return false, extra, err
	}
	server, err := c.location.connect(ctx, dog)
	if err != nil {
		return false, extra, err
	}
	defer func() {
		if cerr := server.close(); err == nil && cerr != nil {
			err = fmt.Errorf("end the connection: %w", cerr)
		}
	}()
	dog.allow(c.limits.RefBytes)
	offered, listed, err := c.refsOf(ctx, server)
	if err != nil {
		return false, extra, fmt.Errorf("list its branches and tags: %w", err)
	}
	if extra, err = named(offered, also); err != nil {
		return false, extra, err
	}
	have := c.objects(repo)
	old, anew, err := c.crowded(also)
	if err != nil {
		return false, extra, err
	}
	same, err := sameRefs(repo, listed)
	if err != nil || same && !anew && (extra.IsZero() || have.has(extra)) {
		return false, extra, err
	}
	if anew {
		have = nil
	}
	in := incoming{server: server, dog: dog, limits: c.limitsOf(also)}
	received, err := c.fetchObjects(ctx, in, storage, request(have, offered, listed, extra, known))
	if err != nil {
		return false, extra, fmt.Errorf("fetch its branches and tags: %w", err)
	}
	if err := c.writeRefs(storage, listed); err != nil {
		return false, extra, err
	}
	if anew {
		return true, extra, c.dropPacks(old, received)
	}
	return true, extra, nil
}

// initClone opens the clone, and creates it if it is missing.
func initClone(storage *filesystem.Storage) (*git.Repository, error) {
	repo, err := git.Open(storage, nil)
	if errors.Is(err, git.ErrRepositoryNotExists) {
		repo, err = git.Init(storage, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("open the clone: %w", err)
	}
	return repo, nil
}

// crowded lists the packs of the clone, and reports whether to fetch the clone anew as one pack. It
// does so if there are too many packs, or if proposals take too much space. It does not during a
// fetch of a proposal.
func (c clone) crowded(also plumbing.ReferenceName) (packs []string, crowded bool, err error) {
	files, err := filepath.Glob(filepath.Join(c.path, "objects", "pack", "pack-*.pack"))
	if err != nil {
		return nil, false, fmt.Errorf("list the clone's packs: %w", err)
	}
	var all, largest int64
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return nil, false, fmt.Errorf("list the clone's packs: %w", err)
		}
		all, largest = all+info.Size(), max(largest, info.Size())
		packs = append(packs, strings.TrimSuffix(file, ".pack"))
	}
	much := len(files) >= c.limits.Packs || c.proposals && all-largest > c.limits.ProposalsBytes
	return packs, much && also == "", nil
}

// dropPacks removes the old packs after the clone was fetched anew, except the received pack. A
// Load that is still running may fail, and is tried again.
func (c clone) dropPacks(old []string, received plumbing.Hash) error {
	if received.IsZero() {
		return nil // the repository is empty
	}
	for _, pack := range old {
		if strings.HasSuffix(pack, "pack-"+received.String()) {
			continue
		}
		for _, suffix := range []string{"idx", "pack"} {
			if err := os.Remove(pack + "." + suffix); err != nil {
				return fmt.Errorf("remove old packs: %w", err)
			}
		}
	}
	return nil
}

// sweep removes temporary files of killed fetches.
func (c clone) sweep() error {
	for _, pattern := range []string{"incoming-*", "objects/pack/tmp_*", "packed-refs-*"} {
		files, err := filepath.Glob(filepath.Join(c.path, filepath.FromSlash(pattern)))
		if err != nil {
			return fmt.Errorf("look for remains: %w", err)
		}
		for _, file := range files {
			if err := os.Remove(file); err != nil {
				return fmt.Errorf("remove remains: %w", err)
			}
		}
	}
	return nil
}

// refsOf returns all refs that a server offers, and the refs to follow.
func (c clone) refsOf(ctx context.Context, server server) (*packp.AdvRefs, map[plumbing.ReferenceName]*plumbing.Reference, error) {
	offered, err := server.refs(ctx)
	if err != nil && !errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return nil, nil, err
	}
	listed, err := c.listed(offered)
	return offered, listed, err
}

// listed returns the offered refs that the clone follows. Too many refs are an error.
func (c clone) listed(offered *packp.AdvRefs) (map[plumbing.ReferenceName]*plumbing.Reference, error) {
	out := map[plumbing.ReferenceName]*plumbing.Reference{}
	if offered == nil {
		return out, nil
	}
	all, err := offered.AllReferences()
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says of what
	}
	for name, ref := range all {
		if mirrored(name) {
			out[name] = ref
		}
	}
	if len(out) > c.limits.Refs {
		return nil, fmt.Errorf("there are %d, and at most %d are read", len(out), c.limits.Refs)
	}
	return out, nil
}

// mirrored reports whether the clone follows a ref of the remote. A ref with a name that is invalid
// in git is not followed, and so never found.
func mirrored(name plumbing.ReferenceName) bool {
	return name == plumbing.HEAD || (name.IsBranch() || name.IsTag()) && naming.CheckRef(name.Short()) == ""
}

// named returns the hash of a ref of the server; zero for "". The error for a missing ref is
// ErrNoRef.
func named(offered *packp.AdvRefs, ref plumbing.ReferenceName) (plumbing.Hash, error) {
	if ref == "" {
		return plumbing.ZeroHash, nil
	}
	if offered != nil {
		if h, ok := offered.References[ref.String()]; ok {
			return h, nil
		}
	}
	return plumbing.ZeroHash, fmt.Errorf("%w: %s", ErrNoRef, ref)
}

// sameRefs reports whether the clone has exactly the listed refs. For an empty list the result is
// false.
func sameRefs(repo *git.Repository, listed map[plumbing.ReferenceName]*plumbing.Reference) (bool, error) {
	have := map[plumbing.ReferenceName]string{}
	iter, err := repo.References()
	if err != nil {
		return false, fmt.Errorf("list the clone's refs: %w", err)
	}
	err = iter.ForEach(func(ref *plumbing.Reference) error {
		have[ref.Name()] = ref.String()
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("list the clone's refs: %w", err)
	}
	for name, ref := range listed {
		if have[name] != ref.String() {
			return false, nil
		}
	}
	return len(listed) == len(have) && len(listed) > 0, nil
}

// request requests the missing objects, or all objects if have is nil. extra is requested too,
// unless it is zero. known are the branches of the clone, or nil. The result is nil if nothing is
// missing.
func request(have *objects, offered *packp.AdvRefs, listed map[plumbing.ReferenceName]*plumbing.Reference, extra plumbing.Hash, known *Snapshot) *packp.UploadPackRequest {
	if offered == nil {
		return nil
	}
	req := packp.NewUploadPackRequestFromCapabilities(offered.Capabilities)
	asked := map[plumbing.Hash]bool{plumbing.ZeroHash: true}
	want := func(h plumbing.Hash) {
		if !asked[h] && (have == nil || !have.has(h)) {
			asked[h] = true
			req.Wants = append(req.Wants, h)
		}
	}
	for _, ref := range listed {
		if ref.Type() == plumbing.HashReference {
			want(ref.Hash())
		}
	}
	want(extra)
	if len(req.Wants) == 0 {
		return nil
	}
	if known != nil && have != nil {
		req.Haves = haves(known)
	}
	if offered.Capabilities.Supports(capability.Filter) {
		// Larger blobs are never read.
		_ = req.Capabilities.Set(capability.Filter) // it takes no value, so it can't be wrong
		req.Filter = packp.FilterBlobLimit(MaxFile+1, packp.BlobLimitPrefixNone)
	}
	return req
}

// haves returns commits of the clone, so that the server skips objects that it sent before: the
// heads of branches and some of their first-parent ancestors, because a branch may have been
// rewound.
func haves(repo *Snapshot) []plumbing.Hash {
	const most, depth = 256, 32
	seen := map[plumbing.Hash]bool{}
	for _, name := range slices.Sorted(maps.Keys(repo.branches)) {
		h := repo.branches[name]
		for range depth {
			if len(seen) == most || seen[h] {
				break
			}
			c, err := repo.objects.commit(h)
			if err != nil {
				break // with a damaged clone, the server sends more
			}
			seen[h] = true
			if len(c.parents) == 0 {
				break
			}
			h = c.parents[0]
		}
	}
	return slices.Collect(maps.Keys(seen))
}

// incoming is the source of a pack, with its limits.
type incoming struct {
	server server
	dog    *watchdog
	limits Limits
}

// limitsOf returns the limits of a fetch. A fetch with also is a fetch of a proposal.
func (c clone) limitsOf(also plumbing.ReferenceName) Limits {
	if also != "" {
		return c.limits.ofProposal()
	}
	return c.limits
}

// fetchObjects receives a pack and adds it to the clone after its content is checked. It returns
// the pack's name; zero if there is nothing to receive.
func (c clone) fetchObjects(ctx context.Context, in incoming, storage *filesystem.Storage, req *packp.UploadPackRequest) (name plumbing.Hash, err error) {
	if req == nil {
		return name, nil
	}
	in.dog.allow(in.limits.PackBytes)
	body, err := in.server.pack(ctx, req)
	if err != nil {
		return name, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	f, err := os.CreateTemp(c.path, "incoming-*")
	if err != nil {
		return name, fmt.Errorf("write the pack: %w", err)
	}
	defer func() {
		gone := os.Remove(f.Name())
		if errors.Is(gone, os.ErrNotExist) {
			gone = nil // it was renamed into the folder of packs
		}
		err = errors.Join(err, f.Close(), gone)
	}()

	_, err = io.Copy(f, demultiplex(req.Capabilities, body))
	switch {
	case errors.Is(err, ErrTooMuch):
		return name, fmt.Errorf("%w: the pack is larger than %d MiB", ErrTooMuch, in.dog.most>>20)
	case err != nil:
		return name, fmt.Errorf("receive the pack: %w", err)
	}
	in.dog.stop()
	pack, err := indexPack(ctx, f, in.limits)
	if err != nil {
		return name, fmt.Errorf("refuse the pack: %w", err)
	}
	if err := c.addPack(pack); err != nil {
		return name, err
	}
	storage.Reindex()
	for _, want := range req.Wants {
		if storage.HasEncodedObject(want) != nil {
			return name, fmt.Errorf("the server did not send %s, which it offers", want)
		}
	}
	return pack.checksum, nil
}

// addPack adds a pack to the clone. The index comes first, because a pack without an index breaks
// every reader.
func (c clone) addPack(pack *packIndexer) error {
	folder := filepath.Join(c.path, "objects", "pack")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("add the pack: %w", err)
	}
	name := filepath.Join(folder, "pack-"+pack.checksum.String())
	if err := pack.writeIndex(name + ".idx"); err != nil {
		return err
	}
	if err := pack.file.Sync(); err != nil {
		return fmt.Errorf("add the pack: %w", err)
	}
	if err := os.Rename(pack.file.Name(), name+".pack"); err != nil {
		return fmt.Errorf("add the pack: %w", err)
	}
	return nil
}

// demultiplex extracts the pack from the response of the server.
func demultiplex(c *capability.List, body io.Reader) io.Reader {
	switch {
	case c.Supports(capability.Sideband64k):
		return sideband.NewDemuxer(sideband.Sideband64k, body)
	case c.Supports(capability.Sideband):
		return sideband.NewDemuxer(sideband.Sideband, body)
	default:
		return body
	}
}

// writeRefs replaces all refs of the clone by the listed refs in one step, and then sets HEAD.
func (c clone) writeRefs(storage *filesystem.Storage, listed map[plumbing.ReferenceName]*plumbing.Reference) error {
	var b bytes.Buffer
	b.WriteString("# pack-refs with:\n")
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if ref := listed[name]; name != plumbing.HEAD && ref.Type() == plumbing.HashReference {
			fmt.Fprintf(&b, "%s %s\n", ref.Hash(), name)
		}
	}
	if err := replaceFile(filepath.Join(c.path, "packed-refs"), b.Bytes()); err != nil {
		return err
	}
	// Clones of earlier versions have a file for each ref, which would override packed-refs.
	for _, folder := range []string{"heads", "tags"} {
		if err := os.RemoveAll(filepath.Join(c.path, "refs", folder)); err != nil {
			return fmt.Errorf("remove old refs: %w", err)
		}
	}
	if head := listed[plumbing.HEAD]; head != nil {
		if err := storage.SetReference(head); err != nil {
			return fmt.Errorf("write HEAD: %w", err)
		}
	}
	return nil
}
