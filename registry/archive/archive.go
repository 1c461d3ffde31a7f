// Package archive unpacks charts that are packed as helm package packs them: a
// gzipped tar with one folder in it.
//
// Guarantee: what comes back are plain files with clean relative names, each
// once; anything else in an archive is an error, and with an error nothing comes
// back. Nothing is written anywhere.
//
// Limits and cost: archives are outside input. They are read as a stream and
// given up as soon as a limit is passed, so that one needs at most twice the
// memory that its [Limits] allow for files, however far it would unfold.
package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// File is one file of a chart.
type File struct {
	// Name is relative to the chart's folder and uses slashes.
	Name string
	Data []byte
}

// Limits of what an archive unfolds to.
type Limits struct {
	Files     int   // entries, folders included
	Bytes     int64 // all files together
	FileBytes int64 // one file
}

// maxDepth of folders; real charts, with subcharts in subcharts, stay below ten.
const maxDepth = 32

// Unpack returns the files of the one folder in an archive, in name order, and
// the folder's name. Archives inside of it (charts/NAME-1.2.3.tgz) stay packed.
//
// It is stricter than helm: it refuses links and devices, where helm would take
// an empty file for them, and names that a second folder, an absolute or
// climbing path, a repetition or a backslash make doubtful.
func Unpack(data []byte, limits Limits) (folder string, files []File, err error) {
	packed := bytes.NewReader(data)
	unzipped, err := gzip.NewReader(packed)
	if err != nil {
		return "", nil, fmt.Errorf("not a gzipped tar as helm package makes it: %w", err)
	}
	unzipped.Multistream(false) // so that what follows can be seen
	u := unpacker{limits: limits, kinds: map[string]bool{}}
	u.stream = stream{in: unzipped, left: limits.stream()}
	u.tar = tar.NewReader(&u.stream)
	if err := u.run(); err != nil {
		if u.stream.over {
			err = fmt.Errorf("it unpacks to more than %d MiB", limits.Bytes>>20)
		}
		return "", nil, err
	}
	if packed.Len() > 0 {
		return "", nil, fmt.Errorf("%d bytes follow the end of the archive", packed.Len())
	}
	slices.SortFunc(u.files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return u.folder, u.files, nil
}

// Sum is the SHA-256 of the list of files and their SHA-256, as
//
//	find . -type f | cut -c3- | LC_ALL=C sort | tr '\n' '\0' | xargs -0 sha256sum | sha256sum
//
// prints it in a chart's folder, in the form sha256:HEX. The files must be in
// name order.
func Sum(files []File) string {
	all := sha256.New()
	for _, f := range files {
		fmt.Fprintf(all, "%x  %s\n", sha256.Sum256(f.Data), f.Name)
	}
	return "sha256:" + hex.EncodeToString(all.Sum(nil))
}

// Digest is the SHA-256 of an archive in the form sha256:HEX.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// stream is how long a tar within the limits can be: the files, and for each
// entry its header, its padding and a PAX header with a long name.
func (l Limits) stream() int64 {
	const block, slack = 512, 1 << 20
	return l.Bytes + int64(l.Files)*8*block + slack
}

// stream is a reader that ends with an error at its limit, and knows whether its end was
// reached.
type stream struct {
	in    io.Reader
	left  int64
	over  bool // the limit was passed
	ended bool
}

var errTooLong = errors.New("too long")

func (s *stream) Read(p []byte) (int, error) {
	if s.left <= 0 {
		s.over = true
		return 0, errTooLong
	}
	if int64(len(p)) > s.left {
		p = p[:s.left]
	}
	n, err := s.in.Read(p)
	s.left -= int64(n)
	if errors.Is(err, io.EOF) {
		if n > 0 {
			return n, nil // its end is told when somebody asks for more
		}
		s.ended = true
	}
	return n, err //nolint:wrapcheck // it is a reader
}

type unpacker struct {
	limits Limits
	stream stream
	tar    *tar.Reader

	folder  string
	files   []File
	kinds   map[string]bool // by name: whether it is a folder
	entries int
	bytes   int64
}

func (u *unpacker) run() error {
	for {
		h, err := u.tar.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("it is damaged or cut off: %w", err)
		}
		if err := u.take(h); err != nil {
			return err
		}
	}
	if u.stream.ended {
		return errors.New("it is cut off: the mark at the end of a tar is missing")
	}
	if err := u.padding(); err != nil {
		return err
	}
	if len(u.files) == 0 {
		return errors.New("it holds no files")
	}
	return nil
}

// take reads one entry.
func (u *unpacker) take(h *tar.Header) error {
	u.entries++
	if u.entries > u.limits.Files {
		return fmt.Errorf("it holds more than %d files", u.limits.Files)
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil // a comment, as git archive writes it
	}
	if wrong := unusual(h); wrong != "" {
		return fmt.Errorf("%q is %s; a chart holds plain files only", h.Name, wrong)
	}
	isFolder := h.Typeflag == tar.TypeDir
	name, err := u.name(h.Name, isFolder)
	if err != nil || name == "" {
		return err
	}
	if err := u.claim(name, isFolder); err != nil || isFolder {
		return err
	}
	return u.read(name, h.Size)
}

// unusual says what an entry is, other than a file or a folder.
func unusual(h *tar.Header) string {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir:
	case tar.TypeSymlink:
		return "a symbolic link"
	case tar.TypeLink:
		return "a hard link"
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return "a device"
	default:
		return fmt.Sprintf("an entry of type %q", h.Typeflag)
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return "a sparse file"
		}
	}
	return ""
}

// name checks an entry's name, and returns what follows the chart's folder; ""
// for that folder itself.
func (u *unpacker) name(full string, isFolder bool) (string, error) {
	clean := full
	if isFolder {
		clean = strings.TrimSuffix(full, "/")
	}
	if wrong := checkName(clean); wrong != "" {
		return "", fmt.Errorf("%q is no name for a file of a chart: %s", full, wrong)
	}
	folder, name, inside := strings.Cut(clean, "/")
	if !inside && !isFolder {
		return "", fmt.Errorf("%q stands beside the chart's folder, not in it", full)
	}
	if u.folder == "" {
		u.folder = folder
	}
	if folder != u.folder {
		return "", fmt.Errorf("it holds more than one folder: %q and %q", u.folder, folder)
	}
	return name, nil
}

func checkName(name string) string {
	switch {
	case !fs.ValidPath(name) || name == ".":
		return "it must be relative, without empty parts, \".\" and \"..\""
	case len(name) > 1024:
		return "it is longer than 1024 bytes"
	case strings.Count(name, "/") > maxDepth:
		return fmt.Sprintf("it is more than %d folders deep", maxDepth)
	}
	for part := range strings.SplitSeq(name, "/") {
		if wrong := CheckEntry(part); wrong != "" {
			return wrong
		}
		if len(part) > 255 {
			return "a part of it is longer than 255 bytes"
		}
	}
	return ""
}

// CheckEntry says what is wrong with a file's or folder's own name, in git or in
// an archive that may be unpacked into git; "" is nothing.
func CheckEntry(name string) string {
	switch {
	case !utf8.ValidString(name):
		return fmt.Sprintf("file name %q is not UTF-8", name)
	case strings.ContainsAny(name, `/\`) || strings.ContainsFunc(name, func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf) }):
		return fmt.Sprintf("file name %q holds a slash, backslash, control or invisible character", name)
	}
	// Windows leaves out dots and spaces at the end, and calls .git git~1, too.
	switch strings.ToLower(strings.TrimRight(name, ". ")) {
	case "", ".git", "git~1":
		return fmt.Sprintf("%q is not a file name", name)
	}
	return ""
}

// claim holds that a name stands once, and for one kind of thing.
func (u *unpacker) claim(name string, isFolder bool) error {
	if was, ok := u.kinds[name]; ok && (!was || !isFolder) {
		return fmt.Errorf("%q stands in it twice", name)
	}
	u.kinds[name] = isFolder
	for i := strings.LastIndex(name, "/"); i > 0; i = strings.LastIndex(name[:i], "/") {
		was, ok := u.kinds[name[:i]]
		if ok && !was {
			return fmt.Errorf("%q is a file, and a folder of %q", name[:i], name)
		}
		if ok {
			break // those above are known, too
		}
		u.kinds[name[:i]] = true
	}
	return nil
}

func (u *unpacker) read(name string, size int64) error {
	if size > u.limits.FileBytes {
		return fmt.Errorf("%q is larger than %d MiB", name, u.limits.FileBytes>>20)
	}
	if u.bytes += size; u.bytes > u.limits.Bytes {
		return fmt.Errorf("it unpacks to more than %d MiB", u.limits.Bytes>>20)
	}
	// What the header promises is not asked for before it comes.
	data, err := io.ReadAll(u.tar)
	if err != nil {
		return fmt.Errorf("%q is damaged or cut off: %w", name, err)
	}
	u.files = append(u.files, File{Name: name, Data: data})
	return nil
}

// padding reads what follows the tar's end, up to that of the stream, whose
// checksum is compared there. Only zeros may follow, as tar pads its blocks.
func (u *unpacker) padding() error {
	block := make([]byte, 4096)
	for {
		n, err := u.stream.Read(block)
		if slices.ContainsFunc(block[:n], func(b byte) bool { return b != 0 }) {
			return errors.New("data follows the end of the tar in it")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("it is damaged or cut off: %w", err)
		}
	}
}
