package fleet_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/lab/fleet"
)

// Whether Keelson finds no mistake in them, and renders as often as was asked,
// is tested in lab/bench/registry, which may import it.

func small() fleet.Options {
	return fleet.Options{Components: 12, Clusters: 20, Distinct: 60, Seed: 7}
}

// TestSame: figures of two machines, or of two days, are about one fleet.
func TestSame(t *testing.T) {
	t.Parallel()
	first, second := generate(t, small()), generate(t, small())
	if d := cmp.Diff(first.made, second.made); d != "" {
		t.Errorf("the same options (-first +second):\n%s", d)
	}
	// A change of this hash makes figures of before and after incomparable.
	if want := "a8e4a5322ea3bdcb46da1dc1ff7fbdc02a6ce410"; first.made.Commit != want {
		t.Errorf("commit %s, want %s: is the fleet meant to change?", first.made.Commit, want)
	}
	other := small()
	other.Seed++
	if third := generate(t, other); third.made.Commit == first.made.Commit {
		t.Error("another seed made the same fleet")
	}
}

func TestShape(t *testing.T) {
	t.Parallel()
	o := small()
	r := generate(t, o)
	if got := len(r.git(t, "ls-tree", "--name-only", "main", "clusters/")); got != o.Clusters {
		t.Errorf("%d clusters, want %d", got, o.Clusters)
	}
	if got := len(r.git(t, "ls-tree", "--name-only", "main", "components/")); got != o.Components {
		t.Errorf("%d components, want %d", got, o.Components)
	}
	tags := r.git(t, "tag", "--list")
	if len(tags) != r.made.Versions || len(tags) < 3*o.Components {
		t.Errorf("%d tags, want %d, and several a component", len(tags), r.made.Versions)
	}
	if r.made.Files < r.made.Contents || r.made.Contents == 0 {
		t.Errorf("%d files of clusters with %d contents; want some, and some shared", r.made.Files, r.made.Contents)
	}
}

func TestPush(t *testing.T) {
	t.Parallel()
	r := generate(t, small())
	err := fleet.Push(t.Context(), r.dir, fleet.Commit{
		Files: map[string][]byte{"fleet.yaml": []byte("a: b\n"), "README.md": nil}, Tag: "a/v1.0.0",
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.git(t, "diff", "--name-status", r.made.Commit, "main"); !cmp.Equal(got, []string{"D\tREADME.md", "M\tfleet.yaml"}) {
		t.Errorf("the commit changed %q", got)
	}
	if got, want := r.git(t, "rev-parse", "a/v1.0.0"), r.git(t, "rev-parse", "main"); !cmp.Equal(got, want) {
		t.Errorf("the tag is at %s, the branch at %s", got, want)
	}
	if got, err := fleet.Read(t.Context(), r.dir, "fleet.yaml"); string(got) != "a: b\n" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestNoSuchFleet(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why    string
		change func(*fleet.Options)
	}{
		"NoComponents": {"There is nothing to deliver.", func(o *fleet.Options) { o.Components = 0 }},
		"NoClusters":   {"There is nowhere to deliver to.", func(o *fleet.Options) { o.Clusters = 0 }},
		"TooMany":      {"Names would stand twice.", func(o *fleet.Options) { o.Components, o.Distinct = 10_000, 10_000 }},
		"TooFew":       {"Two components never render the same.", func(o *fleet.Options) { o.Distinct = o.Components - 1 }},
		"TooDistinct":  {"There are not so many deliveries.", func(o *fleet.Options) { o.Distinct = o.Components*o.Clusters + 1 }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := small()
			c.change(&o)
			dir := filepath.Join(t.TempDir(), "fleet.git")
			if _, err := fleet.Generate(t.Context(), dir, o); !errors.Is(err, fleet.ErrOptions) {
				t.Errorf("%s Error: %v", c.why, err)
			}
			if _, err := os.Stat(dir); err == nil {
				t.Error("a repository was made nevertheless")
			}
		})
	}
	r := generate(t, small())
	if _, err := fleet.Generate(t.Context(), r.dir, small()); err == nil {
		t.Error("a second fleet was written over the first")
	}
}

type repository struct {
	dir  string
	made fleet.Made
}

func generate(t *testing.T, o fleet.Options) repository {
	t.Helper()
	r := repository{dir: filepath.Join(t.TempDir(), "fleet.git")}
	var err error
	if r.made, err = fleet.Generate(t.Context(), r.dir, o); err != nil {
		t.Fatal(err)
	}
	return r
}

// git returns the lines that git prints.
func (r repository) git(t *testing.T, args ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", r.dir}, args...)...).Output()
	if err != nil {
		t.Fatalf("git %s: %v", strings.Join(args, " "), err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
