package gitrepo

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/hash"
)

const (
	// maxDeltas is the longest chain of deltas. git itself makes none over 250. go-git walks the
	// whole chain for each of its objects.
	maxDeltas = 512
	// heldObjects bounds the bases in memory during one walk down a tree of deltas, as a multiple
	// of the largest object.
	heldObjects = 4
)

// packEntry is an object in a pack.
type packEntry struct {
	offset int64
	crc    uint32
	kind   plumbing.ObjectType // of a delta: the kind of its base, once resolved
	base   int32               // of a delta: the index of its base, an earlier entry; -1: none
	child  int32               // a delta with this base; -1: none
	next   int32               // another delta with the same base; -1: none
	below  int32               // the number of deltas below it
	depth  int32               // of the chain above
	hash   plumbing.Hash
}

// packIndexer reads a pack. It knows the content before it inflates an object into memory, and
// holds 64 bytes for each object. go-git's own indexer holds whole objects, including large ones,
// and needs 2.5 KB each for a hundred thousand objects.
type packIndexer struct {
	file     *os.File
	limits   Limits
	scanner  *packfile.Scanner
	entries  []packEntry
	inflated int64
	held     int64
	checksum plumbing.Hash
}

// indexPack reads a pack and computes the hashes of its objects. The error says why the pack is
// refused.
func indexPack(ctx context.Context, f *os.File, limits Limits) (*packIndexer, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err //nolint:wrapcheck // the caller says of what
	}
	p := &packIndexer{file: f, limits: limits, scanner: packfile.NewScanner(f)}
	_, count, err := p.scanner.Header()
	if err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	if int64(count) > int64(limits.Objects) {
		return nil, fmt.Errorf("%w: it has %d objects, and at most %d are received at once", ErrTooMuch, count, limits.Objects)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	const least = 9 // the fewest bytes of an object
	p.entries = make([]packEntry, 0, min(int64(count), info.Size()/least))
	for range count {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := p.scan(); err != nil {
			return nil, err
		}
	}
	if p.checksum, err = p.scanner.Checksum(); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	return p, p.resolveAll(ctx)
}

// resolveAll computes the hashes of all deltas.
func (p *packIndexer) resolveAll(ctx context.Context) error {
	p.count()
	for i := range p.entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		e := &p.entries[i]
		if e.base >= 0 || e.child < 0 {
			continue
		}
		base, err := p.inflate(e)
		if err != nil {
			return err
		}
		if err := p.resolve(int32(i), base); err != nil {
			return err
		}
	}
	return nil
}

// scan reads the next object. The hash of an object that is no delta is computed from the stream.
func (p *packIndexer) scan() error {
	h, err := p.scanner.NextObjectHeader()
	if err != nil {
		return fmt.Errorf("it is damaged: %w", err)
	}
	e := packEntry{offset: h.Offset, kind: h.Type, base: -1, child: -1, next: -1}
	limit := p.limits.ObjectBytes
	switch h.Type {
	case plumbing.CommitObject, plumbing.TagObject:
		limit = min(limit, maxCommitBytes)
	case plumbing.TreeObject:
		limit = min(limit, maxTreeBytes)
	case plumbing.BlobObject:
	case plumbing.OFSDeltaObject:
		if err := p.attach(&e, h.OffsetReference); err != nil {
			return err
		}
	case plumbing.REFDeltaObject:
		return errors.New("it has a delta by the name of its base (REF_DELTA), which the server was not asked for")
	default:
		return fmt.Errorf("it is damaged: an object is of type %d", h.Type)
	}
	if err := p.size(h.Type, h.Length, limit); err != nil {
		return err
	}
	var head deltaHead
	hasher := plumbing.NewHasher(h.Type, h.Length)
	sink := io.Writer(hasher)
	if h.Type.IsDelta() {
		sink = &head
	}
	n, crc, err := p.scanner.NextObject(sink)
	if err != nil {
		return fmt.Errorf("it is damaged: %w", err)
	}
	if n != h.Length {
		return fmt.Errorf("it is damaged: an object has %d bytes instead of %d", n, h.Length)
	}
	e.crc = crc
	if !h.Type.IsDelta() {
		e.hash = hasher.Sum()
	} else if err := p.deltaSize(&head); err != nil {
		return err
	}
	p.entries = append(p.entries, e)
	return nil
}

// attach makes an entry a child of the entry at an offset.
func (p *packIndexer) attach(e *packEntry, offset int64) error {
	i, ok := slices.BinarySearchFunc(p.entries, offset, func(e packEntry, offset int64) int { return cmp.Compare(e.offset, offset) })
	if !ok {
		return errors.New("it is damaged: the base of a delta is not an object")
	}
	base := &p.entries[i]
	e.base, e.next, e.depth = int32(i), base.child, base.depth+1
	base.child = int32(len(p.entries))
	if e.depth > maxDeltas {
		return fmt.Errorf("%w: it has a chain of more than %d deltas", ErrTooMuch, maxDeltas)
	}
	return nil
}

// size checks and counts the inflated size of an object.
func (p *packIndexer) size(t plumbing.ObjectType, size, limit int64) error {
	if size > limit {
		return fmt.Errorf("%w: it has a %s of %d MiB, and at most %d MiB are received: take it out of the history, "+
			"or let the server offer filters (git config uploadpack.allowFilter true)", ErrTooMuch, t, size>>20, limit>>20)
	}
	if p.inflated += size; p.inflated > p.limits.InflatedBytes {
		return fmt.Errorf("%w: its objects have more than %d MiB", ErrTooMuch, p.limits.InflatedBytes>>20)
	}
	return nil
}

// deltaSize checks and counts the sizes of a delta's base and result.
func (p *packIndexer) deltaSize(head *deltaHead) error {
	base, target, err := head.sizes()
	if err != nil {
		return err
	}
	if err := p.size(plumbing.OFSDeltaObject, base, p.limits.ObjectBytes); err != nil {
		return err
	}
	return p.size(plumbing.OFSDeltaObject, target, p.limits.ObjectBytes)
}

// deltaHead keeps the first bytes of a delta, which hold the sizes of its base and its result.
type deltaHead struct{ data []byte }

func (d *deltaHead) Write(p []byte) (int, error) {
	if room := 2*binary.MaxVarintLen64 - len(d.data); room > 0 {
		d.data = append(d.data, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func (d *deltaHead) sizes() (base, target int64, err error) {
	b, n := binary.Uvarint(d.data)
	if n <= 0 || b > 1<<62 {
		return 0, 0, errors.New("it is damaged: a delta has no size")
	}
	t, m := binary.Uvarint(d.data[n:])
	if m <= 0 || t > 1<<62 {
		return 0, 0, errors.New("it is damaged: a delta has no size")
	}
	return int64(b), int64(t), nil
}

// count sets for each entry the number of deltas below it. A base precedes its deltas.
func (p *packIndexer) count() {
	for _, e := range slices.Backward(p.entries) {
		if e.base >= 0 {
			p.entries[e.base].below += e.below + 1
		}
	}
}

// inflate returns the bytes of an entry. For a delta they are the delta itself.
func (p *packIndexer) inflate(e *packEntry) ([]byte, error) {
	h, err := p.scanner.SeekObjectHeader(e.offset)
	if err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	b := bytes.NewBuffer(make([]byte, 0, h.Length)) // scan has checked it against limits.ObjectBytes
	if _, _, err := p.scanner.NextObject(b); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	return b.Bytes(), nil
}

// resolve computes the hashes of the deltas below an entry. The child with the most deltas below it
// comes last, when its base is no longer needed. So the number of bases in memory is at most the
// number of binary digits of the number of entries.
func (p *packIndexer) resolve(at int32, content []byte) error {
	for p.entries[at].child >= 0 {
		largest := p.largest(at)
		if p.held += int64(len(content)); p.held > heldObjects*p.limits.ObjectBytes {
			return fmt.Errorf("%w: its deltas of large objects need more than %d MiB", ErrTooMuch, heldObjects*p.limits.ObjectBytes>>20)
		}
		for i := p.entries[at].child; i >= 0; i = p.entries[i].next {
			if i == largest {
				continue
			}
			made, err := p.apply(at, i, content)
			if err != nil {
				return err
			}
			if err := p.resolve(i, made); err != nil {
				return err
			}
		}
		p.held -= int64(len(content))
		made, err := p.apply(at, largest, content)
		if err != nil {
			return err
		}
		at, content = largest, made
	}
	return nil
}

// largest returns the child of an entry with the most deltas below it.
func (p *packIndexer) largest(at int32) int32 {
	found := p.entries[at].child
	for i := found; i >= 0; i = p.entries[i].next {
		if p.entries[i].below > p.entries[found].below {
			found = i
		}
	}
	return found
}

// apply computes an entry from its base, and its hash.
func (p *packIndexer) apply(base, at int32, content []byte) ([]byte, error) {
	e := &p.entries[at]
	delta, err := p.inflate(e)
	if err != nil {
		return nil, err
	}
	made, err := packfile.PatchDelta(content, delta)
	if err != nil {
		return nil, fmt.Errorf("it is damaged: a delta can't be applied: %w", err)
	}
	e.kind = p.entries[base].kind
	e.hash = plumbing.ComputeHash(e.kind, made)
	return made, nil
}

// writeIndex writes a git pack index, version 2.
func (p *packIndexer) writeIndex(file string) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	slices.SortFunc(p.entries, func(a, b packEntry) int { return bytes.Compare(a.hash[:], b.hash[:]) })
	sum := hash.New(crypto.SHA1)
	buffered := bufio.NewWriter(io.MultiWriter(f, sum))
	put := func(b []byte) { _, _ = buffered.Write(b) } // Flush reports the error
	number := func(n uint32) { put(binary.BigEndian.AppendUint32(nil, n)) }

	put([]byte{0xff, 't', 'O', 'c', 0, 0, 0, 2})
	n := uint32(0)
	for first := range 256 {
		for int(n) < len(p.entries) && int(p.entries[n].hash[0]) <= first {
			n++
		}
		number(n)
	}
	for i := range p.entries {
		put(p.entries[i].hash[:])
	}
	for i := range p.entries {
		number(p.entries[i].crc)
	}
	for i := range p.entries {
		if p.entries[i].offset >= 1<<31 {
			return errors.New("it is larger than 2 GiB")
		}
		number(uint32(p.entries[i].offset))
	}
	put(p.checksum[:])
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	if _, err := f.Write(sum.Sum(nil)); err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	return nil
}
