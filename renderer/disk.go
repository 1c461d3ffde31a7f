package renderer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
)

// Disk is a [Renderer] that keeps targets in a folder, so that a new process need not repeat the
// renders of the previous one. A file that is damaged, or of another program, is rendered again.
//
// It never stores decrypted values: such requests pass through.
type Disk struct {
	next     Renderer
	root     *os.Root
	program  string
	maxBytes int64

	mu    sync.Mutex
	bytes int64
}

// diskSuffix ends the names of a [Disk]'s files; other files are not touched.
const diskSuffix = ".target"

// OpenDisk keeps about maxBytes of targets in a folder, which it creates if needed. It removes the
// oldest written files first. program distinguishes programs that may render the same inputs
// differently: versions of Keelson.
func OpenDisk(next Renderer, folder, program string, maxBytes int64) (*Disk, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of rendered charts: %w", err)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, fmt.Errorf("open the folder of rendered charts: %w", err)
	}
	d := &Disk{next: next, root: root, program: program, maxBytes: maxBytes}
	files, err := d.list()
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	for _, f := range files {
		d.bytes += f.Size()
	}
	return d, nil
}

var _ Renderer = (*Disk)(nil)

// Close closes the folder.
func (d *Disk) Close() error { return d.root.Close() } //nolint:wrapcheck // says enough

// Render implements [Renderer]. A failure of the disk is never an error of a render.
func (d *Disk) Render(ctx context.Context, r Request) (*Target, error) {
	if r.Version == nil || r.Values.Confidential() {
		return d.next.Render(ctx, r)
	}
	inputs, err := hashInputs(r)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(append([]byte(d.program+"\n"), inputs[:]...))
	name := hex.EncodeToString(sum[:]) + diskSuffix
	if t := d.read(name); t != nil && t.fits(r.Capabilities) {
		return t, nil
	}
	t, err := d.next.Render(ctx, r)
	if err == nil {
		d.write(name, t)
	}
	return t, err
}

// read returns nil if there is no such target.
func (d *Disk) read(name string) *Target {
	data, err := d.root.ReadFile(name)
	if err != nil || len(data) < sha256.Size {
		return nil
	}
	body := data[sha256.Size:]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], data[:sha256.Size]) {
		return nil
	}
	var t Target
	if err := readFrame(bytes.NewReader(body), int64(len(body)), &t); err != nil {
		return nil
	}
	return &t
}

// write keeps a target if possible: a full disk loses the cache, and nothing else.
func (d *Disk) write(name string, t *Target) {
	var body bytes.Buffer
	if err := writeFrame(&body, t); err != nil || int64(body.Len()) > d.maxBytes/2 {
		return
	}
	sum := sha256.Sum256(body.Bytes())
	d.mu.Lock()
	defer d.mu.Unlock()
	// Another process may write the same file: the same name means the same bytes.
	if err := d.root.WriteFile(name+".new", append(sum[:], body.Bytes()...), 0o600); err != nil {
		_ = d.root.Remove(name + ".new")
		return
	}
	if d.root.Rename(name+".new", name) != nil {
		return
	}
	if d.bytes += int64(body.Len() + len(sum)); d.bytes > d.maxBytes {
		d.evict()
	}
}

// evict removes the oldest written files, until three quarters of maxBytes are left.
func (d *Disk) evict() {
	files, err := d.list()
	if err != nil {
		return
	}
	d.bytes = 0
	for _, f := range files {
		d.bytes += f.Size()
	}
	for _, f := range files {
		if d.bytes <= d.maxBytes/4*3 {
			return
		}
		if d.root.Remove(f.Name()) == nil {
			d.bytes -= f.Size()
		}
	}
}

// list returns the kept files, the oldest first.
func (d *Disk) list() ([]fs.FileInfo, error) {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list the folder of rendered charts: %w", err)
	}
	var out []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && strings.HasSuffix(e.Name(), diskSuffix) {
			out = append(out, info)
		}
	}
	slices.SortFunc(out, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	return out, nil
}
