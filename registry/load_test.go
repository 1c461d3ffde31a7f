package registry_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// TestSpecs decodes a file of each kind with every field set: the decoder is
// driven by the Go types, so a field that it can't read shows here.
func TestSpecs(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	const header = "apiVersion: keelson.io/v1alpha1\nkind: "
	g.Write("fleet.yaml", header+`Fleet
name: world
drift: report
danger:
  - name: replicas
    match: {group: apps, kinds: [Deployment, "*Set"], namespace: kube-*, name: x}
    path: .spec.replicas
    on: [add, change, remove, delete-object]
    effect: keep
    because: someone else sets it
`)
	const component = header + `Component
namespace: kube-system
description: DNS
dependsOn: [other]
adopt: true
drift: restore
timeout: 90s
danger:
`
	g.Write("components/coredns/component.yaml", component+"  - {name: all, effect: deny, because: no}\n")
	g.Write("components/coredns/images.yaml", header+`Images
images:
  coredns:
    repository: registry.k8s.io/coredns/coredns
    tag: "1.10"
    digest: sha256:`+strings.Repeat("ab", 32)+`
    into: {ref: a.ref, registry: a.registry, repository: a.repository, tag: a.tag, digest: a.digest}
`)
	g.Write("components/coredns/template/Chart.yaml", "name: x\n")
	g.Write("components/coredns/template/templates/b.yaml", "b")
	g.Write("components/coredns/template/templates-a.yaml", "a")
	g.Write("components/other/component.yaml", header+"Component\nnamespace: x\n")
	g.Write("components/other/template/Chart.yaml", "name: x\n")
	g.Write("clusters/a/cluster.yaml", header+`Cluster
labels: {stage: testing, topology.kubernetes.io/region: hz}
connection:
  secret: {namespace: ns, name: s, key: k}
imageMirrors: {registry.k8s.io: mirror.example}
paused: true
`)
	for _, name := range []string{"coredns", "other"} {
		g.Write("clusters/a/"+name+".yaml", header+"MetaConfig\nversion: HEAD\nvalues: {a: {b: [1]}}\npaused: true\n")
	}
	revision := g.Commit().String()
	f := load(t, open(t, g.Path), "main")

	// "because: no" is a boolean in YAML 1.1; the other files have no mistake.
	if len(f.Problems) != 1 || !strings.Contains(f.Problems[0].Message, "because must be a string") {
		t.Fatal(f.Problems)
	}
	if v := f.Cluster("a").Delivery("other").Version; v == nil || v.Commit != "" || f.Revision != revision || v.Name != "HEAD" {
		t.Errorf("version %+v", v)
	}
	g.Write("components/coredns/component.yaml", component+`  - {name: all, effect: deny, because: "no"}`+"\n")
	g.Commit()
	r := open(t, g.Path)
	f = load(t, r, "main")
	if err := f.Problems.Err(); err != nil {
		t.Fatal(err)
	}
	c := f.Cluster("a")
	v := c.Delivery("coredns").Version
	h := func(kind string) v1alpha1.Header {
		return v1alpha1.Header{APIVersion: "keelson.io/v1alpha1", Kind: kind}
	}
	for _, x := range []struct{ got, want any }{
		{f.Spec, v1alpha1.Fleet{
			Header: h("Fleet"), Name: "world", Drift: v1alpha1.DriftReport,
			Danger: []v1alpha1.DangerRule{{
				Name:  "replicas",
				Match: v1alpha1.ObjectMatch{Group: "apps", Kinds: []string{"Deployment", "*Set"}, Namespace: "kube-*", Name: "x"},
				Path:  ".spec.replicas", On: []v1alpha1.Event{"add", "change", "remove", "delete-object"},
				Effect: v1alpha1.EffectKeep, Because: "someone else sets it",
			}},
		}},
		{c.Spec, v1alpha1.Cluster{
			Header: h("Cluster"), Labels: map[string]string{"stage": "testing", "topology.kubernetes.io/region": "hz"},
			Connection:   v1alpha1.Connection{Secret: &v1alpha1.SecretKey{Namespace: "ns", Name: "s", Key: "k"}},
			ImageMirrors: map[string]string{"registry.k8s.io": "mirror.example"}, Paused: true,
		}},
		{v.Spec, v1alpha1.Component{
			Header: h("Component"), Namespace: "kube-system", Description: "DNS", DependsOn: []string{"other"}, Adopt: true,
			Drift: v1alpha1.DriftRestore, Timeout: &metav1.Duration{Duration: 90 * time.Second},
			Danger: []v1alpha1.DangerRule{{Name: "all", Effect: v1alpha1.EffectDeny, Because: "no"}},
		}},
		{v.Images["coredns"], v1alpha1.Image{
			Repository: "registry.k8s.io/coredns/coredns", Tag: "1.10", Digest: "sha256:" + strings.Repeat("ab", 32),
			Into: &v1alpha1.ImagePaths{Ref: "a.ref", Registry: "a.registry", Repository: "a.repository", Tag: "a.tag", Digest: "a.digest"},
		}},
		{v.Chart, []registry.File{
			{Name: "Chart.yaml", Data: []byte("name: x\n")},
			{Name: "templates-a.yaml", Data: []byte("a")},
			{Name: "templates/b.yaml", Data: []byte("b")},
		}},
		{v.ImageValues(c.Spec.ImageMirrors)["a"], map[string]any{
			"ref":      "mirror.example/coredns/coredns:1.10@sha256:" + strings.Repeat("ab", 32),
			"registry": "mirror.example", "repository": "coredns/coredns", "tag": "1.10", "digest": "sha256:" + strings.Repeat("ab", 32),
		}},
		{c.Delivery("coredns").Values.Map(), map[string]any{"a": map[string]any{"b": []any{1.0}}}},
		{c.Delivery("coredns").Paused, true},
	} {
		if diff := cmp.Diff(x.want, x.got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestLimits: what is too large is named, and not read into memory.
func TestLimits(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 5<<20)
	cases := map[string]struct {
		why  string
		fill func(g *gittest.Repo)
		want string
	}{
		"File": {"One file of more than 5 MiB.", func(g *gittest.Repo) {
			g.Write("components/coredns/template/files/a.bin", large+"x")
		}, "components/coredns/template/files/a.bin: the file is larger than 5 MiB"},
		"Bytes": {"More than 50 MiB in all.", func(g *gittest.Repo) {
			g.Write("components/coredns/docs/0", large)
			for i := range 11 {
				g.Files[fmt.Sprintf("components/coredns/docs/%d", i)] = g.Files["components/coredns/docs/0"]
			}
		}, "components/coredns: the component is larger than 50 MiB"},
		"Files": {"More than 10,000 files.", func(g *gittest.Repo) {
			g.Write("components/coredns/f/0", "x")
			for i := range 10_000 {
				g.Files[fmt.Sprintf("components/coredns/f/%d", i)] = g.Files["components/coredns/f/0"]
			}
		}, "components/coredns: the component holds more than 10000 files"},
		"Name": {"A name with a control character.", func(g *gittest.Repo) {
			g.Write("components/coredns/template/a\x1bb", "x")
		}, `components/coredns/template: can't be read: components/coredns/template: file name "a\x1bb" holds a slash, backslash, control or invisible character`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gittest.NewRepo(t)
			writeFleet(g)
			c.fill(g)
			g.Write("clusters/a/coredns.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: HEAD\n")
			g.Commit()
			f := load(t, open(t, g.Path), "")
			d := f.Cluster("a").Delivery("coredns")
			if d.Version != nil || len(d.Problems) == 0 || d.Problems[0].Error() != c.want {
				t.Errorf("%s Problems: %v; want %q", c.why, d.Problems, c.want)
			}
			if b := f.Cluster("b").Delivery("coredns"); b.Problems.Err() != nil {
				t.Errorf("%s The other cluster is blocked: %v", c.why, b.Problems)
			}
		})
	}
}

// TestUnreadable: an object that can't be read blocks what it is for, and is
// read when it is there again. It is neither absence nor remembered.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"Own":      "clusters/a/coredns.yaml",
		"Cluster":  "clusters/a/cluster.yaml",
		"Template": "components/coredns/template/values.yaml",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gittest.NewRepo(t)
			writeFleet(g)
			hash := g.Files[path].Hash.String()
			object := filepath.Join(g.Path, "objects", hash[:2], hash[2:])
			data := readFile(t, object)
			if err := os.Remove(object); err != nil {
				t.Fatal(err)
			}
			r := open(t, g.Path)
			f := load(t, r, "")
			a := f.Cluster("a")
			if a == nil || a.Delivery("coredns") == nil || len(a.Problems)+len(a.Delivery("coredns").Problems) == 0 {
				t.Fatalf("cluster %+v; want its delivery, blocked", a)
			}
			if err := os.WriteFile(object, data, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := r.Git().Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := load(t, r, "").Problems.Err(); err != nil {
				t.Errorf("the object is back, and still: %v", err)
			}
		})
	}
}

func TestNothingKnown(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	r := open(t, g.Path)
	if _, err := r.Load(t.Context(), "nope"); err == nil || !strings.Contains(err.Error(), `"nope"`) {
		t.Errorf("unknown revision: %v", err)
	}
	g.Write("fleet.yaml", "a: [")
	g.Commit()
	if err := r.Git().Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := r.Load(t.Context(), "")
	problems, ok := errors.AsType[yamlfile.Problems](err)
	if !ok || len(problems) != 1 || problems[0].At.Line == 0 {
		t.Errorf("broken fleet.yaml: %v; want its Problems", err)
	}
	if _, err := registry.Open(t.Context(), gitrepo.Options{URL: t.TempDir(), CacheDir: t.TempDir()}); err == nil {
		t.Error("opened a folder that is no repository")
	}
}

// TestShared: what did not change is the same pointer in the next Fleet, so
// that whoever computed something of it need not do it again.
func TestShared(t *testing.T) {
	t.Parallel()
	const header = "apiVersion: keelson.io/v1alpha1\nkind: "
	layer := func(comment, dns, web string) string {
		return header + "Layer\nclusterSelector: {matchLabels: {stage: testing}}\n" + comment +
			"components:\n  dns:\n    values: {replicas: " + dns + "}\n  web:\n    values: {replicas: " + web + "}\n"
	}
	own := func(body string) string { return header + "MetaConfig\nversion: v1.0.0\n" + body }
	cases := map[string]struct {
		why  string
		path string
		data string // empty: only the tag
		tag  string
		// changed are the deliveries that are others: CLUSTER/COMPONENT.
		changed []string
		// produced is what was read and decoded.
		produced map[string]int
	}{
		"Note": {
			why:  "A README changes no delivery.",
			path: "README.md", data: "x", produced: map[string]int{"tree": 1},
		},
		"NoteInACluster": {
			why:  "A README in a cluster's folder changes no delivery either, although the folder has another hash.",
			path: "clusters/a/README.md", data: "x", produced: map[string]int{"tree": 3},
		},
		"Own": {
			why:  "A cluster's file of a component changes one delivery.",
			path: "clusters/a/dns.yaml", data: own("values: {x: 2}\n"),
			changed: []string{"a/dns"}, produced: map[string]int{"tree": 3, "MetaConfig": 1},
		},
		"Layer": {
			why:  "A line of a layer changes one component on the clusters that the layer selects.",
			path: "layers/10.yaml", data: layer("", "1", "7"),
			changed: []string{"a/web"}, produced: map[string]int{"tree": 2, "Layer": 1, "layer": 1},
		},
		"LayerOfOthers": {
			why:  "A layer that no cluster matches changes no delivery.",
			path: "layers/20.yaml", data: header + "Layer\nclusterSelector: {matchLabels: {stage: none}}\ncomponents:\n  dns:\n    values: {a: 1}\n",
			produced: map[string]int{"tree": 2, "Layer": 1, "layer": 1},
		},
		"Head": {
			why:  "A change in a component's folder affects only clusters that follow the branch.",
			path: "components/web/template/values.yaml", data: "a: 1\n",
			changed: []string{"c/web"}, produced: map[string]int{"tree": 4, "version": 1, "chart file": 1},
		},
		"Tag": {
			why: "A version that no file names is not read.",
			tag: "web/v1.1.0",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gittest.NewRepo(t)
			base := baseFleet(t)
			for path, content := range base {
				if strings.HasPrefix(path, "components/coredns/") {
					g.Write(strings.Replace(path, "coredns", "dns", 1), content)
					g.Write(strings.Replace(path, "coredns", "web", 1), content)
				}
			}
			g.Write("fleet.yaml", base["fleet.yaml"])
			g.Write("layers/10.yaml", layer("", "1", "2"))
			for _, name := range []string{"a", "b", "c"} {
				g.Write("clusters/"+name+"/cluster.yaml", base["clusters/a/cluster.yaml"])
				g.Write("clusters/"+name+"/dns.yaml", own("values: {x: 1}\n"))
				g.Write("clusters/"+name+"/web.yaml", own(""))
			}
			g.Write("clusters/b/cluster.yaml", base["clusters/b/cluster.yaml"])
			g.Write("clusters/c/cluster.yaml", strings.Replace(base["clusters/b/cluster.yaml"], "context: b", "context: c", 1))
			g.Write("clusters/c/web.yaml", header+"MetaConfig\nversion: HEAD\n")
			g.Commit()
			g.Tag("dns/v1.0.0")
			g.Tag("web/v1.0.0")
			r := open(t, g.Path)
			// What is held is kept, however many Loads ago it was read.
			for range 10 {
				load(t, r, "")
				g.Commit()
				if err := r.Git().Fetch(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			before := load(t, r, "")
			if err := before.Problems.Err(); err != nil {
				t.Fatal(err)
			}
			was := r.Produced()
			if c.data != "" {
				g.Write(c.path, c.data)
				g.Commit()
			}
			if c.tag != "" {
				g.Tag(c.tag)
			}
			if err := r.Git().Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
			after := load(t, r, "")
			if after == before || len(after.Clusters) != 3 {
				t.Fatalf("%s It was not loaded anew", c.why)
			}
			if d := cmp.Diff(c.changed, changed(before, after)); d != "" {
				t.Errorf("%s Deliveries that changed (-want +got):\n%s", c.why, d)
			}
			produced := r.Produced()
			for job, n := range was {
				if produced[job] -= n; produced[job] == 0 {
					delete(produced, job)
				}
			}
			if d := cmp.Diff(c.produced, produced, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("%s What was read and decoded (-want +got):\n%s", c.why, d)
			}
		})
	}
}

// changed lists the deliveries that are other values. The cluster of one is
// another, too, and that of none is the same.
func changed(before, after *registry.Fleet) []string {
	var out []string
	for i, c := range after.Clusters {
		n := len(out)
		for j, d := range c.Deliveries {
			if d != before.Clusters[i].Deliveries[j] {
				out = append(out, c.Name+"/"+d.Component)
			}
		}
		if (c == before.Clusters[i]) != (len(out) == n) {
			out = append(out, c.Name)
		}
	}
	return out
}

// TestIdentity: clusters whose files say the same share what is merged, so that
// it is there, and hashed, once.
func TestIdentity(t *testing.T) {
	t.Parallel()
	g := gittest.NewRepo(t)
	writeFleet(g)
	const header = "apiVersion: keelson.io/v1alpha1\nkind: "
	g.Write("layers/10.yaml", header+"Layer\nclusterSelector: {}\ncomponents:\n  coredns:\n    values: {a: 1}\n")
	g.Write("clusters/a/coredns.yaml", header+"MetaConfig\nversion: v1.0.0\nvalues: {b: 1, c: 2}\n")
	g.Write("clusters/b/coredns.yaml", header+"MetaConfig\nvalues: # in other words\n  c: 2\n  b: 1\nversion: v1.0.0\n")
	g.Commit()
	r := open(t, g.Path)
	f := load(t, r, "")
	a, b := f.Cluster("a").Delivery("coredns").Values, f.Cluster("b").Delivery("coredns").Values
	if a == b || a.Identity() == nil || a.Identity() != b.Identity() {
		t.Errorf("Values %p and %p, identities %v and %v; want two Values with one", a, b, a.Identity(), b.Identity())
	}
	if at, _ := b.Origin("b"); at.File != "clusters/b/coredns.yaml" || at.Line != 5 {
		t.Errorf("b of cluster b is set at %s", at)
	}
	g.Write("clusters/b/coredns.yaml", header+"MetaConfig\nversion: v1.0.0\nvalues: {b: 1, c: 3}\n")
	g.Commit()
	if err := r.Git().Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := load(t, r, "").Cluster("b").Delivery("coredns").Values
	if c.Identity() == a.Identity() {
		t.Error("other values have the same identity")
	}
	if (*registry.Values)(nil).Identity() != nil || registry.ValuesFrom(nil).Identity() == registry.ValuesFrom(nil).Identity() {
		t.Error("values of no repository must equal no others")
	}
}
