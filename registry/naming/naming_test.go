package naming_test

import (
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/keelson-io/keelson/registry/naming"
)

// A name that passes is one that nothing takes for an option, a path or an
// expression.
func FuzzRefName(f *testing.F) {
	for _, seed := range []string{
		"main", "coredns/v1.12.0", "-x", "a..b", "a@{0}", "a\nb", "refs/heads/x", "a/.b", "a.lock", "a//b", "a^{}", "\u202e", "@",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		wrong := naming.CheckRef(name)
		if component, version, ok := naming.SplitTag(name); ok {
			if wrong != "" || component+"/"+version != name {
				t.Errorf("%q is version %q of %q, and %q", name, version, component, wrong)
			}
		}
		if wrong != "" {
			return
		}
		if name == "" || name[0] == '-' || strings.ContainsAny(name, " ~^:?*[\\\x00\n\r\x1b\x7f") || strings.Contains(name, "..") ||
			strings.Contains(name, "@{") || strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") {
			t.Errorf("%q passes", name)
		}
		if err := plumbing.ReferenceName("refs/tags/" + name).Validate(); err != nil {
			t.Errorf("%q passes, and go-git says: %v", name, err)
		}
	})
}

// FuzzNames holds that what passes for the tag of a version is a ref that git
// takes, and takes as one.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"coredns/v1.12.0", "a/v1.0.0-rc.1+b", "-a/v1.0.0", "a//v1.0.0", "a/v01.0.0", "a/1.0.0", "a/v1.0.0\n", "a/v1.0.0.lock"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, tag string) {
		component, version, ok := naming.SplitTag(tag)
		if !ok {
			return
		}
		if component+"/"+version != tag || strings.Count(tag, "/") != 1 {
			t.Errorf("%q is not %q and %q", tag, component, version)
		}
		if wrong := naming.CheckRef(tag); wrong != "" {
			t.Errorf("%q: %s", tag, wrong)
		}
		if message, _ := naming.CheckVersion(version); message != "" {
			t.Errorf("%q: %s", version, message)
		}
		if strings.ContainsAny(tag, " ~^:?*[\\\x00\n\x7f") || strings.HasPrefix(tag, "-") || strings.Contains(tag, "..") {
			t.Errorf("%q is a tag that git refuses", tag)
		}
	})
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	known := []string{"version", "values", "paused", "clusterSelector"}
	cases := map[string]struct{ why, written, want string }{
		"Insert":  {"One letter too many.", "valuess", `did you mean "values"?`},
		"Swap":    {"Two letters swapped.", "puased", `did you mean "paused"?`},
		"Case":    {"The wrong case.", "clusterselector", `did you mean "clusterSelector"?`},
		"Far":     {"A guess would mislead.", "replicas", ""},
		"Nothing": {"Short words are near to everything.", "x", ""},
		"Long":    {"The cost is bounded.", strings.Repeat("version", 100), ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := naming.Suggest(c.written, known); got != c.want {
				t.Errorf("%s Suggest(%q) = %q, want %q", c.why, c.written, got, c.want)
			}
		})
	}
}
