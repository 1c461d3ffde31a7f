package preview_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/controllers/preview"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
)

// fleet is a fleet repository: clusters a, b and c with the component web, which
// runs a Deployment and has a Secret.
type fleet struct {
	t   *testing.T
	dir string
}

const (
	header     = "apiVersion: keelson.io/v1alpha1\nkind: "
	deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: {{ .Values.app }}}}
  template:
    metadata: {labels: {app: {{ .Values.app }}}}
    spec: {containers: [{name: web, image: "web:{{ .Values.tag }}"}]}
---
apiVersion: v1
kind: Secret
metadata: {name: web}
stringData: {password: {{ .Values.password }}}
`
)

func newFleet(t *testing.T, clusters ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir()}
	f.git("init", "-q", "-b", "main")
	f.write("fleet.yaml", header+"Fleet\nname: test\n")
	f.component("web", deployment)
	f.write("layers/10-base.yaml", header+"Layer\nclusterSelector: {}\ncomponents:\n  web:\n    version: HEAD\n    values: {replicas: 2, app: web, tag: v1, password: hunter2}\n")
	for _, name := range clusters {
		f.cluster(name)
	}
	return f
}

func (f *fleet) component(name, template string) {
	f.t.Helper()
	f.write("components/"+name+"/component.yaml", header+"Component\nnamespace: "+name+"\n")
	f.write("components/"+name+"/template/Chart.yaml", "apiVersion: v2\nname: "+name+"\nversion: 1.0.0\n")
	f.write("components/"+name+"/template/templates/all.yaml", template)
}

func (f *fleet) cluster(name string) {
	f.t.Helper()
	f.write("clusters/"+name+"/cluster.yaml", header+"Cluster\nlabels: {name: "+name+"}\nconnection: {context: "+name+"}\n")
}

// values are what one cluster's file says of web, behind its version.
func (f *fleet) values(cluster, values string) {
	f.t.Helper()
	f.write("clusters/"+cluster+"/web.yaml", header+"MetaConfig\n"+values)
}

func (f *fleet) write(name, content string) {
	f.t.Helper()
	path := filepath.Join(f.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) remove(name string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.dir, filepath.FromSlash(name))); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) edit(name, from, to string) {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.dir, filepath.FromSlash(name)))
	if err != nil || !strings.Contains(string(data), from) {
		f.t.Fatalf("%s does not say %q: %v", name, from, err)
	}
	f.write(name, strings.Replace(string(data), from, to, 1))
}

func (f *fleet) git(args ...string) string {
	f.t.Helper()
	c := exec.CommandContext(f.t.Context(), "git", args...)
	c.Dir = f.dir
	c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull,
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com")
	out, err := c.CombinedOutput()
	if err != nil {
		f.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (f *fleet) commit() {
	f.t.Helper()
	f.git("add", "-A")
	f.git("commit", "-q", "-m", "x")
}

// preview compares the last commit with the files as they are now, committed.
func (f *fleet) preview() *preview.Preview {
	f.t.Helper()
	p, err := f.make(1 << 30)
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// make is preview, with so many bytes for the differences.
func (f *fleet) make(bytes int64) (*preview.Preview, error) {
	f.t.Helper()
	base := f.git("rev-parse", "HEAD")
	f.commit()
	repo, err := registry.Open(f.t.Context(), gitrepo.Options{URL: f.dir, CacheDir: f.t.TempDir()})
	if err != nil {
		f.t.Fatal(err)
	}
	after, err := repo.Load(f.t.Context(), "")
	if err != nil {
		f.t.Fatal(err)
	}
	before, err := repo.LoadCommit(f.t.Context(), base)
	if err != nil {
		f.t.Fatal(err)
	}
	cache, caps := renderer.NewCache(renderer.New(), 64<<20), renderer.NewExtensions(renderer.DefaultCapabilities())
	return preview.Make(f.t.Context(), preview.Options{
		Base: before, Head: after, Workers: 2, Bytes: bytes, MaskKey: []byte("key"),
		Now: time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC), ClusterTakes: time.Minute, // a Monday
		Render: func(c *registry.Cluster) preview.Render { return renderer.NewTargets(cache, c, caps).Render },
	})
}

// groups are those of a preview, a line each.
func groups(p *preview.Preview) []string {
	out := []string{}
	for i := range p.Groups {
		g := &p.Groups[i]
		out = append(out, fmt.Sprintf("%s on %s: %s", g.Title(), strings.Join(g.Clusters, " "), g.Summary()))
	}
	return out
}

func wantGroups(t *testing.T, p *preview.Preview, want ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), groups(p)); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}

// What changes, by what is written: a group a difference, whatever the clusters
// differ in beside it.
func TestGroups(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*fleet)
		want   []string
	}{
		// These edits change no object.
		"AComment":  {func(f *fleet) { f.edit("layers/10-base.yaml", "kind:", "# why\nkind:") }, nil},
		"AnElement": {func(f *fleet) { f.edit("layers/10-base.yaml", "replicas: 2", "replicas: 2, unused: 1") }, nil},
		// b has replicas of its own.
		"ALayer": {
			func(f *fleet) { f.edit("layers/10-base.yaml", "replicas: 2", "replicas: 4") },
			[]string{"web HEAD on a c: 1 to update"},
		},
		// The template of the pods changes: 2 on a, 5 on b, 2 on c.
		"AnImage": {
			func(f *fleet) { f.edit("layers/10-base.yaml", "tag: v1", "tag: v2") },
			[]string{"web HEAD on a b c: 1 to update; 9 pods restart"},
		},
		"OneCluster": {
			func(f *fleet) { f.values("c", "values: {tag: v3}\n") },
			[]string{"web HEAD on c: 1 to update; 2 pods restart"},
		},
		"TwoDifferences": {
			func(f *fleet) {
				f.edit("layers/10-base.yaml", "tag: v1", "tag: v2")
				f.values("c", "values: {tag: v3}\n")
			},
			[]string{"web HEAD on a b: 1 to update; 7 pods restart", "web HEAD on c: 1 to update; 2 pods restart"},
		},
		"ASelector": { // no update can change it
			func(f *fleet) { f.edit("layers/10-base.yaml", "app: web", "app: site") },
			[]string{"web HEAD on a b c: 1 held"},
		},
		"AnObjectGoes": {
			func(f *fleet) { f.component("web", deployment[:strings.Index(deployment, "---")]) },
			[]string{"web HEAD on a b c: 1 to delete, 1 warning"},
		},
		"AnObjectComes": {
			func(f *fleet) {
				f.component("web", deployment+"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n")
			},
			[]string{"web HEAD on a b c: 1 to create"},
		},
		"AComponentComes": {
			func(f *fleet) {
				f.component("more", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n")
				f.write("clusters/a/more.yaml", header+"MetaConfig\nversion: HEAD\n")
			},
			[]string{"more HEAD (new) on a: 1 to create"},
		},
		"Absent": {
			func(f *fleet) { f.values("a", "version: HEAD\nabsent: true\n") },
			[]string{"web HEAD → absent on a: 2 to delete, 1 warning"},
		},
		"AbsentThoughGitDidNotHaveIt": { // the cluster may
			func(f *fleet) {
				f.component("more", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n")
				f.write("clusters/a/more.yaml", header+"MetaConfig\nversion: HEAD\nabsent: true\n")
			},
			[]string{"more → absent on a: the changes are unknown"},
		},
		"Paused": {
			func(f *fleet) {
				f.edit("layers/10-base.yaml", "tag: v1", "tag: v2")
				f.values("a", "paused: true\n")
			},
			[]string{"web HEAD on b c: 1 to update; 7 pods restart", "web HEAD (paused) on a: 1 to update; 2 pods restart"},
		},
		"Sealed": { // seen by its hash alone
			func(f *fleet) { f.edit("layers/10-base.yaml", "hunter2", "hunter3") },
			[]string{"web HEAD on a b c: 1 to update"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "a", "b", "c")
			f.values("b", "values: {replicas: 5}\n")
			f.commit()
			c.change(f)
			p := f.preview()
			wantGroups(t, p, c.want...)
			if len(p.Problems) > 0 {
				t.Errorf("problems: %v", p.Problems)
			}
			data, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			if text := string(data) + p.Markdown(); strings.Contains(text, "hunter") {
				t.Errorf("it shows a Secret:\n%s", text)
			}
		})
	}
}

// The hash of a deletion is of the object's UID, and that of a Secret's data is made with a
// key of the cluster: what a preview could print would approve nothing.
func TestHashesThatCannotBeKnown(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a")
	more := "apiVersion: v1\nkind: Namespace\nmetadata: {name: goes}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: login}\nimmutable: true\nstringData: {a: b}\n"
	f.component("web", deployment+"---\n"+more)
	f.commit()
	f.component("web", deployment+"---\n"+strings.ReplaceAll(more[strings.Index(more, "---")+4:], "a: b", "a: c"))
	if text := f.preview().Markdown(); !strings.Contains(text, "HELD") || !strings.Contains(text, "Namespace goes") || strings.Contains(text, "to approve") {
		t.Errorf("want a deletion that is held, and no hash of it:\n%s", text)
	}
}

// A tag that renders to the same objects is another version still.
func TestSameObjects(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a")
	f.commit()
	f.git("tag", "web/v1.0.0")
	f.git("tag", "web/v1.1.0")
	f.edit("layers/10-base.yaml", "version: HEAD", "version: v1.0.0")
	f.commit()
	f.edit("layers/10-base.yaml", "version: v1.0.0", "version: v1.1.0")
	wantGroups(t, f.preview(), "web v1.0.0 → v1.1.0 on a: the same objects")
}

// What leaves git is no deletion, and a cluster that comes is told of.
func TestMembership(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b")
	f.component("more", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n")
	f.write("clusters/a/more.yaml", header+"MetaConfig\nversion: HEAD\n")
	f.commit()
	f.git("rm", "-qr", "clusters/b", "clusters/a/more.yaml")
	f.cluster("z")
	p := f.preview()
	wantGroups(t, p, "web HEAD (new) on z: 2 to create")
	if diff := cmp.Diff([]preview.Left{{Component: "more", Clusters: []string{"a"}}}, p.Left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]string{{"z"}, {"b"}}, [][]string{p.Joined, p.Gone}); diff != "" {
		t.Errorf("joined and gone (-want +got):\n%s", diff)
	}
	for _, text := range []string{"`more` leaves git on 1 cluster, where its objects stay: `a`", "1 cluster is new: `z`", "1 cluster leaves git, and nothing there is touched: `b`"} {
		if !strings.Contains(p.Markdown(), text) {
			t.Errorf("the Markdown does not say %q:\n%s", text, p.Markdown())
		}
	}
}

// A mistake of the head is told with its place and clusters; one that was there
// before is told apart.
func TestProblems(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b")
	f.values("b", "values: {tag: null}\n")
	f.component("old", "{{ fail \"long broken\" }}")
	f.write("clusters/b/old.yaml", header+"MetaConfig\nversion: HEAD\n")
	f.commit()
	f.edit("components/web/template/templates/all.yaml", "{{ .Values.tag }}", "{{ required \"tag!\" .Values.tag }}")
	f.write("clusters/b/old.yaml", header+"MetaConfig\nversion: HEAD\nvalues: {x: 1}\n")
	p := f.preview()
	wantGroups(t, p)
	if !p.Broken() || len(p.Problems) != 2 {
		t.Fatalf("broken %t, problems %v", p.Broken(), p.Problems)
	}
	for _, one := range p.Problems {
		old := strings.Contains(one.Message, "long broken")
		if one.Before != old || !slices.Equal(one.Clusters, []string{"b"}) || !old && !strings.Contains(one.At.String(), "templates/all.yaml:10") {
			t.Errorf("%+v", one)
		}
	}
	if text := p.Markdown(); !strings.Contains(text, "### Blocked: nothing of this changes\n\n- `components/web/template/templates/all.yaml:10") {
		t.Errorf("the new one does not stand on top:\n%s", text)
	}
}

// What an API server would refuse is told with the value that is to blame, and what would
// change is shown all the same. One that the base has, too, is told apart.
func TestRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b")
	f.values("b", "values: {replicas: many}\n")
	f.commit()
	f.values("a", "values: {replicas: two}\n")
	f.values("b", "values: {replicas: many, tag: v2}\n")
	p := f.preview()
	if !p.Broken() || len(p.Problems) != 2 || len(p.Groups) != 2 {
		t.Fatalf("broken %t, problems %v, groups %v", p.Broken(), p.Problems, p.Groups)
	}
	for i, says := range []string{`clusters/a/web.yaml:3:10: Deployment.apps web/web: .spec.replicas must be of type integer, and is "two"`, "clusters/b/web.yaml:3:10: "} {
		one := p.Problems[i]
		if !one.Refused || one.Before != (i == 1) || !strings.HasPrefix(one.Error(), says) {
			t.Errorf("%+v, want %s", one, says)
		}
	}
	if text := p.Markdown(); !strings.Contains(text, "### Refused: an API server does not take this\n\n- `clusters/a/web.yaml:3:10") || !strings.Contains(text, "(as before)") {
		t.Errorf("%s", text)
	}
}

// A preview names a component whose changes are unknown. The base was broken, so its former objects
// are unknown. A component that is no longer paused changes too, by an unknown amount.
func TestUnknown(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b")
	f.values("a", "values: {replicas: [}\n")
	f.values("b", "paused: true\n")
	f.commit()
	f.values("a", "values: {replicas: 1}\n")
	f.values("b", "")
	p := f.preview()
	wantGroups(t, p, "web HEAD on a: the changes are unknown", "web HEAD on b: the changes are unknown")
	for i, says := range []string{"clusters/a/web.yaml:3", "no longer paused"} {
		if got := p.Groups[i].Unknown; !strings.Contains(got, says) {
			t.Errorf("%q does not say %q", got, says)
		}
	}
}

// One component that can't be compared is told of, and hides no other.
func TestIncomparable(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a")
	f.component("odd", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd}\ndata: [a, b]\n")
	f.write("clusters/a/odd.yaml", header+"MetaConfig\nversion: HEAD\n")
	f.commit()
	f.edit("components/odd/template/templates/all.yaml", "data: [a, b]", "data: {a: b}")
	f.values("a", "values: {replicas: 7}\n")
	p := f.preview()
	wantGroups(t, p, "odd HEAD on a: the changes are unknown", "web HEAD on a: 1 to update")
	if got := p.Groups[0].Unknown; !strings.Contains(got, "ConfigMap odd/odd") {
		t.Errorf("%q does not name the object", got)
	}
}

// A kind that comes with one component changes what another one, which depends on
// it, renders to.
func TestDependents(t *testing.T) {
	t.Parallel()
	crd := func(versions string) string {
		return "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.demo.example}\nspec:\n" +
			"  group: demo.example\n  scope: Cluster\n  names: {kind: Thing, plural: things}\n  versions:\n" + versions
	}
	one := "    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}\n"
	two := "    - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}\n"
	f := newFleet(t, "a")
	f.component("things", crd(one))
	f.component("user", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: user}\ndata: {v2: {{ .Capabilities.APIVersions.Has \"demo.example/v2\" | quote }}}\n")
	f.edit("components/user/component.yaml", "namespace: user", "namespace: user\ndependsOn: [things]")
	f.write("clusters/a/things.yaml", header+"MetaConfig\nversion: HEAD\n")
	f.write("clusters/a/user.yaml", header+"MetaConfig\nversion: HEAD\n")
	// Another one depends on that, and is looked at before both.
	f.component("another", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: another}\ndata: {v2: {{ .Capabilities.APIVersions.Has \"demo.example/v2\" | quote }}}\n")
	f.edit("components/another/component.yaml", "namespace: another", "namespace: another\ndependsOn: [user]")
	f.write("clusters/a/another.yaml", header+"MetaConfig\nversion: HEAD\n")
	f.commit()
	f.component("things", crd(one+two))
	p := f.preview()
	wantGroups(t, p, "another HEAD on a: 1 to update", "things HEAD on a: 1 to update", "user HEAD on a: 1 to update")
}

// What depends on something that is broken is blocked by that, and so is nothing else;
// what a cluster that was broken as a whole has got is not known.
func TestBlockedByOthers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b")
	f.component("lower", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: lower}\n")
	f.component("upper", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: upper}\ndata: {x: {{ .Values.x | quote }}}\n")
	f.edit("components/upper/component.yaml", "namespace: upper", "namespace: upper\ndependsOn: [lower]")
	f.write("clusters/a/lower.yaml", header+"MetaConfig\nversion: HEAD\n")
	f.write("clusters/a/upper.yaml", header+"MetaConfig\nversion: HEAD\nvalues: {x: 1}\n")
	f.edit("clusters/b/cluster.yaml", "connection", "connexion")
	f.commit()
	f.write("clusters/a/lower.yaml", header+"MetaConfig\nversion: v9.9.9\n")
	f.write("clusters/a/upper.yaml", header+"MetaConfig\nversion: HEAD\nvalues: {x: 2}\n")
	f.values("a", "values: {replicas: 7}\n")
	f.edit("clusters/b/cluster.yaml", "connexion", "connection")
	p := f.preview()
	wantGroups(t, p, "web HEAD on b: the changes are unknown", "web HEAD on a: 1 to update")
	if len(p.Problems) != 1 || !strings.Contains(p.Problems[0].Message, "v9.9.9") || !p.Broken() {
		t.Errorf("problems: %+v", p.Problems)
	}
}

// A comment must fit, however much changes: what is urgent is there, and what was
// cut is counted. Nothing in it ends the span or block that it stands in.
func TestMarkdownFits(t *testing.T) {
	t.Parallel()
	var clusters []string
	for i := range 120 {
		clusters = append(clusters, fmt.Sprintf("cluster-with-a-long-name-%03d", i))
	}
	f := newFleet(t, clusters...)
	f.component("data", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: data}\ndata: {text: {{ .Values.text | quote }}}\n")
	f.edit("layers/10-base.yaml", "  web:", "  data: {version: HEAD, values: {text: x}}\n  web:")
	f.commit()
	f.edit("layers/10-base.yaml", "app: web", "app: site")
	for i, name := range clusters {
		text := fmt.Sprintf("%d ```\n# heading @everyone <b>\n", i) + strings.Repeat("line\n", i)
		f.write("clusters/"+name+"/data.yaml", header+"MetaConfig\nvalues: {text: "+fmt.Sprintf("%q", text)+"}\n")
	}
	p := f.preview()
	if len(p.Groups) != 121 || p.Clusters != 120 || p.Deliveries != 240 {
		t.Fatalf("%d groups on %d clusters, %d deliveries", len(p.Groups), p.Clusters, p.Deliveries)
	}
	text := p.Markdown()
	if len(text) > 64<<10 || len(text) < 32<<10 {
		t.Errorf("%d bytes", len(text))
	}
	for _, says := range []string{
		"2 components change on 120 clusters: 120 objects updated", "`web HEAD` on 120 clusters", "Without their diffs, for want of room", "groups more",
		"<details><summary>the 120 clusters</summary>\n\n`cluster-with-a-long-name-000`, ", " more\n\n</details>\n\n#### ", // what changes is in sight
	} {
		if !strings.Contains(text, says) {
			t.Errorf("it does not say %q:\n%s", says, text)
		}
	}
	if top, _, _ := strings.Cut(text, "\n### `"); !strings.Contains(top, "Held, denied, kept or not known") {
		t.Errorf("what is held does not stand on top:\n%s", top)
	}
	fence := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case fence == "" && strings.HasSuffix(line, "diff") && strings.HasPrefix(line, "```"):
			fence = strings.TrimSuffix(line, "diff")
		case line == fence:
			fence = ""
		case fence == "" && strings.Contains(line, "@everyone"):
			t.Errorf("outside of a block: %q", line)
		}
	}
	if fence != "" {
		t.Error("a block does not end")
	}
}
