package registry_test

import (
	"strings"
	"testing"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// TestBrokenClusterIsRecalled: a cluster whose cluster.yaml breaks keeps its labels and its
// components, and is blocked. Otherwise it could belong to any stage, and every rollout of the
// fleet would wait for it.
func TestBrokenClusterIsRecalled(t *testing.T) {
	t.Parallel()
	const file, broken = "clusters/b/cluster.yaml", "labels: ["
	for name, test := range map[string]struct {
		why    string
		change func(g *gittest.Repo)
		stage  string // that the cluster's labels name; "": they are unknown
	}{
		"Broken": {
			"The commit before says what the labels are.",
			func(g *gittest.Repo) { g.Write(file, broken) }, "production",
		},
		"Missing": {
			"A file that was removed or renamed is as good as a broken one.",
			func(g *gittest.Repo) { g.Remove(file); g.Write("clusters/b/Cluster.yml", "a: b\n") }, "production",
		},
		"BrokenTwice": {
			"Each commit that can't be read is passed over.",
			func(g *gittest.Repo) {
				g.Write(file, broken)
				g.Commit()
				g.Write(file, broken+" # again")
			}, "production",
		},
		"Newest": {
			"The last labels count, and not those of an older commit.",
			func(g *gittest.Repo) {
				g.Write(file, "apiVersion: keelson.io/v1alpha1\nkind: Cluster\nlabels: {stage: canary}\nconnection: {context: b}\n")
				g.Commit()
				g.Write(file, broken)
			}, "canary",
		},
		"Mistaken": {
			"A file with mistakes is no source of labels: the mistake may be in them.",
			func(g *gittest.Repo) {
				g.Write(file, "apiVersion: keelson.io/v1alpha1\nkind: Cluster\nlabels: {stage: [canary]}\nconnection: {context: b}\n")
				g.Commit()
				g.Write(file, broken)
			}, "production",
		},
		"Huge": {
			"A file that is too large to be read is as good as a broken one: one cluster's owner could hold up the fleet with it.",
			func(g *gittest.Repo) { g.Write(file, "# "+strings.Repeat("x", 3<<20)+"\n") }, "production",
		},
		"New": {
			"A cluster that was never readable may belong to any stage.",
			func(g *gittest.Repo) { g.Remove(file); g.Write("clusters/c/cluster.yaml", broken) }, "",
		},
		"LongAgo": {
			"The search is bounded.",
			func(g *gittest.Repo) {
				g.Write(file, broken)
				for range registry.MaxRecalled {
					g.Commit()
				}
			}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gittest.NewRepo(t)
			writeFleet(g)
			test.change(g)
			g.Commit()
			r := open(t, g.Path)
			for _, try := range []string{"first load", "second load"} {
				c := load(t, r, "").Cluster("b")
				if name == "New" {
					c = load(t, r, "").Cluster("c")
				}
				if len(c.Problems) == 0 || c.Blocked() == nil {
					t.Fatalf("%s: the cluster is not blocked: %s", try, test.why)
				}
				if c.Unread != (test.stage == "") || c.Spec.Labels["stage"] != test.stage {
					t.Errorf("%s: unread %v, labels %v, want stage %q: %s", try, c.Unread, c.Spec.Labels, test.stage, test.why)
				}
				if known := c.Delivery("coredns") != nil; name != "New" && !known {
					t.Errorf("%s: coredns is not among its components", try)
				}
				g.Write("README.md", try)
				g.Commit()
				if err := r.Git().Fetch(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestRecalledClusterChangesBack: the cluster is unblocked once its file is right again, with
// what the file then says.
func TestRecalledClusterChangesBack(t *testing.T) {
	t.Parallel()
	const file = "clusters/b/cluster.yaml"
	g := gittest.NewRepo(t)
	writeFleet(g)
	r := open(t, g.Path)
	load(t, r, "")
	for _, content := range []string{
		"labels: [", "apiVersion: keelson.io/v1alpha1\nkind: Cluster\nlabels: {stage: canary}\nconnection: {context: b}\n",
	} {
		g.Write(file, content)
		g.Commit()
		if err := r.Git().Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		c := load(t, r, "").Cluster("b")
		if isBroken := content == "labels: ["; isBroken != (c.Blocked() != nil) || isBroken != (c.Spec.Labels["stage"] == "production") {
			t.Errorf("%q: blocked %v, labels %v", content, c.Blocked(), c.Spec.Labels)
		}
	}
}
