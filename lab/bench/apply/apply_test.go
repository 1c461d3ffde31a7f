package apply

import (
	"bytes"
	"log/slog"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/controllers/receiver"
	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/bench/addons"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"apply", "--nope"}, {"apply", "extra"}, {"apply", "--components=0"}, {"apply", "--quiet=1m"}, {"push", "--kustomizations=3"}, {"push", "--quiet=-1s"}, {"peer", "extra"},
	} {
		if err := Run(t.Context(), args[0], args[1:], &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "usage: ") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// published returns a fleet of three components, and its objects as Keelson renders them.
func published(t *testing.T) (m *measurement, objects []unstructured.Unstructured) {
	t.Helper()
	m = &measurement{dir: t.TempDir(), components: 3, names: []string{"a", "b", "c"}}
	if err := must.Try(func() { m.fleet = m.publish(t.Context(), "fleet", m.fleetFiles(), m.names) }); err != nil {
		t.Fatal(err)
	}
	return m, render(t, m)
}

func render(t *testing.T, m *measurement) []unstructured.Unstructured {
	t.Helper()
	repo, err := registry.Open(t.Context(), gitrepo.Options{URL: m.fleet.bare, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := repo.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := fleet.Problems.Err(); err != nil {
		t.Fatal(err)
	}
	var out []unstructured.Unstructured
	for _, d := range fleet.Clusters[0].Deliveries {
		target, err := renderer.New().Render(t.Context(), renderer.Request{Version: d.Version, Values: d.Values, Capabilities: renderer.DefaultCapabilities()})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range target.Objects {
			out = append(out, unstructured.Unstructured{Object: o.Content})
		}
	}
	return out
}

// levels returns the levels of the Deployments.
func levels(t *testing.T, objects []unstructured.Unstructured) map[string]string {
	t.Helper()
	out := map[string]string{}
	for i := range objects {
		if objects[i].GetKind() != "Deployment" {
			continue
		}
		if err := must.Try(func() {
			edit(&objects[i], func(env map[string]any) { out[objects[i].GetName()] = env["value"].(string) })
		}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestFleet: a push changes one field of exactly the intended components, and a push of nothing
// changes no component. Otherwise the figures would be wrong.
func TestFleet(t *testing.T) {
	t.Parallel()
	m, objects := published(t)
	if want := m.components * addons.ObjectsOfSmall; len(objects) != want {
		t.Fatalf("%d objects, want %d", len(objects), want)
	}
	if err := must.Try(func() { m.fleet.clone(t.Context(), m.fleet.bare) }); err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		why  string
		edit func(addons.Files)
		want map[string]string
	}{
		{"as it was made", nil, map[string]string{"a": "1", "b": "1", "c": "1"}},
		{"one component", func(f addons.Files) { m.setLevels(f, func(i int) string { return []string{"1", "2", "1"}[i] }) }, map[string]string{"a": "1", "b": "2", "c": "1"}},
		{"looked at again for nothing", func(f addons.Files) { m.setPass(f, "1") }, map[string]string{"a": "1", "b": "2", "c": "1"}},
	}
	for _, s := range steps {
		if s.edit != nil {
			files := addons.Files{}
			s.edit(files)
			if err := must.Try(func() { m.fleet.push(t.Context(), files, s.why) }); err != nil {
				t.Fatal(err)
			}
		}
		if got := levels(t, render(t, m)); !maps.Equal(got, s.want) {
			t.Errorf("%s: levels %v, want %v", s.why, got, s.want)
		}
	}
}

// TestFluxFiles: Flux gets the same objects, each in exactly one Kustomization.
func TestFluxFiles(t *testing.T) {
	t.Parallel()
	m, objects := published(t)
	for groups, want := range map[int][]string{
		1: {"./addons/group-0000"},
		2: {"./addons/group-0000", "./addons/group-0001"},
		3: {"./addons/group-0000", "./addons/group-0001", "./addons/group-0002"},
	} {
		p := &peer{measurement: m, groups: groups, objects: byComponent(objects)}
		files, err := must.TryGet(p.files)
		if err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, k := range documents(t, files["clusters/bench/addons.yaml"]) {
			path, _, _ := unstructured.NestedString(k.Object, "spec", "path")
			paths = append(paths, path)
		}
		var all []unstructured.Unstructured
		for path, content := range files {
			if !strings.HasPrefix(path, "addons/") {
				continue
			}
			if !slices.Contains(want, "./"+path[:strings.LastIndexByte(path, '/')]) {
				t.Errorf("%s is in no Kustomization's folder", path)
			}
			all = append(all, documents(t, content)...)
		}
		if !slices.Equal(paths, want) || len(all) != len(objects) {
			t.Errorf("%d groups: Kustomizations of %q, %d objects; want %q, %d", groups, paths, len(all), want, len(objects))
		}
		changed, err := must.TryGet(func() addons.Files { return p.levels([]int{1}, func(int) string { return "7" }) })
		if err != nil {
			t.Fatal(err)
		}
		for path, content := range changed {
			if got := levels(t, documents(t, content)); path != p.path(1) || !maps.Equal(got, map[string]string{"b": "7"}) {
				t.Errorf("a change of b is %v in %s", got, path)
			}
		}
	}
}

func documents(t *testing.T, data []byte) []unstructured.Unstructured {
	t.Helper()
	var out []unstructured.Unstructured
	for one := range strings.SplitSeq(strings.TrimPrefix(string(data), "---\n"), "---\n") {
		var u unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(one), &u.Object); err != nil {
			t.Fatal(err)
		}
		out = append(out, u)
	}
	return out
}

// TestWebhook: Keelson's own receiver accepts the sent webhook, and rejects it with another secret.
func TestWebhook(t *testing.T) {
	t.Parallel()
	fetched := 0
	server := httptest.NewServer(receiver.New(receiver.Options{
		Secrets: func() ([]receiver.Secret, error) { return []receiver.Secret{"a secret that is long enough"}, nil },
		Fetch:   func() { fetched++ }, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}).Server().Handler)
	defer server.Close()
	if err := (webhook{url: server.URL + "/hook", secret: "a secret that is long enough"}).send(t.Context(), "http://git.example/fleet.git"); err != nil || fetched != 1 {
		t.Errorf("signed: %v, %d fetches", err, fetched)
	}
	if err := (webhook{url: server.URL + "/hook", secret: "a guess"}).send(t.Context(), "http://git.example/fleet.git"); err == nil || fetched != 1 {
		t.Errorf("signed with a guess: %v, %d fetches", err, fetched)
	}
}

// TestUnwanted: requests that a converged fleet must not make are counted as unwanted.
func TestUnwanted(t *testing.T) {
	t.Parallel()
	event := func(user, verb, group, resource string) audit.Event {
		return audit.Event{User: user, Verb: verb, Stage: audit.ResponseComplete, Resource: audit.Resource{Group: group, Resource: resource}}
	}
	cases := map[string]struct {
		why   string
		event audit.Event
		want  int
	}{
		"Write":  {"It is work for nothing.", event(cluster.Keelson, "patch", "apps", "deployments"), 1},
		"Read":   {"So is this.", event(cluster.Keelson, "get", "", "secrets"), 1},
		"List":   {"A list is no watch.", event(cluster.Keelson, "list", "apps", "deployments"), 1},
		"Watch":  {"Something has to tell of changes.", event(cluster.Keelson, "watch", "apps", "deployments"), 0},
		"Lease":  {"Replicas say so that they are there.", event(cluster.Keelson, "update", "coordination.k8s.io", "leases"), 0},
		"Others": {"Who else asks is not measured.", event(cluster.Admin, "patch", "apps", "deployments"), 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &measurement{out: &bytes.Buffer{}}
			if got := m.unwanted([]audit.Event{tc.event}); got != tc.want {
				t.Errorf("%d unwanted, want %d; %s", got, tc.want, tc.why)
			}
			if got := calls([]audit.Event{tc.event}); got != tc.want {
				t.Errorf("%d calls, want %d; %s", got, tc.want, tc.why)
			}
		})
	}
}
