//go:build !race

package registry_test

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"

	"github.com/keelson-io/keelson/registry"
)

// treeEntry is one entry of a tree object, whatever git would say to it.
type treeEntry struct {
	mode, name string
	hash       plumbing.Hash
}

func (g *gitRepo) rawTree(entries ...treeEntry) plumbing.Hash {
	g.t.Helper()
	var b bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&b, "%s %s\x00%s", e.mode, e.name, e.hash[:])
	}
	return g.raw(plumbing.TreeObject, b.Bytes())
}

// graft puts a tree under a path.
func (g *gitRepo) graft(path string, tree plumbing.Hash) { g.files[path] = gitFile{filemode.Dir, tree} }

// many is a tree of n entries.
func (g *gitRepo) many(n int, mode string, target plumbing.Hash) plumbing.Hash {
	g.t.Helper()
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "%s n%07d\x00%s", mode, i, target[:])
	}
	return g.raw(plumbing.TreeObject, b.Bytes())
}

// loose writes a file where git keeps an object, with what it says it has and
// with what it has.
func (g *gitRepo) loose(h plumbing.Hash, header string, content io.Reader) {
	g.t.Helper()
	file := filepath.Join(g.path, "objects", h.String()[:2], h.String()[2:])
	fatal(g.t, os.MkdirAll(filepath.Dir(file), 0o755))
	_ = os.Remove(file) // git's are read-only
	f, err := os.Create(file)
	fatal(g.t, err)
	z, err := zlib.NewWriterLevel(f, zlib.BestSpeed)
	fatal(g.t, err)
	_, err = io.WriteString(z, header)
	fatal(g.t, err)
	_, err = io.Copy(z, content)
	fatal(g.t, err)
	fatal(g.t, z.Close())
	fatal(g.t, f.Close())
}

// endless is one byte, without end.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

const evil = "components/evil/template/evil"

// evilFleet is the small fleet, and a component evil that cluster a runs.
func evilFleet(t testing.TB) *gitRepo {
	g := newGitRepo(t)
	g.writeFleet()
	g.write("components/evil/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: evil\n")
	g.write("components/evil/template/Chart.yaml", "apiVersion: v2\nname: evil\nversion: 1.0.0\n")
	g.write("clusters/a/evil.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\n")
	return g
}

// TestHostileRepository reads repositories that an attacker made. The problem is reported,
// costs little, and blocks no more than necessary: a component, a cluster, or new commits of
// the whole repository.
func TestHostileRepository(t *testing.T) {
	zero := plumbing.NewHash("1234567890123456789012345678901234567890")
	const (
		delivery = iota // that of evil, on cluster a
		cluster         // a
		fleet           // Load fails
		nothing
	)
	header := "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\n"
	file := func(content string) func(*gitRepo) {
		return func(g *gitRepo) { g.write("clusters/a/evil.yaml", content) }
	}
	entry := func(mode, name string) func(*gitRepo) {
		return func(g *gitRepo) {
			g.graft(evil, g.rawTree(treeEntry{mode, name, g.blob([]byte("x"))}))
		}
	}
	cases := map[string]struct {
		why    string
		blocks int
		change func(g *gitRepo)
		after  func(g *gitRepo) // the commit and its tag
		want   string
	}{
		// Sizes.
		"BlobOf2GB": {"Its size is read, and not its bytes.", delivery, func(g *gitRepo) {
			g.files[evil] = gitFile{filemode.Regular, zero}
			g.loose(zero, "blob 2147483648\x00", io.LimitReader(endless(0), 1<<20))
		}, nil, "components/evil/template/evil@evil/v1.0.0: the file is larger than 5 MiB"},
		"BlobLies": {"It says ten bytes, and inflates to 128 MiB.", delivery, func(g *gitRepo) {
			g.files[evil] = gitFile{filemode.Regular, zero}
			g.loose(zero, "blob 10\x00", io.LimitReader(endless(0), 128<<20))
		}, nil, "components/evil/template/evil@evil/v1.0.0: can't be read: read object 1234567890123456789012345678901234567890: it is said to have 10 bytes"},
		"HeaderWithoutEnd": {"An object whose header is 128 MiB.", delivery, func(g *gitRepo) {
			g.files[evil] = gitFile{filemode.Regular, zero}
			g.loose(zero, "blob ", io.LimitReader(endless('1'), 128<<20))
		}, nil, "its header is too long"},
		"MillionFiles": {"A million names in one folder.", delivery, func(g *gitRepo) {
			g.graft(evil, g.many(1_000_000, "100644", g.blob([]byte("x"))))
		}, nil, "components/evil/template/evil@evil/v1.0.0: can't be read: components/evil/template/evil: tree"},
		"ManyFiles": {"More than a component has, each small.", delivery, func(g *gitRepo) {
			g.graft(evil, g.many(20_000, "100644", g.blob([]byte("x"))))
		}, nil, "components/evil@evil/v1.0.0: the component holds more than 10000 files"},
		"ManyBytes": {"Many files that are just small enough.", delivery, func(g *gitRepo) {
			g.graft(evil, g.many(1000, "100644", g.blob(make([]byte, 5<<20))))
		}, nil, "components/evil@evil/v1.0.0: the component is larger than 50 MiB"},
		"FolderBomb": {"Ten levels of a hundred names of the same tree: 10^20 folders in 30 KB.", delivery, func(g *gitRepo) {
			tree := g.rawTree()
			for range 10 {
				tree = g.many(100, "40000", tree)
			}
			g.graft(evil, tree)
		}, nil, "components/evil@evil/v1.0.0: the component holds more than 10000 folders"},
		"FileBomb": {"The same with files at the bottom.", delivery, func(g *gitRepo) {
			tree := g.many(100, "100644", g.blob([]byte("x")))
			for range 10 {
				tree = g.many(100, "40000", tree)
			}
			g.graft(evil, tree)
		}, nil, "components/evil@evil/v1.0.0: the component holds more than 10000 files"},
		"Deep": {"Folders in folders, 500 deep.", delivery, func(g *gitRepo) {
			tree := g.rawTree()
			for range 500 {
				tree = g.rawTree(treeEntry{"40000", "d", tree})
			}
			g.graft(evil, tree)
		}, nil, "components/evil@evil/v1.0.0: the component is nested deeper than 64 folders"},
		"ClusterBomb": {"A hundred thousand names of one cluster of a thousand files.", fleet, func(g *gitRepo) {
			files := g.many(1000, "100644", g.blob([]byte("x")))
			g.graft("clusters", g.many(90_000, "40000", files))
		}, nil, "clusters/ holds more than 250000 files"},
		"MillionClusters": {"A million names in clusters/.", fleet, func(g *gitRepo) {
			g.graft("clusters", g.many(1_000_000, "40000", g.rawTree()))
		}, nil, "clusters: tree"},
		"HugeCommit": {"A message of 2 MiB.", fleet, func(*gitRepo) {}, func(g *gitRepo) {
			head := g.bytesOf(g.last)
			g.ref("refs/heads/main", g.raw(plumbing.CommitObject, append(head, bytes.Repeat([]byte("x"), 2<<20)...)))
		}, "is larger than 1 MiB"},
		"HugeTag": {"The same in a tag.", delivery, func(*gitRepo) {}, func(g *gitRepo) {
			tag := g.bytesOf(g.annotate("evil/v1.0.0", g.last))
			g.ref("refs/tags/evil/v1.0.0", g.raw(plumbing.TagObject, append(tag, bytes.Repeat([]byte("x"), 2<<20)...)))
		}, "tag evil/v1.0.0: object"},
		"TagChain": {"A tag of a tag of a tag …", delivery, func(*gitRepo) {}, func(g *gitRepo) {
			h := g.last
			for i := range 20 {
				kind := "tag"
				if i == 0 {
					kind = "commit"
				}
				h = g.raw(plumbing.TagObject, fmt.Appendf(nil, "object %s\ntype %s\ntag evil/v1.0.0\n\nx\n", h, kind))
			}
			g.ref("refs/tags/evil/v1.0.0", h)
		}, "is a chain of more than 8 tags"},
		"TagOfTree": {"A tag may point anywhere.", delivery, func(*gitRepo) {}, func(g *gitRepo) {
			g.ref("refs/tags/evil/v1.0.0", g.tree(""))
		}, "is a tree, not a commit"},
		"MillionRefs": {"A million tags.", fleet, func(*gitRepo) {}, func(g *gitRepo) {
			var b bytes.Buffer
			for i := range 1_000_000 {
				fmt.Fprintf(&b, "%s refs/tags/evil/v0.0.%d\n", g.last, i)
			}
			fatal(g.t, os.WriteFile(filepath.Join(g.path, "packed-refs"), b.Bytes(), 0o600))
		}, "there are more than 100000 branches and tags"},

		// What a component can't hold.
		"Symlink": {
			"It would lead out.", delivery, func(g *gitRepo) { g.symlink(evil, "../../../../etc/passwd") }, nil,
			"components/evil/template/evil@evil/v1.0.0: this is a symbolic link; a component holds plain files only",
		},
		"SymlinkFolder": {"In the place of the chart.", delivery, func(g *gitRepo) {
			g.remove("components/evil/template")
			g.symlink("components/evil/template", "/etc")
		}, nil, "components/evil/template@evil/v1.0.0: this is a symbolic link"},
		"Submodule": {
			"Another repository.", delivery, func(g *gitRepo) { g.submodule(evil) }, nil,
			"components/evil/template/evil@evil/v1.0.0: this is a submodule; a component holds plain files only",
		},
		"DotDot":     {"A path that leads out.", delivery, entry("100644", ".."), nil, `".." is not a file name`},
		"DotDotTree": {"As above.", delivery, entry("40000", ".."), nil, `".." is not a file name`},
		"Dot":        {"A name for the folder itself.", delivery, entry("100644", "."), nil, `"." is not a file name`},
		"Slash":      {"A path in a name.", delivery, entry("100644", "../../clusters/a/cluster.yaml"), nil, "holds a slash"},
		"Backslash":  {"The same on Windows.", delivery, entry("100644", `..\..\x`), nil, "holds a slash, backslash"},
		"DotGit":     {"git's own folder.", delivery, entry("40000", ".git"), nil, `".git" is not a file name`},
		"DotGIT":     {"The same where case is folded.", delivery, entry("40000", ".GIT"), nil, `".GIT" is not a file name`},
		"DotGitDot":  {"The same on Windows.", delivery, entry("40000", ".git. "), nil, `".git. " is not a file name`},
		"ShortName":  {"Its other name on Windows.", delivery, entry("40000", "GIT~1"), nil, `"GIT~1" is not a file name`},
		"Invisible":  {"The same on a Mac, where that character is left out.", delivery, entry("40000", ".g\u200cit"), nil, "control or invisible character"},
		"Control":    {"It would move a terminal's cursor.", delivery, entry("100644", "a\x1b[2J"), nil, `file name "a\x1b[2J" holds`},
		"Newline":    {"A line of its own in a log.", delivery, entry("100644", "a\nb"), nil, `file name "a\nb" holds`},
		"Latin1":     {"A name that is not UTF-8.", delivery, entry("100644", "\xff"), nil, "is not UTF-8"},
		"NUL":        {"A name ends at its NUL: what follows is no hash.", delivery, entry("100644", "a\x00b"), nil, "is malformed"},
		"EmptyName":  {"An entry without a name.", delivery, entry("100644", ""), nil, `"" is not a file name`},
		"Mode":       {"A mode that is no number.", delivery, entry("10x644", "a"), nil, "has the mode"},
		"TreeTwice": {"A name twice: which of the two would be used?", delivery, func(g *gitRepo) {
			g.graft(evil, g.rawTree(treeEntry{"100644", "a", g.blob([]byte("1"))}, treeEntry{"100644", "a", g.blob([]byte("2"))}))
		}, nil, `"a" stands twice in git tree`},
		"FileAndFolder": {"A name as a file and as a folder.", delivery, func(g *gitRepo) {
			g.graft(evil, g.rawTree(treeEntry{"100644", "a", g.blob([]byte("1"))}, treeEntry{"40000", "a", g.rawTree()}))
		}, nil, `"a" stands twice in git tree`},
		"TruncatedTree": {"A tree that was cut off.", delivery, func(g *gitRepo) {
			g.graft(evil, g.raw(plumbing.TreeObject, []byte("100644 a\x0012345")))
		}, nil, "is malformed"},
		"BlobAsTree": {"A folder that is a file.", delivery, func(g *gitRepo) { g.graft(evil, g.blob([]byte("x"))) }, nil, "is a blob, not a tree"},
		"ClusterSymlink": {
			"A cluster that leads to another.", nothing, func(g *gitRepo) { g.symlink("clusters/c", "a") }, nil,
			"clusters/c: this is a symbolic link, not a folder",
		},

		// What is missing or damaged.
		"MissingBlob": {"Not knowing is not absence.", delivery, func(g *gitRepo) {
			g.files["clusters/a/evil.yaml"] = gitFile{filemode.Regular, zero}
		}, nil, "clusters/a/evil.yaml: can't be read: object 1234567890123456789012345678901234567890 is missing"},
		"MissingTree": {"A cluster of which nothing is known.", cluster, func(g *gitRepo) {
			g.remove("clusters/a")
			g.graft("clusters/a", zero)
		}, nil, "clusters/a: can't be read: clusters/a: object"},
		"DamagedBlob": {"Another content than its hash says.", delivery, func(g *gitRepo) {
			h := g.blob([]byte(header + "version: v1.0.1\n"))
			g.files["clusters/a/evil.yaml"] = gitFile{filemode.Regular, h}
			content := header + "version: v9.9.9\n"
			g.loose(h, fmt.Sprintf("blob %d\x00", len(content)), strings.NewReader(content))
		}, nil, "is damaged: it holds what"},
		"TruncatedBlob": {"A file that a full disk cut off.", delivery, func(g *gitRepo) {
			h := g.blob([]byte(strings.Repeat(header, 100)))
			g.files["clusters/a/evil.yaml"] = gitFile{filemode.Regular, h}
			file := filepath.Join(g.path, "objects", h.String()[:2], h.String()[2:])
			fatal(g.t, os.Chmod(file, 0o600))
			fatal(g.t, os.Truncate(file, 30))
		}, nil, "clusters/a/evil.yaml: can't be read: read object"},
		"MissingCommit": {"A branch that points to nothing.", fleet, func(*gitRepo) {}, func(g *gitRepo) {
			g.ref("refs/heads/main", zero)
		}, "object 1234567890123456789012345678901234567890 is missing"},
		"MalformedCommit": {"A commit without a tree.", fleet, func(*gitRepo) {}, func(g *gitRepo) {
			g.ref("refs/heads/main", g.raw(plumbing.CommitObject, []byte("author x\n\n")))
		}, "is malformed: it does not start with its tree"},
		"MissingTagObject": {"A tag that points to nothing.", delivery, func(*gitRepo) {}, func(g *gitRepo) {
			g.ref("refs/tags/evil/v1.0.0", zero)
		}, "tag evil/v1.0.0: object"},

		// Names of refs: none of them can be asked for, and none is in the way.
		"RefNames": {"Names that git would not let be made.", nothing, func(*gitRepo) {}, func(g *gitRepo) {
			var b bytes.Buffer
			for _, name := range []string{
				"heads/-upload-pack=x", "tags/-x", "tags/evil/v1.0.0/../v2", "tags/a@{0}", "heads/a\x1b[2J", "tags/a..b",
				"tags/.hidden", "tags/x.lock", "heads/a\\b", "tags/a~1", "tags/a^{}", "heads/a:b", "tags/evil//v3.0.0",
			} {
				fmt.Fprintf(&b, "%s refs/%s\n", g.last, name)
			}
			fatal(g.t, os.WriteFile(filepath.Join(g.path, "packed-refs"), b.Bytes(), 0o600))
		}, ""},
		"CaseOfTags": {"Two tags that a disk may hold to be one.", nothing, func(*gitRepo) {}, func(g *gitRepo) {
			content := fmt.Sprintf("%s refs/tags/Evil/v1.0.0\n%s refs/tags/EVIL/V1.0.0\n", zero, zero)
			fatal(g.t, os.WriteFile(filepath.Join(g.path, "packed-refs"), []byte(content), 0o600))
		}, ""},
		"LongRef": {"A name of 60,000 characters.", nothing, func(*gitRepo) {}, func(g *gitRepo) {
			content := fmt.Sprintf("%s refs/tags/%s\n", g.last, strings.Repeat("x", 60_000))
			fatal(g.t, os.WriteFile(filepath.Join(g.path, "packed-refs"), []byte(content), 0o600))
		}, ""},

		// Files of the fleet.
		"DuplicateKey": {"YAML would take the last.", delivery, file(header + "version: v1.0.0\nversion: v2.0.0\n"), nil, "clusters/a/evil.yaml:4:1: duplicate key"},
		"Documents": {
			"50,000 documents in one file.", delivery, file(strings.Repeat("---\na: 1\n", 50_000)), nil,
			"clusters/a/evil.yaml:3:1: the file holds more than one YAML document",
		},
		"AliasBomb": {"Each line is ten times the one above.", delivery, file(header + bomb(30)), nil, "clusters/a/evil.yaml:3"},
		"DeepYAML":  {"Half a million brackets.", delivery, file(header + "values: " + strings.Repeat("[", 500_000)), nil, "clusters/a/evil.yaml:"},
		"DeepBlock": {"Deeper with each line.", delivery, file(header + deepBlock(1000)), nil, "nested deeper than 100 levels"},
		"BigYAML":   {"More than a file of the fleet has.", delivery, file(strings.Repeat("# x\n", 300_000)), nil, "clusters/a/evil.yaml: the file is larger than 1 MiB"},
		"UnknownKeys": {"A problem a line, for 60,000 lines.", delivery, func(g *gitRepo) {
			var b strings.Builder
			b.WriteString(header)
			for i := range 60_000 {
				fmt.Fprintf(&b, "k%d: x\n", i)
			}
			g.write("clusters/a/evil.yaml", b.String())
		}, nil, "clusters/a/evil.yaml:3:1: unknown key"},
		"LongKey":    {"One key of a megabyte.", delivery, file(header + strings.Repeat("k", 1<<19) + ": x\n"), nil, "clusters/a/evil.yaml: not valid YAML"},
		"Tags":       {"A type of the file's own.", delivery, file(header + "values: !!python/object:os.system {a: b}\n"), nil, "is not supported"},
		"Bytes":      {"No text at all.", delivery, file("\x00\x01\x02"), nil, "clusters/a/evil.yaml"},
		"UTF16":      {"Another encoding.", delivery, file("\xff\xfea\x00:\x00"), nil, "clusters/a/evil.yaml:1:1: the file is not UTF-8"},
		"LongNumber": {"A number of 300,000 digits.", delivery, file(header + "version: " + strings.Repeat("9", 300_000) + "\n"), nil, "clusters/a/evil.yaml:3"},
	}
	if len(cases) < 30 {
		t.Errorf("%d cases, want at least 30", len(cases))
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && strings.HasPrefix(name, "Million") {
				t.Skip("takes seconds to make")
			}
			g := evilFleet(t)
			c.change(g)
			g.commit()
			g.tag("evil/v1.0.0")
			if c.after != nil {
				c.after(g)
			}
			cache := t.TempDir()
			bounded(t, func() {
				r, err := registry.Open(t.Context(), registry.Options{URL: g.path, CacheDir: cache})
				var f *registry.Fleet
				if err == nil {
					f, err = r.Load(t.Context(), "")
				}
				if c.blocks == fleet {
					if err == nil || !strings.Contains(err.Error(), c.want) {
						t.Errorf("%s: error %.300v, want %q", c.why, err, c.want)
					}
					return
				}
				if err != nil {
					t.Fatalf("%s: %v", c.why, err)
				}
				if !strings.Contains(f.Problems.Error(), c.want) {
					t.Errorf("%s: problems %.600s\nwant %q", c.why, f.Problems.Error(), c.want)
				}
				checkOthers(t, f, c.blocks == cluster)
				if d := f.Cluster("a").Delivery("evil"); c.blocks == delivery && (d == nil || len(d.Problems) == 0) {
					t.Errorf("%s: the delivery is not blocked: %+v", c.why, d)
				}
			})
		})
	}
}

// checkOthers checks that all but evil can be delivered.
func checkOthers(t *testing.T, f *registry.Fleet, clusterBlocked bool) {
	t.Helper()
	names := []string{"a", "b"}
	if clusterBlocked {
		names = names[1:]
		if len(f.Cluster("a").Problems) == 0 {
			t.Error("cluster a is not blocked")
		}
	}
	for _, name := range names {
		c := f.Cluster(name)
		if c == nil || len(c.Problems) > 0 {
			t.Fatalf("cluster %s is blocked, too: %v", name, c)
		}
		if d := c.Delivery("coredns"); d == nil || len(d.Problems) > 0 || d.Version == nil {
			t.Errorf("coredns on %s is blocked, too: %+v", name, d)
		}
	}
}

// bomb is a YAML document in which each line names the one before ten times.
func bomb(lines int) string {
	var b strings.Builder
	b.WriteString("values:\n  l0: &l0 lol\n")
	for i := 1; i < lines; i++ {
		fmt.Fprintf(&b, "  l%d: &l%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*l%d,", i-1), 10), ","))
	}
	return b.String()
}

func deepBlock(levels int) string {
	var b strings.Builder
	b.WriteString("values:\n")
	for i := range levels {
		b.WriteString(strings.Repeat(" ", i+1) + "a:\n")
	}
	return b.String()
}

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
		"Blob2GB":      {"A zip bomb that says so: 2 GB of nothing in 2 MB.", one(packBlob, 2<<30, io.LimitReader(endless(0), 64<<20)), "it has a blob of 2048 MiB, and at most 32 MiB are received"},
		"BlobLies":     {"It says ten bytes, and inflates to 256 MiB.", one(packBlob, 10, io.LimitReader(endless(0), 256<<20)), "it is damaged"},
		"BlobShort":    {"It says more than it has.", one(packBlob, 1000, strings.NewReader("x")), "it is damaged: an object has 1 bytes instead of 1000"},
		"Exabytes":     {"A size of 64 bits.", one(packBlob, 1<<50, strings.NewReader("x")), "and at most 32 MiB are received"},
		"Tree":         {"A tree of a million names.", one(packTree, 33<<20>>1, io.LimitReader(endless(0), 33<<20>>1)), "it has a tree of 16 MiB, and at most 4 MiB"},
		"Commit":       {"A commit of 2 MiB.", one(packCommit, 2<<20, io.LimitReader(endless(0), 2<<20)), "it has a commit of 2 MiB, and at most 1 MiB"},
		"Tag":          {"A tag of 2 MiB.", one(packTag, 2<<20, io.LimitReader(endless(0), 2<<20)), "it has a tag of 2 MiB, and at most 1 MiB"},
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
		}, "it is damaged: a delta is made from what is no object"},
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
			base := p.object(packBlob, 30<<20, nil, io.LimitReader(endless(0), 30<<20))
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
			bounded(t, func() {
				_, err := registry.Open(t.Context(), registry.Options{URL: url, CacheDir: cache})
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
			_, _ = io.Copy(w, endless(0))
		})
		bounded(t, func() {
			_, err := registry.Open(t.Context(), registry.Options{URL: url, CacheDir: t.TempDir(), Limits: registry.Limits{PackBytes: 64 << 20}})
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
			p.object(packBlob, size, nil, io.LimitReader(endless(i), size))
		}
		pack := p.done()
		url := packServer(t, head, func(w io.Writer) { _, _ = w.Write(pack) })
		start := time.Now()
		_, err := registry.Open(t.Context(), registry.Options{URL: url, CacheDir: t.TempDir(), Limits: registry.Limits{Silence: silence}})
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

// A server that can leave large files out is asked to: one of them then blocks
// its component, and not the whole repository.
func TestLargeFileIsLeftOut(t *testing.T) {
	t.Parallel()
	g := evilFleet(t)
	g.write(evil, string(randomBytes(t, 6<<20)))
	g.commit()
	g.tag("evil/v1.0.0")
	cmd := exec.CommandContext(t.Context(), "git", "config", "--file", filepath.Join(g.path, "config"), "uploadpack.allowFilter", "true")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("needs git: %v %s", err, out)
	}
	cache := t.TempDir()
	r, err := registry.Open(t.Context(), registry.Options{URL: serveGit(t, g).url(), CacheDir: cache})
	fatal(t, err)
	f := load(t, r, "")
	if got := f.Problems.Error(); !strings.Contains(got, "components/evil/template/evil@evil/v1.0.0: can't be read: object "+g.files[evil].hash.String()+
		" is missing: it is larger than 5 MiB and was left out") {
		t.Errorf("problems %s", got)
	}
	checkOthers(t, f, false)
	packs, err := filepath.Glob(filepath.Join(cache, "*", "clone.git", "objects", "pack", "*.pack"))
	fatal(t, err)
	for _, p := range packs {
		if info, err := os.Stat(p); err != nil || info.Size() > 1<<20 {
			t.Errorf("%s has %d bytes: the large file was sent", p, info.Size())
		}
	}
}
