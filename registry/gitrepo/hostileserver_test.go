//go:build !race

package gitrepo_test

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// packServer is a git server with one branch, which answers with whatever pack
// it is given.
func packServer(t *testing.T, head plumbing.Hash, pack func(w io.Writer)) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/info/refs") {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			line := fmt.Sprintf("%s HEAD\x00symref=HEAD:refs/heads/main ofs-delta agent=x\n", head)
			second := fmt.Sprintf("%s refs/heads/main\n", head)
			fmt.Fprintf(w, "001e# service=git-upload-pack\n0000%04x%s%04x%s0000", len(line)+4, line, len(second)+4, second)
			return
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		_, _ = io.WriteString(w, "0008NAK\n")
		pack(w)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/fleet.git"
}

// packed builds a pack.
type packed struct{ bytes.Buffer }

func newPack(count uint32) *packed {
	p := &packed{}
	p.WriteString("PACK")
	p.Write(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 2), count))
	return p
}

// object adds one, which says that it has size bytes.
func (p *packed) object(kind byte, size uint64, extra []byte, content io.Reader) int {
	at := p.Len()
	first := kind<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		p.WriteByte(first | 0x80)
		first = byte(size & 0x7f)
	}
	p.WriteByte(first)
	p.Write(extra)
	z, err := zlib.NewWriterLevel(p, zlib.BestSpeed)
	if err == nil {
		_, err = io.Copy(z, content)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(err)
	}
	return at
}

// done adds the checksum.
func (p *packed) done() []byte {
	sum := sha1.Sum(p.Bytes()) //nolint:gosec // git's
	return append(p.Bytes(), sum[:]...)
}

// ofs is how an OFS_DELTA names what it is made from.
func ofs(distance int) []byte {
	out := []byte{byte(distance & 0x7f)}
	for distance >>= 7; distance > 0; distance >>= 7 {
		distance--
		out = append([]byte{byte(distance&0x7f) | 0x80}, out...)
	}
	return out
}

// delta says how large what it is made from and what it makes are.
func delta(base, target uint64, rest ...byte) []byte {
	return append(binary.AppendUvarint(binary.AppendUvarint(nil, base), target), rest...)
}

// The types of objects in a pack.
const (
	packCommit, packTree, packBlob, packTag, packOFS, packREF = 1, 2, 3, 4, 6, 7
)

// TestHostileServer fetches from servers that send packs which were made to
// hurt. What the clone had before stays.
func TestHostileServer(t *testing.T) {
	head := plumbing.NewHash("1234567890123456789012345678901234567890")
	one := func(kind byte, size uint64, content io.Reader) func() []byte {
		return func() []byte {
			p := newPack(1)
			p.object(kind, size, nil, content)
			return p.done()
		}
	}
	good := func() []byte {
		p := newPack(1)
		p.object(packBlob, 5, nil, strings.NewReader("hello"))
		return p.done()
	}
	cases := map[string]struct {
		why  string
		pack func() []byte
		want string
	}{
		"Blob2GB":      {"A zip bomb that says so: 2 GB of nothing in 2 MB.", one(packBlob, 2<<30, io.LimitReader(gittest.Endless(0), 64<<20)), "it has a blob of 2048 MiB, and at most 32 MiB are received"},
		"BlobLies":     {"It says ten bytes, and inflates to 256 MiB.", one(packBlob, 10, io.LimitReader(gittest.Endless(0), 256<<20)), "it is damaged"},
		"BlobShort":    {"It says more than it has.", one(packBlob, 1000, strings.NewReader("x")), "it is damaged: an object has 1 bytes instead of 1000"},
		"Exabytes":     {"A size of 64 bits.", one(packBlob, 1<<50, strings.NewReader("x")), "and at most 32 MiB are received"},
		"Tree":         {"A tree of a million names.", one(packTree, 33<<20>>1, io.LimitReader(gittest.Endless(0), 33<<20>>1)), "it has a tree of 16 MiB, and at most 4 MiB"},
		"Commit":       {"A commit of 2 MiB.", one(packCommit, 2<<20, io.LimitReader(gittest.Endless(0), 2<<20)), "it has a commit of 2 MiB, and at most 1 MiB"},
		"Tag":          {"A tag of 2 MiB.", one(packTag, 2<<20, io.LimitReader(gittest.Endless(0), 2<<20)), "it has a tag of 2 MiB, and at most 1 MiB"},
		"Type":         {"A type that git does not have.", one(5, 1, strings.NewReader("x")), "it is damaged: an object is of type 5"},
		"Count":        {"Four billion objects, it says.", func() []byte { return newPack(1<<32 - 1).done() }, "it has 4294967295 objects, and at most 500000"},
		"CountLies":    {"More objects than there are.", func() []byte { return newPack(1000).done() }, "it is damaged"},
		"Empty":        {"Nothing.", func() []byte { return nil }, ""},
		"Garbage":      {"No pack.", func() []byte { return bytes.Repeat([]byte("garbage"), 1000) }, "refuse the pack"},
		"Version":      {"A version that is not known.", func() []byte { return []byte("PACK\x00\x00\x00\x09\x00\x00\x00\x00") }, "refuse the pack"},
		"Truncated":    {"The connection was cut.", func() []byte { return good()[:15] }, "it is damaged"},
		"NoChecksum":   {"Cut in front of the checksum.", func() []byte { p := good(); return p[:len(p)-20] }, "it is damaged"},
		"Checksum":     {"A bit was flipped on the way.", func() []byte { p := good(); p[len(p)-1] ^= 1; return p }, "it is damaged: malformed PACK file: checksum mismatch"},
		"NotWhatAsked": {"A good pack without the branch.", good, "the server did not send 1234567890123456789012345678901234567890, which it offers"},
		"DeltaBomb": {"A delta of 20 bytes that makes 4 GB.", func() []byte {
			p := newPack(2)
			base := p.object(packBlob, 5, nil, strings.NewReader("hello"))
			d := delta(5, 4<<30, 0x90, 5)
			p.object(packOFS, uint64(len(d)), ofs(p.Len()-base), bytes.NewReader(d))
			return p.done()
		}, "it has a ofs-delta of 4096 MiB"},
		"DeltaLies": {"A delta that makes more than it says.", func() []byte {
			p := newPack(2)
			base := p.object(packBlob, 5, nil, strings.NewReader("hello"))
			d := delta(5, 3, 0x90, 5)
			p.object(packOFS, uint64(len(d)), ofs(p.Len()-base), bytes.NewReader(d))
			return p.done()
		}, "it is damaged: a delta can't be applied"},
		"DeltaOutside": {"A delta of what stands in front of the pack.", func() []byte {
			p := newPack(1)
			d := delta(5, 5, 0x90, 5)
			p.object(packOFS, uint64(len(d)), ofs(5000), bytes.NewReader(d))
			return p.done()
		}, "it is damaged"},
		"DeltaBetween": {"A delta of the middle of something.", func() []byte {
			p := newPack(2)
			base := p.object(packBlob, 5, nil, strings.NewReader("hello"))
			d := delta(5, 5, 0x90, 5)
			p.object(packOFS, uint64(len(d)), ofs(p.Len()-base-1), bytes.NewReader(d))
			return p.done()
		}, "it is damaged: the base of a delta is not an object"},
		"DeltaChain": {"A delta of a delta of a delta …", func() []byte {
			p := newPack(2001)
			last := p.object(packBlob, 5, nil, strings.NewReader("hello"))
			for range 2000 {
				d := delta(5, 5, 0x90, 5)
				last = p.object(packOFS, uint64(len(d)), ofs(p.Len()-last), bytes.NewReader(d))
			}
			return p.done()
		}, "a chain of more than 512 deltas"},
		"ManyDeltas": {"A thousand deltas that make 30 MiB each.", func() []byte {
			const n = 1000
			p := newPack(n + 1)
			base := p.object(packBlob, 30<<20, nil, io.LimitReader(gittest.Endless(0), 30<<20))
			d := delta(30<<20, 30<<20, 0x80|0x70, 0, 0, 0xff)
			for range n {
				p.object(packOFS, uint64(len(d)), ofs(p.Len()-base), bytes.NewReader(d))
			}
			return p.done()
		}, "its objects have more than 8192 MiB"},
		"ThinPack": {"A delta of an object that is not in there.", func() []byte {
			p := newPack(1)
			d := delta(5, 5, 0x90, 5)
			p.object(packREF, uint64(len(d)), head[:], bytes.NewReader(d))
			return p.done()
		}, "it has a delta by the name of its base (REF_DELTA)"},
		"DeltaWithoutSize": {"A delta that says nothing.", func() []byte {
			p := newPack(2)
			base := p.object(packBlob, 5, nil, strings.NewReader("hello"))
			p.object(packOFS, 0, ofs(p.Len()-base), strings.NewReader(""))
			return p.done()
		}, "it is damaged: a delta has no size"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pack := c.pack()
			url := packServer(t, head, func(w io.Writer) { _, _ = w.Write(pack) })
			cache := t.TempDir()
			gittest.Bounded(t, func() {
				_, err := gitrepo.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: cache})
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), url) {
					t.Errorf("%s: %v; want %q", c.why, err, c.want)
				}
			})
			left, err := filepath.Glob(filepath.Join(cache, "*", "clone.git", "incoming-*"))
			if err != nil || len(left) > 0 {
				t.Errorf("it left %v, %v", left, err)
			}
		})
	}
	t.Run("Endless", func(t *testing.T) {
		url := packServer(t, head, func(w io.Writer) {
			_, _ = w.Write([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01"))
			_, _ = io.Copy(w, gittest.Endless(0))
		})
		gittest.Bounded(t, func() {
			_, err := gitrepo.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: t.TempDir(), Limits: gitrepo.Limits{PackBytes: 64 << 20}})
			if err == nil || !strings.Contains(err.Error(), "the pack is larger than 64 MiB") {
				t.Errorf("a pack without end: %v", err)
			}
		})
	})
}

// A pack that takes longer to read than a server may be silent for is our own
// work, and not the server's silence.
func TestLargePack(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	const size, silence = 30 << 20, 500 * time.Millisecond
	head := plumbing.NewHash("1234567890123456789012345678901234567890")
	read := func(objects int) time.Duration {
		p := newPack(uint32(objects)) //nolint:gosec // a few
		for i := range objects {
			p.object(packBlob, size, nil, io.LimitReader(gittest.Endless(i), size))
		}
		pack := p.done()
		url := packServer(t, head, func(w io.Writer) { _, _ = w.Write(pack) })
		start := time.Now()
		_, err := gitrepo.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: t.TempDir(), Limits: gitrepo.Limits{Silence: silence}})
		if err == nil || !strings.Contains(err.Error(), "the server did not send "+head.String()) {
			t.Errorf("after %s: %v; want all of the pack to be read", time.Since(start), err)
		}
		return time.Since(start)
	}
	// A fast machine reads so few objects before the silence would end: the next pack has more.
	for objects := 24; !t.Failed() && read(objects) < 2*silence; objects *= 2 {
		t.Logf("%d objects are read too fast to show anything", objects)
	}
}
