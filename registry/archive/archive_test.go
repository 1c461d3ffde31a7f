package archive_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/registry/archive"
)

// small are limits that a test can pass in no time.
func small() archive.Limits {
	return archive.Limits{Files: 20, Bytes: 4 << 20, FileBytes: 1 << 20}
}

// entry is one entry of an archive that a test makes.
type entry struct {
	tar.Header
	data string
}

func file(name, data string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}, data}
}

func special(kind byte, name, target string) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: kind, Linkname: target, Mode: 0o644}}
}

// comment is the header with which git archive names a commit.
func comment() entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}}
}

// tarred writes entries as they are, and the end of the tar.
func tarred(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func packed(t testing.TB, entries ...entry) []byte {
	t.Helper()
	return gzipped(t, tarred(t, entries...))
}

func chart() []entry {
	return []entry{
		file("web/Chart.yaml", "apiVersion: v2\nname: web\nversion: 1.2.3\n"),
		file("web/values.yaml", "replicas: 2\n"),
	}
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	long := "web/" + strings.Repeat("long/", 20) + "ünïcode-" + strings.Repeat("n", 120) + ".yaml"
	nested := string(packed(t, file("sub/Chart.yaml", "name: sub\n")))
	data := packed(t, append([]entry{
		comment(),
		special(tar.TypeDir, "web/", ""), special(tar.TypeDir, "web/templates/", ""),
	}, append(chart(), file("web/templates/a.yaml", ""), file("web/charts/sub-1.0.0.tgz", nested), file(long, "x"))...)...)
	folder, files, err := archive.Unpack(data, small())
	if err != nil {
		t.Fatal(err)
	}
	want := []archive.File{
		{Name: "Chart.yaml", Data: []byte("apiVersion: v2\nname: web\nversion: 1.2.3\n")},
		{Name: "charts/sub-1.0.0.tgz", Data: []byte(nested)},
		{Name: strings.TrimPrefix(long, "web/"), Data: []byte("x")},
		{Name: "templates/a.yaml", Data: []byte{}},
		{Name: "values.yaml", Data: []byte("replicas: 2\n")},
	}
	if diff := cmp.Diff(want, files); diff != "" || folder != "web" {
		t.Errorf("folder %q (-want +got):\n%s", folder, diff)
	}
}

// TestHostile unpacks archives that an attacker made.
func TestHostile(t *testing.T) {
	t.Parallel()
	with := func(e ...entry) func(testing.TB) []byte {
		return func(t testing.TB) []byte { t.Helper(); return packed(t, append(chart(), e...)...) }
	}
	cut := func(n int) func(testing.TB) []byte {
		return func(t testing.TB) []byte { t.Helper(); d := packed(t, chart()...); return d[:len(d)-n] }
	}
	cases := map[string]struct {
		why  string
		data func(testing.TB) []byte
		want string
	}{
		"NoGzip":     {"A plain tar is no packed chart.", func(t testing.TB) []byte { t.Helper(); return tarred(t, chart()...) }, "not a gzipped tar"},
		"Nothing":    {"Nor is an empty file.", func(testing.TB) []byte { return nil }, "not a gzipped tar"},
		"NoTar":      {"Gzip alone does not make one.", func(t testing.TB) []byte { t.Helper(); return gzipped(t, []byte(strings.Repeat("text", 300))) }, "damaged or cut off"},
		"NoFiles":    {"A chart has files.", func(t testing.TB) []byte { t.Helper(); return packed(t, special(tar.TypeDir, "web/", "")) }, "holds no files"},
		"CutGzip":    {"Half a download.", cut(40), "cut off"},
		"CutSum":     {"The checksum is part of it.", cut(3), "cut off"},
		"CutTar":     {"Well compressed, half tarred.", func(t testing.TB) []byte { t.Helper(); d := tarred(t, chart()...); return gzipped(t, d[:1300]) }, "cut off"},
		"NoEnd":      {"Cut between two files, nothing else would tell.", func(t testing.TB) []byte { t.Helper(); d := tarred(t, chart()...); return gzipped(t, d[:1024]) }, "mark at the end"},
		"WrongSum":   {"A bit that flipped.", func(t testing.TB) []byte { t.Helper(); d := packed(t, chart()...); d[len(d)-6] ^= 1; return d }, "checksum"},
		"Trailing":   {"No bytes may follow the archive.", func(t testing.TB) []byte { t.Helper(); return append(packed(t, chart()...), "x"...) }, "1 bytes follow"},
		"SecondGzip": {"Tools disagree about a second stream.", func(t testing.TB) []byte { t.Helper(); d := packed(t, chart()...); return append(d, d...) }, "follow the end"},
		"SecondTar":  {"And about a second tar.", func(t testing.TB) []byte { t.Helper(); d := tarred(t, chart()...); return gzipped(t, append(d, d...)) }, "data follows the end of the tar"},
		"Bomb":       {"A gigabyte of zeros is a megabyte packed.", zeros("web/zeros", 1<<30, ""), "larger than 1 MiB"},
		"BombTotal":  {"Many small ones.", with(file("web/a", megabyte()), file("web/b", megabyte()), file("web/c", megabyte()), file("web/d", megabyte())), "more than 4 MiB"},
		"BombInPAX":  {"Headers that a reader swallows count, too.", paxBomb(7), "more than 4 MiB"},
		"BombAtEnd": {"So does what pads the end.", func(t testing.TB) []byte {
			t.Helper()
			return gzipped(t, append(tarred(t, chart()...), make([]byte, 8<<20)...))
		}, "more than 4 MiB"},
		"Lies":       {"A header that promises more than comes.", zeros("web/zeros", 1<<20, "x"), "cut off"},
		"Files":      {"Empty files cost memory, too.", many(21, func(i int) entry { return file(fmt.Sprintf("web/%d", i), "") }), "more than 20 files"},
		"Folders":    {"And so do folders.", many(21, func(i int) entry { return special(tar.TypeDir, fmt.Sprintf("web/%d/", i), "") }), "more than 20 files"},
		"Comments":   {"And headers of no file at all.", many(21, func(int) entry { return comment() }), "more than 20 files"},
		"Deep":       {"A folder a byte.", with(file("web/"+strings.Repeat("a/", 40)+"x", "")), "folders deep"},
		"LongName":   {"No file system takes it.", with(file("web/"+strings.Repeat("a", 300), "")), "longer than 255 bytes"},
		"Climbs":     {"Out of the folder.", with(file("web/../../etc/passwd", "x")), "must be relative"},
		"ClimbsTop":  {"Out of it at once.", with(file("../web/x", "x")), "must be relative"},
		"Absolute":   {"From the root.", with(file("/etc/passwd", "x")), "must be relative"},
		"Dot":        {"helm package does not write it, and two names would be one.", with(file("web/./values.yaml", "x")), "must be relative"},
		"Empty":      {"Nor this.", with(file("web//values.yaml", "x")), "must be relative"},
		"Backslash":  {"A separator on some systems.", with(file(`web\..\..\x`, "x")), "backslash"},
		"Control":    {"A terminal would obey it.", with(file("web/\x1b[2J", "x")), "control or invisible character"},
		"PAXName":    {"The long name counts, not the one in the old header.", renamed("web/ok", "web/../../x"), "must be relative"},
		"Git":        {"A hook would run.", with(file("web/.GIT/hooks/post-checkout", "x")), `".GIT" is not a file name`},
		"GitShort":   {"The same on Windows.", with(file("web/git~1/hooks/post-checkout", "x")), `"git~1" is not a file name`},
		"GitHidden":  {"The same on a Mac, which leaves the character out.", with(file("web/.g\u200cit/hooks/post-checkout", "x")), "invisible character"},
		"Symlink":    {"helm makes an empty file of it.", with(special(tar.TypeSymlink, "web/templates/a.yaml", "/etc/passwd")), "a symbolic link"},
		"Hardlink":   {"The same.", with(special(tar.TypeLink, "web/b", "web/values.yaml")), "a hard link"},
		"Device":     {"Reading it might never end.", with(special(tar.TypeChar, "web/zero", "")), "a device"},
		"Pipe":       {"Nor this.", with(special(tar.TypeFifo, "web/pipe", "")), "a device"},
		"Sparse":     {"A terabyte in a header.", sparse(), "a sparse file"},
		"Twice":      {"Readers disagree which one counts.", with(file("web/values.yaml", "replicas: 9\n")), "is in it twice"},
		"FileFolder": {"A file can't be a folder.", with(file("web/values.yaml/x", "x")), "is a file, and a folder"},
		"FolderFile": {"Nor a folder a file.", with(file("web/a/b", "x"), file("web/a", "x")), "is in it twice"},
		"TwoFolders": {"One of them would be hidden.", with(file("other/Chart.yaml", "x")), `more than one folder: "web" and "other"`},
		"NoFolder":   {"Packed from inside of the chart.", func(t testing.TB) []byte { t.Helper(); return packed(t, file("Chart.yaml", "x")) }, "is beside the chart's folder"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := c.data(t)
			_, files, err := archive.Unpack(data, small())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s Unpack: %v; want %q", c.why, err, c.want)
			}
			if files != nil {
				t.Errorf("%d files come with the error", len(files))
			}
		})
	}
}

func megabyte() string { return strings.Repeat("x", 1<<20) }

func many(n int, make func(int) entry) func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		t.Helper()
		var entries []entry
		for i := range n {
			entries = append(entries, make(i))
		}
		return packed(t, entries...)
	}
}

// zeros is an archive whose last header promises so many bytes.
func zeros(name string, size int64, data string) func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		t.Helper()
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		h := file(name, "").Header
		h.Size = size
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
		return gzipped(t, b.Bytes())
	}
}

func pax(name string, records map[string]string) entry {
	e := file(name, "x")
	e.Format, e.PAXRecords = tar.FormatPAX, records
	return e
}

// paxBomb has headers of nearly a megabyte each, which a reader takes as one.
func paxBomb(n int) func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		t.Helper()
		var b bytes.Buffer
		for range n {
			one := tarred(t, pax("web/x", map[string]string{"VENDOR.x": strings.Repeat("x", 1<<20-4096)}))
			header, _, _ := bytes.Cut(one, []byte("web/x\x00")) // the file itself is left out
			b.Write(header)
		}
		b.Write(tarred(t, chart()...))
		return gzipped(t, b.Bytes())
	}
}

// renamed has a PAX header with another name than the old one.
func renamed(old, name string) func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		t.Helper()
		d := tarred(t, append(chart(), pax(old, map[string]string{"PATH": name}))...)
		return gzipped(t, bytes.ReplaceAll(d, []byte(" PATH="), []byte(" path=")))
	}
}

// sparse is a file of a terabyte that GNU tar would make of nothing.
func sparse() func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		t.Helper()
		// The writer refuses these records: they are put in place of others as long.
		d := tarred(t, pax("web/x", map[string]string{
			"VEN.sparse.major": "0", "VEN.sparse.minor": "1", "VEN.sparse.numblocks": "1", "VEN.sparse.map": "0,1", "VEN.sparse.size": "1099511627776",
		}))
		d = bytes.ReplaceAll(d, []byte("VEN.sparse."), []byte("GNU.sparse."))
		return gzipped(t, d)
	}
}

// TestBombMemory holds that a bomb costs what the limits allow, not what it says.
func TestBombMemory(t *testing.T) { //nolint:paralleltest // it measures memory
	data := zeros("web/zeros", 5<<30, megabyte())(t)
	bomb := gzipped(t, append(tarred(t, chart()...), make([]byte, 64<<20)...))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		for _, d := range [][]byte{data, bomb} {
			if _, _, err := archive.Unpack(d, small()); err == nil {
				t.Fatal("no error")
			}
		}
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 20*8<<20 {
		t.Errorf("20 bombs took %d MiB of memory", got>>20)
	}
}

// TestSum compares with the command that the documentation gives.
func TestSum(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("sha256sum"); err != nil {
		t.Skip("no sha256sum here")
	}
	files := []archive.File{{Name: "Chart.yaml", Data: []byte("a\n")}, {Name: "a b/ü.yaml", Data: nil}, {Name: "a.yaml", Data: []byte("x")}}
	dir := t.TempDir()
	for _, f := range files {
		at := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c",
		`find . -type f | cut -c3- | LC_ALL=C sort | tr '\n' '\0' | xargs -0 sha256sum | sha256sum`)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := "sha256:" + strings.Fields(string(out))[0]; archive.Sum(files) != want {
		t.Errorf("Sum = %s, sha256sum says %s", archive.Sum(files), want)
	}
}

// FuzzUnpack holds that whatever is unpacked is within the limits, has names that
// stay in their folder, and packs to what unpacks to the same.
func FuzzUnpack(f *testing.F) {
	f.Add(packed(f, chart()...))
	f.Add(tarred(f, chart()...))
	f.Add(tarred(f, pax("web/x", map[string]string{"a.b": "c"}), special(tar.TypeSymlink, "web/z", "x")))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, files, err := archive.Unpack(data, small())
		if err != nil { // nearly all of them: no checksum fits, so tars are tried without one
			folder, inside, err := archive.Unpack(gzipped(t, data), small())
			if err != nil {
				if inside != nil || folder != "" {
					t.Error("something comes with the error")
				}
				return
			}
			files = inside
		}
		dir, total := t.TempDir(), 0
		var again []entry
		for _, one := range files {
			if !filepath.IsLocal(one.Name) || strings.HasPrefix(filepath.Join(dir, one.Name)+"/", filepath.Join(dir, ".git")+"/") {
				t.Errorf("%q leads out of the chart", one.Name)
			}
			total += len(one.Data)
			again = append(again, file("again/"+one.Name, string(one.Data)))
		}
		if l := small(); len(files) > l.Files || int64(total) > l.Bytes {
			t.Errorf("%d files of %d bytes pass the limits", len(files), total)
		}
		_, second, err := archive.Unpack(packed(t, again...), small())
		if diff := cmp.Diff(files, second); diff != "" || err != nil {
			t.Errorf("packed again: %v\n%s", err, diff)
		}
	})
}
