// Package archive unpacks charts that helm package packed: a gzipped tar with one folder in it.
//
// Guarantee: the result is plain files with clean relative names, each name once. Anything else in
// an archive is an error, and an error returns no files. Nothing is written to disk.
//
// Limits and cost: archives are untrusted input. They are read as a stream, and reading stops at
// the first exceeded limit. An archive needs at most twice the memory that its [Limits] allow for
// files, however large it would unpack.
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

// Limits bound what an archive unpacks to.
type Limits struct {
	Files     int   // entries, folders included
	Bytes     int64 // all files together
	FileBytes int64 // one file
}

// maxDepth is the deepest nesting of folders. Real charts, with subcharts in subcharts, stay below
// ten.
const maxDepth = 32

// Unpack returns the files of the one folder in an archive, in name order, and the folder's name.
// Archives inside it (charts/NAME-1.2.3.tgz) stay packed.
//
// Unpack is stricter than helm. It refuses links and devices, which helm reads as empty files. It
// refuses a second folder, absolute paths, paths with "..", repeated names and backslashes.
func Unpack(data []byte, limits Limits) (folder string, files []File, err error) {
	packed := bytes.NewReader(data)
	unzipped, err := gzip.NewReader(packed)
	if err != nil {
		return "", nil, fmt.Errorf("not a gzipped tar as helm package makes it: %w", err)
	}
	unzipped.Multistream(false) // so that bytes after the end are noticed
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

// Sum returns the SHA-256 of the list of files with their SHA-256, in the form sha256:HEX. In a
// chart's folder, this command prints the same sum:
//
//	find . -type f | cut -c3- | LC_ALL=C sort | tr '\n' '\0' | xargs -0 sha256sum | sha256sum
//
// The files must be in name order.
func Sum(files []File) string {
	all := sha256.New()
	for _, f := range files {
		fmt.Fprintf(all, "%x  %s\n", sha256.Sum256(f.Data), f.Name)
	}
	return "sha256:" + hex.EncodeToString(all.Sum(nil))
}

// Digest returns the SHA-256 of an archive in the form sha256:HEX.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// stream returns the longest tar within the limits: the files, and for each entry its header, its
// padding and a PAX header with a long name.
func (l Limits) stream() int64 {
	const block, slack = 512, 1 << 20
	return l.Bytes + int64(l.Files)*8*block + slack
}

// stream is a reader that fails at its limit, and records whether its end was reached.
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
			return n, nil // the next Read reports the end
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
		if err := u.readEntry(h); err != nil {
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

// readEntry reads one entry.
func (u *unpacker) readEntry(h *tar.Header) error {
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

// unusual names the kind of an entry that is neither a file nor a folder; "" otherwise.
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

// name checks an entry's name and returns the part below the chart's folder. It returns "" for that
// folder itself.
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
		return "", fmt.Errorf("%q is beside the chart's folder, not in it", full)
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

// CheckEntry returns what is wrong with the base name of a file or folder; "" for a valid name. It
// is for names in git, and in archives that may be unpacked into git.
func CheckEntry(name string) string {
	switch {
	case !utf8.ValidString(name):
		return fmt.Sprintf("file name %q is not UTF-8", name)
	case strings.ContainsAny(name, `/\`) || strings.ContainsFunc(name, func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf) }):
		return fmt.Sprintf("file name %q holds a slash, backslash, control or invisible character", name)
	}
	// Windows ignores dots and spaces at the end, and git~1 is a short name of .git there.
	switch strings.ToLower(strings.TrimRight(name, ". ")) {
	case "", ".git", "git~1":
		return fmt.Sprintf("%q is not a file name", name)
	}
	return ""
}

// claim records a name. It refuses a repeated file, and a name of both a file and a folder.
func (u *unpacker) claim(name string, isFolder bool) error {
	if was, ok := u.kinds[name]; ok && (!was || !isFolder) {
		return fmt.Errorf("%q is in it twice", name)
	}
	u.kinds[name] = isFolder
	for i := strings.LastIndex(name, "/"); i > 0; i = strings.LastIndex(name[:i], "/") {
		was, ok := u.kinds[name[:i]]
		if ok && !was {
			return fmt.Errorf("%q is a file, and a folder of %q", name[:i], name)
		}
		if ok {
			break // its parents are recorded, too
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
	// The size in the header is not trusted: ReadAll allocates only for data that arrives.
	data, err := io.ReadAll(u.tar)
	if err != nil {
		return fmt.Errorf("%q is damaged or cut off: %w", name, err)
	}
	u.files = append(u.files, File{Name: name, Data: data})
	return nil
}

// padding reads from the end of the tar to the end of the stream, where gzip compares its checksum.
// Only zeros may follow, because tar pads its blocks.
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
