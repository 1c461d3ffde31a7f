package registry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// maxDeltas is how long a chain of deltas may be. git makes none over 250 by
// itself; go-git walks the whole chain for each of its objects.
const maxDeltas = 512

// checkPack reads through a pack before go-git indexes it, which inflates each
// object into memory. Of an object no more than a buffer is held here, and it is
// left when it turns out larger than it says or may be.
func checkPack(ctx context.Context, f *os.File, limits Limits) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err //nolint:wrapcheck // the caller says of what
	}
	s := packfile.NewScanner(f)
	_, count, err := s.Header()
	if err != nil {
		return err //nolint:wrapcheck // as above
	}
	if int64(count) > int64(limits.Objects) {
		return fmt.Errorf("it has %d objects, and at most %d are received at once", count, limits.Objects)
	}
	c := packChecker{limits: limits, depth: map[int64]int{}}
	for range count {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.next(s); err != nil {
			return err
		}
	}
	if _, err := s.Checksum(); err != nil {
		return fmt.Errorf("it is damaged: %w", err)
	}
	return nil
}

type packChecker struct {
	limits   Limits
	inflated int64
	depth    map[int64]int // of the deltas, by offset

}

func (c *packChecker) next(s *packfile.Scanner) error {
	h, err := s.NextObjectHeader()
	if err != nil {
		return fmt.Errorf("it is damaged: %w", err)
	}
	limit := c.limits.ObjectBytes
	switch h.Type {
	case plumbing.CommitObject, plumbing.TagObject:
		limit = min(limit, maxCommitBytes)
	case plumbing.TreeObject:
		limit = min(limit, maxTreeBytes)
	case plumbing.BlobObject:
	case plumbing.OFSDeltaObject:
		c.depth[h.Offset] = c.depth[h.OffsetReference] + 1
		if c.depth[h.Offset] > maxDeltas {
			return fmt.Errorf("it has a chain of more than %d deltas", maxDeltas)
		}
	case plumbing.REFDeltaObject:
	default:
		return fmt.Errorf("it is damaged: an object is of type %d", h.Type)
	}
	if err := c.size(h.Type, h.Length, limit); err != nil {
		return err
	}
	var head deltaHead
	sink := io.Writer(io.Discard)
	if h.Type.IsDelta() {
		sink = &head
	}
	n, _, err := s.NextObject(sink)
	if err != nil {
		return fmt.Errorf("it is damaged: %w", err)
	}
	if n != h.Length {
		return fmt.Errorf("it is damaged: an object has %d bytes instead of %d", n, h.Length)
	}
	if !h.Type.IsDelta() {
		return nil
	}
	base, target, err := head.sizes()
	if err != nil {
		return err
	}
	return errors.Join(c.size(h.Type, base, c.limits.ObjectBytes), c.size(h.Type, target, c.limits.ObjectBytes))
}

// size counts what an object is when it is inflated.
func (c *packChecker) size(t plumbing.ObjectType, size, limit int64) error {
	if size > limit {
		return fmt.Errorf("it has a %s of %d MiB, and at most %d MiB are received: take it out of the history, "+
			"or let the server offer filters (git config uploadpack.allowFilter true)", t, size>>20, limit>>20)
	}
	if c.inflated += size; c.inflated > c.limits.InflatedBytes {
		return fmt.Errorf("its objects have more than %d MiB", c.limits.InflatedBytes>>20)
	}
	return nil
}

// deltaHead keeps the first bytes of a delta, which say how large what it is
// made from and what it makes are.
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
