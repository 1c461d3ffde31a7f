package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/storage/memory"

	"github.com/keelson-io/keelson/registry/naming"
)

// ErrMoved is wrapped by the error of a push to a branch that is not at the expected commit,
// because of another push. Nothing was pushed.
var ErrMoved = errors.New("the branch has moved on")

// Push is a list of commits for a branch on the repository's server.
type Push struct {
	// Branch is the short name of the branch. Expect is its present commit, a full hash; empty if
	// the branch does not exist.
	Branch, Expect string
	// Parent is the full hash of the parent of the first commit.
	Parent string
	// Commits are in order. Each is the parent of the next.
	Commits []Commit
	// Credentials is a file of logins as in [Options], only for this push.
	Credentials string
	// Author, Email and When are those of the commits, as author and as committer.
	Author, Email string
	When          time.Time
	// Sign returns the armored signature of a commit. If it is nil, commits are not signed.
	Sign func(payload []byte) (string, error)
	// Proposal means that the branch is never delivered. Otherwise, with [Options.TrustedKeys], the
	// last commit must be signed by a trusted key, because it would be refused when the branch is
	// read.
	Proposal bool
	// Force moves the branch even if Commits are not on top of Expect. It is for branches with no
	// other writer.
	Force bool
}

// Commit is the new content of existing files, and the commit message.
type Commit struct {
	Files   map[string][]byte
	Message string
}

// ReadAt returns the content of a file at a commit, given as full hash. A missing file is an error,
// and so is a file over 1 MiB.
func (r *Repo) ReadAt(ctx context.Context, commit, file string) ([]byte, error) {
	now := r.Snapshot()
	root, err := now.objects.commitTree(plumbing.NewHash(commit))
	if err != nil {
		return nil, err
	}
	h, err := (&paths{objects: now.objects, found: map[pathKey]plumbing.Hash{}}).blob(root, file)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s at %.12s: %w", file, commit, err)
	case h.IsZero():
		return nil, fmt.Errorf("there is no file %s at %.12s", file, commit)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return now.objects.blob(h, maxSmallFile)
}

// Changes reports whether a commit has the same tree as parent with the files of as replaced.
// Nothing is pushed.
func (r *Repo) Changes(commit, parent string, as Commit) (bool, error) {
	b := &builder{objects: r.Snapshot().objects, storage: memory.NewStorage()}
	is, err := b.objects.commitTree(plumbing.NewHash(commit))
	if err != nil {
		return false, err
	}
	root, err := b.objects.commitTree(plumbing.NewHash(parent))
	if err != nil {
		return false, err
	}
	want, err := b.files(root, as.Files)
	return err == nil && is == want, err
}

// Push creates commits and pushes them to a branch, all or none. It returns their hashes. The error
// wraps [ErrMoved] if the branch is at another commit than Expect.
//
// Without Force, the branch only moves forward: the server compares its commit with Expect. If the
// connection breaks, the commits may have been pushed.
func (r *Repo) Push(ctx context.Context, p Push) ([]string, error) {
	hashes, err := r.push(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("push to %s of %s: %w", p.Branch, r.location.shown(), err)
	}
	return hashes, nil
}

func (r *Repo) push(ctx context.Context, p Push) ([]string, error) {
	switch wrong := naming.CheckRef(p.Branch); {
	case r.location.path != "":
		return nil, errors.New("it is a folder on this machine: commits are pushed to a server, so give its URL")
	case wrong != "":
		return nil, errors.New(wrong)
	case p.Expect != "" && p.Expect != p.Parent && !p.Force:
		return nil, fmt.Errorf("%w: it is at %.12s, and the commits are on top of %.12s", ErrMoved, p.Expect, p.Parent)
	case len(p.Commits) == 0:
		return nil, nil
	}
	b := &builder{objects: r.Snapshot().objects, storage: memory.NewStorage(), push: p}
	commits, err := b.build()
	if err != nil {
		return nil, err
	}
	if err := r.trusts(b.last, p); err != nil {
		return nil, err
	}
	if err := r.pusher(p).change(ctx, b.storage, commits[len(commits)-1]); err != nil {
		return nil, err
	}
	out := make([]string, len(commits))
	for i, h := range commits {
		out[i] = h.String()
	}
	return out, nil
}

// DeleteBranch deletes the branch of a push on the server, with its Credentials. The error wraps
// [ErrMoved] if the branch is not at Expect. A missing branch is no error.
func (r *Repo) DeleteBranch(ctx context.Context, p Push) error {
	err := r.deleteBranch(ctx, p)
	if err != nil {
		return fmt.Errorf("delete %s of %s: %w", p.Branch, r.location.shown(), err)
	}
	return nil
}

func (r *Repo) deleteBranch(ctx context.Context, p Push) error {
	switch wrong := naming.CheckRef(p.Branch); {
	case r.location.path != "":
		return errors.New("it is a folder on this machine")
	case wrong != "":
		return errors.New(wrong)
	case p.Expect == "":
		return errors.New("it is not said where it is")
	}
	return r.pusher(p).change(ctx, nil, plumbing.ZeroHash)
}

// pusher changes the branch of a Push on the server.
type pusher struct {
	location location
	limits   Limits
	push     Push
}

func (r *Repo) pusher(p Push) pusher { return pusher{r.location, r.limits, p} }

// change moves a branch to the commit tip, with its new objects. A zero tip deletes the branch.
func (u pusher) change(ctx context.Context, objects *memory.Storage, tip plumbing.Hash) error {
	ctx, cancel := context.WithTimeoutCause(ctx, u.limits.Time, fmt.Errorf("it takes longer than %s", u.limits.Time))
	defer cancel()
	ctx, dog, stop := watch(ctx, u.limits.Silence)
	defer stop()
	asked, err := u.send(ctx, dog, objects, tip)
	if err != nil && asked {
		err = u.reconsider(ctx, dog, tip, err)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
	}
	return err
}

// send requests the change of a branch. If asked is true, the server may have made it, even with an
// error.
func (u pusher) send(ctx context.Context, dog *watchdog, objects *memory.Storage, tip plumbing.Hash) (asked bool, err error) {
	server, offered, err := u.offered(ctx, dog)
	if err != nil {
		return false, err
	}
	defer func() {
		if cerr := server.close(); err == nil && cerr != nil {
			err = fmt.Errorf("end the connection: %w", cerr)
		}
	}()
	name := plumbing.NewBranchReferenceName(u.push.Branch)
	is, expect := offered.References[name.String()], plumbing.NewHash(u.push.Expect)
	switch {
	case is.IsZero() && tip.IsZero():
		return false, nil // the branch is deleted already
	case is != expect:
		return false, moved(is, expect)
	}
	switch can := offered.Capabilities; {
	case !can.Supports(capability.ReportStatus):
		return false, errors.New("the server did not report whether it accepted a commit")
	case tip.IsZero() && !can.Supports(capability.DeleteRefs):
		return false, errors.New("the server deletes no branches")
	}
	req := packp.NewReferenceUpdateRequestFromCapabilities(offered.Capabilities)
	req.Commands = []*packp.Command{{Name: name, Old: expect, New: tip}}
	if objects != nil {
		var pack bytes.Buffer
		if _, err := packfile.NewEncoder(&pack, objects, false).Encode(slices.Collect(maps.Keys(objects.Objects)), 0); err != nil {
			return false, fmt.Errorf("make a pack: %w", err)
		}
		req.Packfile = io.NopCloser(&pack)
	}
	report, err := server.update(ctx, req)
	switch {
	case report == nil && err == nil:
		return true, errors.New("the server did not report whether it accepted the commit")
	case err != nil && report != nil:
		return true, fmt.Errorf("the server refuses it: %w", err)
	}
	return true, err
}

// offered opens a connection, and returns it with the server's refs.
func (u pusher) offered(ctx context.Context, dog *watchdog) (receiver, *packp.AdvRefs, error) {
	dog.allow(u.limits.RefBytes)
	to := u.location
	to.username, to.password, to.credentials = "", "", u.push.Credentials
	server, err := to.connectToPush(ctx, dog)
	if err != nil {
		return nil, nil, err
	}
	refs, err := server.refs(ctx)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("list its branches: %w", err), server.close())
	}
	return server, refs, nil
}

// reconsider finds the result of a failed push. The server may have made the change before the
// connection broke, or refused it because another push was first.
func (u pusher) reconsider(ctx context.Context, dog *watchdog, tip plumbing.Hash, failed error) error {
	server, offered, err := u.offered(ctx, dog)
	if err != nil {
		return errors.Join(failed, err)
	}
	defer func() { _ = server.close() }() // nothing was sent
	is, expect := offered.References[plumbing.NewBranchReferenceName(u.push.Branch).String()], plumbing.NewHash(u.push.Expect)
	switch is {
	case tip:
		return nil
	case expect:
		return failed
	}
	return errors.Join(moved(is, expect), failed)
}

func moved(is, expect plumbing.Hash) error {
	return fmt.Errorf("%w: it is at %s, and not at %s", ErrMoved, shortHash(is), shortHash(expect))
}

func shortHash(h plumbing.Hash) string {
	if h.IsZero() {
		return "no commit"
	}
	return h.String()[:12]
}

// trusts refuses a commit that this process would refuse when it reads the branch again.
func (r *Repo) trusts(commit plumbing.EncodedObject, p Push) error {
	t, err := r.Trust(r.Snapshot())
	if err != nil || t == nil || p.Proposal {
		return err
	}
	raw, err := readAll(commit)
	if err != nil {
		return err
	}
	if v := t.keys.judgeCommit(raw); v.wrong != "" {
		return fmt.Errorf("the repository requires signatures, and would refuse this commit: %s", v.wrong)
	}
	return nil
}

// builder creates the objects of commits.
type builder struct {
	objects *objects
	storage *memory.Storage
	push    Push
	last    plumbing.EncodedObject // the last object
}

func (b *builder) build() ([]plumbing.Hash, error) {
	parent := plumbing.NewHash(b.push.Parent)
	root, err := b.objects.commitTree(parent)
	if err != nil {
		return nil, err
	}
	var out []plumbing.Hash
	for _, c := range b.push.Commits {
		if root, err = b.files(root, c.Files); err != nil {
			return nil, err
		}
		if parent, err = b.commit(root, parent, c.Message); err != nil {
			return nil, err
		}
		out = append(out, parent)
	}
	return out, nil
}

// files returns the tree with new content for some existing files.
func (b *builder) files(root plumbing.Hash, content map[string][]byte) (plumbing.Hash, error) {
	for _, file := range slices.Sorted(maps.Keys(content)) {
		blob, err := b.store(plumbing.BlobObject, func(o plumbing.EncodedObject) error { return write(o, content[file]) })
		if err != nil {
			return plumbing.ZeroHash, err
		}
		if root, err = b.replace(root, strings.Split(file, "/"), blob); err != nil {
			return plumbing.ZeroHash, fmt.Errorf("write %s: %w", file, err)
		}
	}
	return root, nil
}

func (b *builder) commit(root, parent plumbing.Hash, message string) (plumbing.Hash, error) {
	by := object.Signature{Name: b.push.Author, Email: b.push.Email, When: b.push.When}
	c := &object.Commit{Author: by, Committer: by, Message: message, TreeHash: root, ParentHashes: []plumbing.Hash{parent}}
	if b.push.Sign != nil {
		raw := &plumbing.MemoryObject{}
		if err := c.EncodeWithoutSignature(raw); err != nil {
			return plumbing.ZeroHash, fmt.Errorf("make a commit: %w", err)
		}
		payload, err := readAll(raw)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		if c.PGPSignature, err = b.push.Sign(payload); err != nil {
			return plumbing.ZeroHash, fmt.Errorf("sign a commit: %w", err)
		}
	}
	return b.store(plumbing.CommitObject, c.Encode)
}

// replace returns the tree with another blob for an existing file.
func (b *builder) replace(tree plumbing.Hash, path []string, blob plumbing.Hash) (plumbing.Hash, error) {
	entries, err := b.tree(tree)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	i := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == path[0] })
	switch {
	case i < 0:
		return plumbing.ZeroHash, errors.New("there is no such file")
	case len(path) > 1 && entries[i].Mode == filemode.Dir:
		blob, err = b.replace(entries[i].Hash, path[1:], blob)
	case len(path) > 1 || kindOf(entries[i].Mode) != EntryFile:
		err = fmt.Errorf("%s is %s", path[0], kindOf(entries[i].Mode))
	}
	if err != nil {
		return plumbing.ZeroHash, err
	}
	entries[i].Hash = blob
	return b.store(plumbing.TreeObject, (&object.Tree{Entries: entries}).Encode)
}

// tree returns the entries of a tree of this builder or of the repository.
func (b *builder) tree(h plumbing.Hash) ([]object.TreeEntry, error) {
	if b.storage.HasEncodedObject(h) == nil {
		t, err := object.GetTree(b.storage, h)
		if err != nil {
			return nil, fmt.Errorf("read a tree: %w", err)
		}
		return slices.Clone(t.Entries), nil
	}
	return b.objects.tree(h)
}

func (b *builder) store(t plumbing.ObjectType, encode func(plumbing.EncodedObject) error) (plumbing.Hash, error) {
	o := b.storage.NewEncodedObject()
	o.SetType(t)
	if err := encode(o); err != nil {
		return plumbing.ZeroHash, fmt.Errorf("make a %s: %w", t, err)
	}
	h, err := b.storage.SetEncodedObject(o)
	b.last = o
	if err != nil {
		return h, fmt.Errorf("make a %s: %w", t, err)
	}
	return h, nil
}

func write(o plumbing.EncodedObject, data []byte) error {
	w, err := o.Writer()
	if err != nil {
		return err //nolint:wrapcheck // the caller says of what
	}
	_, err = w.Write(data)
	return errors.Join(err, w.Close())
}

func readAll(o plumbing.EncodedObject) ([]byte, error) {
	r, err := o.Reader()
	if err != nil {
		return nil, fmt.Errorf("read an object: %w", err)
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

// receiver is a connection to a git server for one push.
type receiver interface {
	refs(ctx context.Context) (*packp.AdvRefs, error)
	// update requests changes of refs. With an error, a report says what the server refused.
	update(ctx context.Context, req *packp.ReferenceUpdateRequest) (*packp.ReportStatus, error)
	close() error
}

func (l location) connectToPush(ctx context.Context, w *watchdog) (receiver, error) {
	at, err := l.address()
	if err != nil {
		return nil, err
	}
	if at.url.Scheme == "ssh" {
		return dialSSH(ctx, at, transport.ReceivePackServiceName, w)
	}
	client, auth, err := l.openHTTP(at, w)
	if err != nil {
		return nil, err
	}
	session, err := client.git.NewReceivePackSession(at.endpoint, auth)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &httpReceiver{session, client.pool}, nil
}

type httpReceiver struct {
	session transport.ReceivePackSession
	client  *http.Transport
}

func (s *httpReceiver) refs(ctx context.Context) (*packp.AdvRefs, error) {
	return s.session.AdvertisedReferencesContext(ctx) //nolint:wrapcheck // the caller says of what
}

func (s *httpReceiver) update(ctx context.Context, req *packp.ReferenceUpdateRequest) (*packp.ReportStatus, error) {
	return s.session.ReceivePack(ctx, req) //nolint:wrapcheck // as above
}

func (s *httpReceiver) close() error {
	s.client.CloseIdleConnections()
	return s.session.Close() //nolint:wrapcheck // as above
}

func (s *sshServer) update(_ context.Context, req *packp.ReferenceUpdateRequest) (*packp.ReportStatus, error) {
	if err := req.Encode(s.in); err != nil {
		return nil, err //nolint:wrapcheck // the caller says of what
	}
	if err := s.in.Close(); err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	report := packp.NewReportStatus()
	if err := report.Decode(s.out); err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	return report, report.Error() //nolint:wrapcheck // as above
}
