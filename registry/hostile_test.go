//go:build !race

package registry_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

const evil = "components/evil/template/evil"

// evilFleet is the small fleet, and a component evil that cluster a runs.
func evilFleet(t testing.TB) *gittest.Repo {
	g := gittest.NewRepo(t)
	writeFleet(g)
	g.Write("components/evil/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: evil\n")
	g.Write("components/evil/template/Chart.yaml", "apiVersion: v2\nname: evil\nversion: 1.0.0\n")
	g.Write("clusters/a/evil.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\n")
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
	file := func(content string) func(*gittest.Repo) {
		return func(g *gittest.Repo) { g.Write("clusters/a/evil.yaml", content) }
	}
	entry := func(mode, name string) func(*gittest.Repo) {
		return func(g *gittest.Repo) {
			g.Graft(evil, g.RawTree(gittest.TreeEntry{Mode: mode, Name: name, Hash: g.Blob([]byte("x"))}))
		}
	}
	cases := map[string]struct {
		why    string
		blocks int
		change func(g *gittest.Repo)
		after  func(g *gittest.Repo) // the commit and its tag
		want   string
	}{
		// Sizes.
		"BlobOf2GB": {"Its size is read, and not its bytes.", delivery, func(g *gittest.Repo) {
			g.Files[evil] = gittest.File{Mode: filemode.Regular, Hash: zero}
			g.Loose(zero, "blob 2147483648\x00", io.LimitReader(gittest.Endless(0), 1<<20))
		}, nil, "components/evil/template/evil@evil/v1.0.0: the file is larger than 5 MiB"},
		"BlobLies": {"It says ten bytes, and inflates to 128 MiB.", delivery, func(g *gittest.Repo) {
			g.Files[evil] = gittest.File{Mode: filemode.Regular, Hash: zero}
			g.Loose(zero, "blob 10\x00", io.LimitReader(gittest.Endless(0), 128<<20))
		}, nil, "components/evil/template/evil@evil/v1.0.0: can't be read: read object 1234567890123456789012345678901234567890: its header gives 10 bytes"},
		"HeaderWithoutEnd": {"An object whose header is 128 MiB.", delivery, func(g *gittest.Repo) {
			g.Files[evil] = gittest.File{Mode: filemode.Regular, Hash: zero}
			g.Loose(zero, "blob ", io.LimitReader(gittest.Endless('1'), 128<<20))
		}, nil, "its header is too long"},
		"MillionFiles": {"A million names in one folder.", delivery, func(g *gittest.Repo) {
			g.Graft(evil, g.Many(1_000_000, "100644", g.Blob([]byte("x"))))
		}, nil, "components/evil/template/evil@evil/v1.0.0: can't be read: components/evil/template/evil: tree"},
		"ManyFiles": {"More than a component has, each small.", delivery, func(g *gittest.Repo) {
			g.Graft(evil, g.Many(20_000, "100644", g.Blob([]byte("x"))))
		}, nil, "components/evil@evil/v1.0.0: the component holds more than 10000 files"},
		"ManyBytes": {"Many files that are just small enough.", delivery, func(g *gittest.Repo) {
			g.Graft(evil, g.Many(1000, "100644", g.Blob(make([]byte, 5<<20))))
		}, nil, "components/evil@evil/v1.0.0: the component is larger than 50 MiB"},
		"FolderBomb": {"Ten levels of a hundred names of the same tree: 10^20 folders in 30 KB.", delivery, func(g *gittest.Repo) {
			tree := g.RawTree()
			for range 10 {
				tree = g.Many(100, "40000", tree)
			}
			g.Graft(evil, tree)
		}, nil, "components/evil@evil/v1.0.0: the component holds more than 10000 folders"},
		"FileBomb": {"The same with files at the bottom.", delivery, func(g *gittest.Repo) {
			tree := g.Many(100, "100644", g.Blob([]byte("x")))
			for range 10 {
				tree = g.Many(100, "40000", tree)
			}
			g.Graft(evil, tree)
		}, nil, "components/evil@evil/v1.0.0: the component holds more than 10000 files"},
		"Deep": {"Folders in folders, 500 deep.", delivery, func(g *gittest.Repo) {
			tree := g.RawTree()
			for range 500 {
				tree = g.RawTree(gittest.TreeEntry{Mode: "40000", Name: "d", Hash: tree})
			}
			g.Graft(evil, tree)
		}, nil, "components/evil@evil/v1.0.0: the component is nested deeper than 64 folders"},
		"ClusterBomb": {"A hundred thousand names of one cluster of a thousand files.", fleet, func(g *gittest.Repo) {
			files := g.Many(1000, "100644", g.Blob([]byte("x")))
			g.Graft("clusters", g.Many(90_000, "40000", files))
		}, nil, "clusters/ holds more than 250000 files"},
		"MillionClusters": {"A million names in clusters/.", fleet, func(g *gittest.Repo) {
			g.Graft("clusters", g.Many(1_000_000, "40000", g.RawTree()))
		}, nil, "clusters: tree"},
		"HugeCommit": {"A message of 2 MiB.", fleet, func(*gittest.Repo) {}, func(g *gittest.Repo) {
			head := g.BytesOf(g.Last)
			g.Ref("refs/heads/main", g.Raw(plumbing.CommitObject, append(head, bytes.Repeat([]byte("x"), 2<<20)...)))
		}, "is larger than 1 MiB"},
		"HugeTag": {"The same in a tag.", delivery, func(*gittest.Repo) {}, func(g *gittest.Repo) {
			tag := g.BytesOf(g.Annotate("evil/v1.0.0", g.Last))
			g.Ref("refs/tags/evil/v1.0.0", g.Raw(plumbing.TagObject, append(tag, bytes.Repeat([]byte("x"), 2<<20)...)))
		}, "tag evil/v1.0.0: object"},
		"TagChain": {"A tag of a tag of a tag …", delivery, func(*gittest.Repo) {}, func(g *gittest.Repo) {
			h := g.Last
			for i := range 20 {
				kind := "tag"
				if i == 0 {
					kind = "commit"
				}
				h = g.Raw(plumbing.TagObject, fmt.Appendf(nil, "object %s\ntype %s\ntag evil/v1.0.0\n\nx\n", h, kind))
			}
			g.Ref("refs/tags/evil/v1.0.0", h)
		}, "is a chain of more than 8 tags"},
		"TagOfTree": {"A tag may point anywhere.", delivery, func(*gittest.Repo) {}, func(g *gittest.Repo) {
			g.Ref("refs/tags/evil/v1.0.0", g.Tree(""))
		}, "is a tree, not a commit"},
		"MillionRefs": {"A million tags.", fleet, func(*gittest.Repo) {}, func(g *gittest.Repo) {
			var b bytes.Buffer
			for i := range 1_000_000 {
				fmt.Fprintf(&b, "%s refs/tags/evil/v0.0.%d\n", g.Last, i)
			}
			fatal(g.T, os.WriteFile(filepath.Join(g.Path, "packed-refs"), b.Bytes(), 0o600))
		}, "there are more than 100000 branches and tags"},

		// What a component can't hold.
		"Symlink": {
			"It would lead out.", delivery, func(g *gittest.Repo) { g.Symlink(evil, "../../../../etc/passwd") }, nil,
			"components/evil/template/evil@evil/v1.0.0: this is a symbolic link; a component holds plain files only",
		},
		"SymlinkFolder": {"In the place of the chart.", delivery, func(g *gittest.Repo) {
			g.Remove("components/evil/template")
			g.Symlink("components/evil/template", "/etc")
		}, nil, "components/evil/template@evil/v1.0.0: this is a symbolic link"},
		"Submodule": {
			"Another repository.", delivery, func(g *gittest.Repo) { g.Submodule(evil) }, nil,
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
		"TreeTwice": {"A name twice: which of the two would be used?", delivery, func(g *gittest.Repo) {
			g.Graft(evil, g.RawTree(gittest.TreeEntry{Mode: "100644", Name: "a", Hash: g.Blob([]byte("1"))}, gittest.TreeEntry{Mode: "100644", Name: "a", Hash: g.Blob([]byte("2"))}))
		}, nil, `"a" is twice in git tree`},
		"FileAndFolder": {"A name as a file and as a folder.", delivery, func(g *gittest.Repo) {
			g.Graft(evil, g.RawTree(gittest.TreeEntry{Mode: "100644", Name: "a", Hash: g.Blob([]byte("1"))}, gittest.TreeEntry{Mode: "40000", Name: "a", Hash: g.RawTree()}))
		}, nil, `"a" is twice in git tree`},
		"TruncatedTree": {"A tree that was cut off.", delivery, func(g *gittest.Repo) {
			g.Graft(evil, g.Raw(plumbing.TreeObject, []byte("100644 a\x0012345")))
		}, nil, "is malformed"},
		"BlobAsTree": {"A folder that is a file.", delivery, func(g *gittest.Repo) { g.Graft(evil, g.Blob([]byte("x"))) }, nil, "is a blob, not a tree"},
		"ClusterSymlink": {
			"A cluster that leads to another.", nothing, func(g *gittest.Repo) { g.Symlink("clusters/c", "a") }, nil,
			"clusters/c: this is a symbolic link, not a folder",
		},

		// What is missing or damaged.
		"MissingBlob": {"Not knowing is not absence.", delivery, func(g *gittest.Repo) {
			g.Files["clusters/a/evil.yaml"] = gittest.File{Mode: filemode.Regular, Hash: zero}
		}, nil, "clusters/a/evil.yaml: can't be read: object 1234567890123456789012345678901234567890 is missing"},
		"MissingTree": {"A cluster of which nothing is known.", cluster, func(g *gittest.Repo) {
			g.Remove("clusters/a")
			g.Graft("clusters/a", zero)
		}, nil, "clusters/a: can't be read: clusters/a: object"},
		"DamagedBlob": {"Another content than its hash says.", delivery, func(g *gittest.Repo) {
			h := g.Blob([]byte(header + "version: v1.0.1\n"))
			g.Files["clusters/a/evil.yaml"] = gittest.File{Mode: filemode.Regular, Hash: h}
			content := header + "version: v9.9.9\n"
			g.Loose(h, fmt.Sprintf("blob %d\x00", len(content)), strings.NewReader(content))
		}, nil, "is damaged: its content is that of object"},
		"TruncatedBlob": {"A file that a full disk cut off.", delivery, func(g *gittest.Repo) {
			h := g.Blob([]byte(strings.Repeat(header, 100)))
			g.Files["clusters/a/evil.yaml"] = gittest.File{Mode: filemode.Regular, Hash: h}
			file := filepath.Join(g.Path, "objects", h.String()[:2], h.String()[2:])
			fatal(g.T, os.Chmod(file, 0o600))
			fatal(g.T, os.Truncate(file, 30))
		}, nil, "clusters/a/evil.yaml: can't be read: read object"},
		"MissingCommit": {"A branch that points to nothing.", fleet, func(*gittest.Repo) {}, func(g *gittest.Repo) {
			g.Ref("refs/heads/main", zero)
		}, "object 1234567890123456789012345678901234567890 is missing"},
		"MalformedCommit": {"A commit without a tree.", fleet, func(*gittest.Repo) {}, func(g *gittest.Repo) {
			g.Ref("refs/heads/main", g.Raw(plumbing.CommitObject, []byte("author x\n\n")))
		}, "is malformed: it does not start with its tree"},
		"MissingTagObject": {"A tag that points to nothing.", delivery, func(*gittest.Repo) {}, func(g *gittest.Repo) {
			g.Ref("refs/tags/evil/v1.0.0", zero)
		}, "tag evil/v1.0.0: object"},

		// Names of refs: none of them can be asked for, and none is in the way.
		"RefNames": {"Names that git would not let be made.", nothing, func(*gittest.Repo) {}, func(g *gittest.Repo) {
			var b bytes.Buffer
			for _, name := range []string{
				"heads/-upload-pack=x", "tags/-x", "tags/evil/v1.0.0/../v2", "tags/a@{0}", "heads/a\x1b[2J", "tags/a..b",
				"tags/.hidden", "tags/x.lock", "heads/a\\b", "tags/a~1", "tags/a^{}", "heads/a:b", "tags/evil//v3.0.0",
			} {
				fmt.Fprintf(&b, "%s refs/%s\n", g.Last, name)
			}
			fatal(g.T, os.WriteFile(filepath.Join(g.Path, "packed-refs"), b.Bytes(), 0o600))
		}, ""},
		"CaseOfTags": {"Two tags that a disk may hold to be one.", nothing, func(*gittest.Repo) {}, func(g *gittest.Repo) {
			content := fmt.Sprintf("%s refs/tags/Evil/v1.0.0\n%s refs/tags/EVIL/V1.0.0\n", zero, zero)
			fatal(g.T, os.WriteFile(filepath.Join(g.Path, "packed-refs"), []byte(content), 0o600))
		}, ""},
		"LongRef": {"A name of 60,000 characters.", nothing, func(*gittest.Repo) {}, func(g *gittest.Repo) {
			content := fmt.Sprintf("%s refs/tags/%s\n", g.Last, strings.Repeat("x", 60_000))
			fatal(g.T, os.WriteFile(filepath.Join(g.Path, "packed-refs"), []byte(content), 0o600))
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
		"UnknownKeys": {"A problem a line, for 60,000 lines.", delivery, func(g *gittest.Repo) {
			var b strings.Builder
			b.WriteString(header)
			for i := range 60_000 {
				fmt.Fprintf(&b, "k%d: x\n", i)
			}
			g.Write("clusters/a/evil.yaml", b.String())
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
			g.Commit()
			g.Tag("evil/v1.0.0")
			if c.after != nil {
				c.after(g)
			}
			cache := t.TempDir()
			gittest.Bounded(t, func() {
				r, err := registry.Open(t.Context(), gitrepo.Options{URL: g.Path, CacheDir: cache})
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

// A server that can leave large files out is asked to: one of them then blocks
// its component, and not the whole repository.
func TestLargeFileIsLeftOut(t *testing.T) {
	t.Parallel()
	g := evilFleet(t)
	g.Write(evil, string(randomBytes(t, 6<<20)))
	g.Commit()
	g.Tag("evil/v1.0.0")
	cmd := exec.CommandContext(t.Context(), "git", "config", "--file", filepath.Join(g.Path, "config"), "uploadpack.allowFilter", "true")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("needs git: %v %s", err, out)
	}
	cache := t.TempDir()
	r, err := registry.Open(t.Context(), gitrepo.Options{URL: gittest.Serve(t, g).RepoURL(), CacheDir: cache})
	fatal(t, err)
	f := load(t, r, "")
	if got := f.Problems.Error(); !strings.Contains(got, "components/evil/template/evil@evil/v1.0.0: can't be read: object "+g.Files[evil].Hash.String()+
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
