package cmd_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why      string
		change   func(*fleet)
		args     []string
		wantCode int
		wantOut  string
		wantErr  string
		// unless is what the command may say instead on a busy machine: it is run again.
		unless string
	}{
		"NoProblems": {
			why:     "The counts show what was looked at; both clusters share a render of gadgets.",
			change:  func(*fleet) {},
			wantOut: "2 components × 2 clusters: 4 deliveries, 3 distinct renders, no problems\n",
		},
		"EveryMistakeAtOnce": {
			why: "One run per mistake would make a person run it ten times.",
			change: func(f *fleet) {
				f.edit("fleet.yaml", "name: test", "title: test")
				f.edit("clusters/prod/web.yaml", "values:", "vlaues:")
				f.commit()
			},
			wantCode: 1,
			wantOut: `clusters/prod/web.yaml:3:1: unknown key "vlaues" (did you mean "values"?)
fleet.yaml:1:1: name is missing
fleet.yaml:3:1: unknown key "title"
`,
		},
		"TemplateOnSeveralClusters": {
			why: "One mistake in a chart is one problem, however many clusters it hits.",
			change: func(f *fleet) {
				f.edit("components/web/template/templates/web.yaml", "{{ .Values.replicas }}", `{{ fail "no replicas" }}`)
				f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
				f.commit()
			},
			wantCode: 1,
			wantOut:  "components/web/template/templates/web.yaml:8:16: no replicas (on prod, test)\n",
		},
		"ChartWithoutEnd": {
			why: "A chart that never ends is ended, and the others are rendered all the same.",
			change: func(f *fleet) {
				f.edit("components/web/template/templates/web.yaml", "{{ .Values.replicas }}", "{{ range 1000000000000 }}{{ end }}")
				f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
				f.commit()
			},
			args:     []string{"--render-timeout", "1s"},
			unless:   "render web for ", // the machine was too busy to tell that it never ends
			wantCode: 1,
			wantOut: "components/web/template/Chart.yaml: rendering took longer than 1s and was ended: does a template loop without end? " +
				"(look at components/web/template/templates/web.yaml:8) (on prod, test)\n2 components × 2 clusters: 4 deliveries, 3 distinct renders, 1 problem\n",
		},
		"ChartByChance": {
			why: "A chart that renders to something else each time would change its clusters each time.",
			change: func(f *fleet) {
				f.edit("components/web/template/templates/web.yaml", "{{ .Values.replicas }}", "{{ randNumeric 9 }}")
				f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
				f.commit()
			},
			wantCode: 1,
			wantOut:  "components/web/template/templates/web.yaml:8: the chart renders to something else each time, by randNumeric and would change",
		},
		"UnusedValue": {
			why: "A typing error in meta-config would be a silent one.",
			change: func(f *fleet) {
				f.edit("clusters/prod/web.yaml", "values:", "values:\n  replcas: 3")
				f.commit()
			},
			wantOut: "no problems\n",
			wantErr: "warning: clusters/prod/web.yaml:4:3: the chart has no use for the value replcas (did you mean \"replicas\"?)\n",
		},
		"DependencyBroken": {
			why: "Without the kinds of its dependency, what is said of web could be wrong: gadgets is repaired first.",
			change: func(f *fleet) {
				f.edit("components/gadgets/template/templates/config.yaml", `"1"`, `{{ fail "broken" }}`)
				f.edit("layers/10-base.yaml", "gadgets:\n    version: v1.0.0", "gadgets:\n    version: HEAD")
				f.commit()
			},
			wantCode: 1,
			wantOut:  "components/gadgets/template/templates/config.yaml:6:12: broken (on prod, test)\n",
		},
		"OnlyWhatIsCommitted": {
			why:     "What the controller will read counts.",
			change:  func(f *fleet) { f.edit("fleet.yaml", "name: test", "title: test") },
			wantOut: "no problems\n",
		},
		"WorkTree": {
			why:      "A mistake is best found before the commit.",
			change:   func(f *fleet) { f.edit("fleet.yaml", "name: test", "title: test") },
			args:     []string{"--worktree"},
			wantCode: 1,
			wantOut:  `fleet.yaml:3:1: unknown key "title"`,
		},
		"Revision": {
			why: "A branch can be looked at without a checkout.",
			change: func(f *fleet) {
				f.git("checkout", "-q", "-b", "other")
				f.edit("fleet.yaml", "name: test", "title: test")
				f.commit()
				f.git("checkout", "-q", "main")
			},
			args:     []string{"--revision", "other"},
			wantCode: 1,
			wantOut:  `fleet.yaml:3:1: unknown key "title"`,
		},
		"DangerRule": {
			why: "A condition that is no CEL would block the delivery.",
			change: func(f *fleet) {
				f.edit("fleet.yaml", "name: test", "name: test\ndanger:\n- {name: mine, path: .spec, when: \"new <\", effect: hold, because: they say so}")
				f.commit()
			},
			wantCode: 1,
			wantOut:  `fleet.yaml: danger rule "mine": when: line 1, column`,
		},
		"HealthRule": {
			why: "A condition that is no CEL would make its objects never healthy, so that everything waits for them.",
			change: func(f *fleet) {
				f.edit("components/web/component.yaml", "namespace: web", "namespace: web\nhealth:\n- match: {kinds: [Widget]}\n  current: object.status <\n  because: widgets have phases")
				f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
				f.commit()
			},
			wantCode: 1,
			wantOut:  "components/web/component.yaml:6:12: health rule 1: current: line 1, column",
		},
		"Misfit": {
			why: "A chart without a schema takes any value, and the API server would refuse what comes of it: the value is what has to be mended.",
			change: func(f *fleet) {
				f.edit("clusters/prod/web.yaml", "replicas: 3", "replicas: three")
				f.commit()
			},
			wantCode: 1,
			wantOut: `clusters/prod/web.yaml:4:3: Deployment.apps web/web: .spec.replicas must be of type integer, and is "three" ` +
				"(on prod) (the value is that of .replicas alone; the template is at components/web/template/templates/web.yaml@web/v1.0.0:2)",
		},
		"MisfitOfTheChart": {
			why: "No value of the meta-config is at fault; a kind of a CRD in git is known, too.",
			change: func(f *fleet) {
				f.edit("components/web/template/templates/web.yaml", "spec: {size: 1}", "spec: {size: large}")
				f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
				f.commit()
			},
			wantCode: 1,
			wantOut:  `Gadget.demo.example web: .spec.size must be of type integer, and is "large" (on prod, test)` + "\n2 components",
		},
		"MisfitOfAnotherVersion": {
			why: "A cluster may have a Kubernetes that knows the field.",
			change: func(f *fleet) {
				f.edit("components/web/template/templates/web.yaml", "selector:\n", "selektor: {}\n  selector:\n")
				f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
				f.commit()
			},
			wantOut: "no problems\n",
			wantErr: "Deployment.apps web/web: .spec.selektor is unknown, and an API server drops it\n",
		},
		"ImageOfOneCluster": {
			why: "What was tested elsewhere is not what it runs.",
			change: func(f *fleet) {
				f.edit("components/web/template/templates/web.yaml", "{{ .Values.images.web.ref }}", "registry.example/web:{{ .Values.image.tag }}")
				f.edit("components/web/template/values.yaml", "replicas: 1", "replicas: 1\nimage: {tag: v1}")
				f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
				f.edit("clusters/prod/web.yaml", "replicas: 3", "image: {tag: v2}")
				f.commit()
			},
			wantOut: "no problems\n",
			wantErr: "warning: clusters/prod/web.yaml:4:11: web HEAD: container web of Deployment.apps web/web runs registry.example/web:v1 on test, registry.example/web:v2 on prod: " +
				"the image of a version is to be the same everywhere, so map it in components/web/images.yaml (into:)\n",
		},
		"ImageOfAMirror": {
			why: "The same image comes from elsewhere.",
			change: func(f *fleet) {
				f.edit("clusters/prod/cluster.yaml", "labels:", "imageMirrors: {registry.example: mirror.example/all}\nlabels:")
				f.commit()
			},
			wantOut: "2 components × 2 clusters: 4 deliveries, 3 distinct renders, no problems\n",
		},
		"NotMerged": {
			why: "A tag needs no review: a person should know that the branch doesn't have its commit.",
			change: func(f *fleet) {
				f.git("checkout", "-q", "-b", "topic")
				f.git("commit", "-q", "--allow-empty", "-m", "not reviewed")
				f.git("tag", "web/v1.0.9")
				f.git("checkout", "-q", "-")
				f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: v1.0.9")
				f.commit()
			},
			wantOut: "no problems",
			wantErr: "warning: layers/10-base.yaml:8:14: web v1.0.9 is not merged: the commit of its tag is not in the past of ",
		},
		"NotAFleet": {
			why: "Not knowing is trouble, and no list of problems.",
			change: func(f *fleet) {
				f.git("rm", "-q", "fleet.yaml")
				f.commit()
			},
			wantCode: 2,
			wantOut:  "fleet.yaml is missing",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "")
			c.change(f)
			result := f.keelson(append([]string{"validate"}, c.args...)...)
			for c.unless != "" && strings.Contains(result.err, c.unless) && t.Context().Err() == nil {
				result = f.keelson(append([]string{"validate"}, c.args...)...)
			}
			result.want(t, c.wantCode).says(t, c.wantOut, c.wantErr)
		})
	}
}

// TestRenderCacheDir: the second run renders nothing, or it would write its
// targets anew, and prints the same.
func TestRenderCacheDir(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	dir := filepath.Join(t.TempDir(), "rendered")
	written := func() map[string]time.Time {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) == 0 {
			t.Fatalf("%d files are kept, %v", len(entries), err)
		}
		out := map[string]time.Time{}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			out[e.Name()] = info.ModTime()
		}
		return out
	}
	first := f.keelson("render", "prod", "--render-cache-dir", dir).want(t, 0)
	kept := written()
	if second := f.keelson("render", "prod", "--render-cache-dir", dir).want(t, 0); second.out != first.out {
		t.Errorf("first\n%s\nthen\n%s", first.out, second.out)
	}
	if d := cmp.Diff(kept, written()); d != "" {
		t.Errorf("files (-first +second):\n%s", d)
	}
}

func TestValidateJSON(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	if got := f.keelson("validate", "-o", "json").want(t, 0).out; got != "[]\n" {
		t.Errorf("without problems: got %q", got)
	}
	f.edit("components/web/template/templates/web.yaml", "{{ .Values.replicas }}", `{{ fail "no replicas" }}`)
	f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
	f.commit()
	var got []map[string]any
	decode(t, f.keelson("validate", "-o", "json").want(t, 1).out, &got)
	want := []map[string]any{{
		"at":       map[string]any{"file": "components/web/template/templates/web.yaml", "line": 8.0, "column": 16.0},
		"message":  "no replicas",
		"clusters": []any{"prod", "test"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	cases := map[string]struct {
		why      string
		args     []string
		wantCode int
		says     []string
		saysNot  []string
	}{
		"Component": {
			why:  "The objects, each with its source; a cluster-scoped kind of a dependency gets no namespace.",
			args: []string{"prod", "web"},
			says: []string{
				"---\n# Source: components/web/template/templates/web.yaml@web/v1.0.0:2\napiVersion: apps/v1\nkind: Deployment\n",
				"replicas: 3", "image: registry.example/web:v1.0.0", "password: '***'",
				"kind: Gadget\nmetadata:\n  labels:\n    keelson.io/component: web\n  name: web\nspec:",
			},
			saysNot: []string{"hunter2", "CustomResourceDefinition"},
		},
		"Cluster": {
			why:  "Without a component, all of them.",
			args: []string{"test"},
			says: []string{"kind: CustomResourceDefinition", "kind: ConfigMap", "replicas: 2"},
		},
		"ShowSecrets": {
			why:  "Only who asks for them sees them.",
			args: []string{"prod", "web", "--show-secrets"},
			says: []string{"password: hunter2"},
		},
		"KubeVersion": {
			why:  "A chart may ask for the version, as with helm template.",
			args: []string{"prod", "web", "--kube-version", "v1.30.1"},
			says: []string{"example.com/kubernetes: v1.30.1"},
		},
		"NoCluster": {
			why:  "The error says what there is.",
			args: []string{"prd"}, wantCode: 2,
			says: []string{`there is no cluster "prd" at revision`, "there are prod, test"},
		},
		"NoComponent": {
			why:  "As above.",
			args: []string{"prod", "dns"}, wantCode: 2,
			says: []string{`cluster prod has no component "dns": there are gadgets, web`},
		},
		"LiveAndKubeVersion": {
			why:  "Only one of the two can be meant.",
			args: []string{"prod", "--live", "--kube-version", "v1.30.1"}, wantCode: 2,
			says: []string{"contradict", "See 'keelson render --help'."},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fleet{t: t, dir: f.dir, rename: f.rename}
			f.keelson(append([]string{"render"}, c.args...)...).want(t, c.wantCode).says(t, c.says...).saysNot(t, c.saysNot...)
		})
	}
}

func TestRenderJSON(t *testing.T) {
	t.Parallel()
	var list struct {
		APIVersion, Kind string
		Items            []struct{ Kind string }
	}
	decode(t, newFleet(t, "").keelson("render", "prod", "gadgets", "-o", "json").want(t, 0).out, &list)
	if list.APIVersion != "v1" || list.Kind != "List" || len(list.Items) != 2 || list.Items[0].Kind != "CustomResourceDefinition" {
		t.Errorf("got %+v", list)
	}
}

// A stream that lacks an object looks like one that wants it gone.
func TestRenderAllOrNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.edit("clusters/prod/web.yaml", "values:", "vlaues:")
	f.commit()
	got := f.keelson("render", "prod").want(t, 2).says(t,
		"component web on cluster prod is blocked by 1 mistake in the repository:\nclusters/prod/web.yaml:3:1: unknown key")
	if got.out != "" {
		t.Errorf("it printed:\n%s", got.out)
	}
	f.keelson("render", "test").want(t, 0)
}

// TestWithoutConnection: a command that asks no cluster does without a connection, and every other
// command names the place where it is missing.
func TestWithoutConnection(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.edit("clusters/prod/cluster.yaml", "connection:\n  context: prod\n", "")
	f.commit()
	f.keelson("render", "prod", "web").want(t, 0).says(t, "image: registry.example/web:v1.0.0")
	f.keelson("explain", "prod", "web").want(t, 0)
	f.keelson("validate").want(t, 1).says(t, "clusters/prod/cluster.yaml:1:1: connection is missing")
	for _, args := range [][]string{{"render", "prod", "web", "--live"}, {"diff", "prod"}, {"apply", "prod", "--yes"}} {
		f.keelson(args...).want(t, 2).says(t, "clusters/prod/cluster.yaml:1:1: connection is missing")
	}
	f.edit("clusters/prod/cluster.yaml", "kind: Cluster", "kind: Clutser")
	f.commit()
	f.keelson("render", "prod", "web").want(t, 2).saysNot(t, "connection is missing")
}

func TestExplain(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	got := f.keelson("explain", "prod", "web").want(t, 0).out
	want := `web on prod

WHAT       IS                           FROM
version    v1.0.0                       layers/10-base.yaml:8:14
image web  registry.example/web:v1.0.0  components/web/images.yaml@web/v1.0.0:4:9

PATH         VALUE  FROM
.app         web    components/web/template/values.yaml@web/v1.0.0:3:1
.labels      {}     components/web/template/values.yaml@web/v1.0.0:4:1
.password    ***    components/web/template/values.yaml@web/v1.0.0:2:1
.replicas    3      clusters/prod/web.yaml:4:3
  overrides  2      layers/10-base.yaml:10:7
  overrides  1      components/web/template/values.yaml@web/v1.0.0:1:1
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	f.keelson("explain", "prod", "web", "password", "--show-secrets").want(t, 0).says(t, "hunter2").saysNot(t, ".replicas")
	f.keelson("explain", "prod", "web", ".images").want(t, 0).says(t, ".images.web.tag")
	f.keelson("explain", "prod", "web", ".nope").want(t, 2).says(t, "web on prod has no value at .nope")
	for line := range strings.Lines(f.in(world{columns: 60}, "explain", "prod", "web", "--color", "never").want(t, 0).out) {
		if n := len([]rune(line)); n > 61 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	f.in(world{columns: 60}, "explain", "prod", "web", "--color", "always").want(t, 0).says(t, "\x1b[2;9m1\x1b[0m")

	var explained struct {
		Cluster, Component string
		Version            struct{ Name, Commit string }
		Images             []struct{ Name, Ref string }
		Values             []struct {
			Path      string
			Value     any
			At        struct{ File string }
			Overrides []struct{ Value any }
		}
	}
	decode(t, f.keelson("explain", "prod", "web", "-o", "json").want(t, 0).out, &explained)
	replicas := explained.Values[3]
	if explained.Version.Name != "v1.0.0" || len(explained.Version.Commit) != 40 || explained.Images[0].Ref != "registry.example/web:v1.0.0" ||
		replicas.Value != 3.0 || replicas.At.File != "clusters/prod/web.yaml" || len(replicas.Overrides) != 2 {
		t.Errorf("got %+v", explained)
	}
}

// Values in lists and below a key that speaks of a secret are masked, too, and
// names of Secrets are not.
func TestExplainMasks(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.write("clusters/prod/web.yaml", `apiVersion: keelson.io/v1alpha1
kind: MetaConfig
values:
  users:
    - {name: a, apiToken: s3cr3t}
  clientSecret: {value: s3cr3t, rotate: true}
  secretName: shown-name
  passwords: [s3cr3t]
  empty: {token: ""}
`)
	f.commit()
	for _, format := range []string{"text", "json", "yaml"} {
		f.keelson("explain", "prod", "web", "-o", format).want(t, 0).says(t, "***", "shown-name", "true").saysNot(t, "s3cr3t", "hunter2")
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		args     []string
		wantCode int
		wantErr  string
	}{
		"UnknownCommand":  {[]string{"aply"}, 2, "keelson: unknown command \"aply\" for \"keelson\"\n\nDid you mean this?\n\tapply\nSee 'keelson --help'.\n"},
		"UnknownFlag":     {[]string{"render", "--nope"}, 2, "keelson: unknown flag: --nope\nSee 'keelson render --help'.\n"},
		"MissingArgument": {[]string{"render"}, 2, "keelson: an argument is missing: give CLUSTER [COMPONENT]\nSee 'keelson render --help'.\n"},
		"ManyArguments":   {[]string{"render", "a", "b", "c"}, 2, "keelson: too many arguments: give CLUSTER [COMPONENT], and not \"c\"\nSee 'keelson render --help'.\n"},
		"Format":          {[]string{"version", "-o", "xml"}, 2, "keelson: -o takes text, json or yaml, and not \"xml\"\nSee 'keelson version --help'.\n"},
		"Color":           {[]string{"version", "--color", "red"}, 2, "keelson: --color takes auto, always or never, and not \"red\"\nSee 'keelson version --help'.\n"},
		"ApplyJSON":       {[]string{"apply", "a", "-o", "json"}, 2, "keelson: -o json is for --dry-run: what was done is told as text\nSee 'keelson apply --help'.\n"},
		"RenderTimeout":   {[]string{"validate", "--repo", "testdata", "--render-timeout", "1ms"}, 2, "keelson: "},
		"NoRepository":    {[]string{"validate", "--repo", "/nowhere/at/all"}, 2, "keelson: "},
		"NoHub":           {[]string{"status"}, 2, "keelson: there is no kubeconfig to reach the hub with: give --kubeconfig, or set KUBECONFIG\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := keelson(t, c.args...).want(t, c.wantCode)
			if !strings.HasPrefix(got.err, c.wantErr) || got.out != "" {
				t.Errorf("got stdout %q, stderr %q; want stderr %q", got.out, got.err, c.wantErr)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	keelson(t, "version").want(t, 0).says(t, "keelson v1.2.3 (go")
	keelson(t, "--version").want(t, 0).says(t, "keelson v1.2.3\n")
	keelson(t, "version", "-o", "json").want(t, 0).says(t, `"version": "v1.2.3"`)
}

// Help is read in terminals of 80 columns.
func TestHelpFits(t *testing.T) {
	t.Parallel()
	const columns = 80
	for _, command := range []string{
		"", "validate", "render", "explain", "diff", "apply", "status", "history", "rbac", "version", "controller", "policy", "policy list", "policy test",
	} {
		got := keelson(t, append(strings.Fields(command), "--help")...).want(t, 0)
		for line := range strings.Lines(got.out) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > columns {
				t.Errorf("keelson %s --help: %d columns: %s", command, n, line)
			}
		}
		if command != "" && command != "version" && !strings.Contains(got.out, "Examples:") {
			t.Errorf("keelson %s --help has no example", command)
		}
	}
}

func TestStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := contextOf(t)
	cancel()
	f := newFleet(t, "")
	got := world{}.runContext(ctx, "--repo", f.dir, "validate")
	got.want(t, 130).says(t, "keelson: stopped by a signal\n")
}

// Settings come from flags, then the environment, then the file, then defaults.
func TestSettingsPrecedence(t *testing.T) {
	f := newFleet(t, "")
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("kube-version: v1.31.0\nrepo: "+f.dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	render := []string{"render", "prod", "web"}
	keelson(t, append(render, "--repo", f.dir)...).want(t, 0).says(t, "kubernetes: v1.36.")
	keelson(t, append(render, "--config", file)...).want(t, 0).says(t, "kubernetes: v1.31.0")
	t.Setenv("KEELSON_CONFIG", file)
	keelson(t, render...).want(t, 0).says(t, "kubernetes: v1.31.0")
	t.Setenv("KEELSON_KUBE_VERSION", "v1.32.0")
	keelson(t, render...).want(t, 0).says(t, "kubernetes: v1.32.0")
	keelson(t, append(render, "--kube-version", "v1.33.0")...).want(t, 0).says(t, "kubernetes: v1.33.0")
	t.Setenv("KEELSON_INTERVAL", "soon")
	keelson(t, "controller").want(t, 2).says(t, "KEELSON_INTERVAL: interval:")
}

func TestSettingsFile(t *testing.T) {
	f := newFleet(t, "")
	t.Chdir(f.dir)
	cases := map[string]struct {
		why, content string
		args         []string
		wantCode     int
		says         string
	}{
		"List":      {"A flag that may be given again is a list.", "api-versions: [a.example/v1, b.example/v1]\n", nil, 0, "kind: Deployment"},
		"Unknown":   {"A misspelt setting must not be overlooked.", "kube-release: v1.30.0\n", nil, 2, `keelson.yaml: there is no setting "kube-release"`},
		"Malformed": {"The error names the file.", "{", nil, 2, "read settings from keelson.yaml"},
		"WrongType": {"As above.", "api-versions: {a: b}\n", nil, 2, "keelson.yaml: api-versions: "},
		"Yes":       {"What a person confirms, they confirm each time.", "yes: true\n", nil, 2, `there is no setting "yes"`},
		"Kubeconfig": {
			"A kubeconfig may run programs: a folder that one looks into must not choose it.",
			"kubeconfig: ./kubeconfig\n", nil, 2, "kubeconfig is not taken from a file that was not asked for",
		},
		"KubeconfigAskedFor": {"Who names the file trusts it.", "kubeconfig: ./kubeconfig\n", []string{"--config", "keelson.yaml"}, 0, "kind: Deployment"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile("keelson.yaml", []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			keelson(t, append([]string{"render", "prod", "web"}, c.args...)...).want(t, c.wantCode).says(t, c.says)
		})
	}
}

// A pull request can add a keelson.yaml to a repository in which CI runs keelson. The file
// must not choose a server, a file with a login, or a program, for any command.
func TestSettingsFileThatLiesThere(t *testing.T) {
	f := newFleet(t, "")
	t.Chdir(f.dir)
	for _, setting := range []string{
		"age-key-file", "allow-exec", "cache-dir", "context", "egress", "forge", "forge-repository", "forge-token-file", "forge-url", "git-credentials",
		"hub", "kubeconfig", "listen", "plain-http", "promote", "push-author", "push-credentials", "push-signing-key", "render-cache-dir",
		"render-memory", "trace-endpoint", "trusted-keys", "webhook-listen", "webhook-secret-file",
	} {
		if err := os.WriteFile("keelson.yaml", []byte(setting+": x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"validate", "promote", "controller"} {
			keelson(t, command).want(t, 2).says(t, setting+" is not taken from a file that was not asked for")
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	cases := map[string]struct {
		args []string
		want string
	}{
		"Clusters":       {[]string{"render", ""}, "prod\ntest\n:4\n"},
		"Components":     {[]string{"render", "prod", ""}, "gadgets\nweb\n:4\n"},
		"NoThird":        {[]string{"render", "prod", "web", ""}, ":4\n"},
		"NotTwice":       {[]string{"apply", "prod", "web", ""}, "gadgets\n:4\n"},
		"UnknownCluster": {[]string{"apply", "nope", ""}, ":4\n"},
		"Paths":          {[]string{"explain", "test", "web", ".r"}, ".replicas\n"},
		"OtherClusters":  {[]string{"status", "prod", ""}, "test\n:4\n"},
		"Formats":        {[]string{"status", "-o", ""}, "text\njson\nyaml\n:4\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"__complete", "--repo", f.dir}, c.args...)
			if got := keelson(t, args...).want(t, 0).out; !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	quiet := keelson(t, "__complete", "--repo", "/nowhere/at/all", "render", "").want(t, 0)
	if quiet.out != ":4\n" {
		t.Errorf("without a repository: got %q", quiet.out)
	}
	keelson(t, "completion", "bash").want(t, 0).says(t, "__start_keelson")
}
