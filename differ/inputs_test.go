package differ_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// TestUnchanged: an object is not compared if its inputs are equal to those with which it was
// settled. The target differs, so a comparison would plan an update.
func TestUnchanged(t *testing.T) {
	t.Parallel()
	inputs := differ.Inputs{Recorded: "1", Target: "a", Live: "u/1", Policy: "p", Schema: "s"}
	other := func(change func(*differ.Inputs)) differ.Inputs {
		in := inputs
		change(&in)
		return in
	}
	cases := map[string]struct {
		why             string
		inputs, settled differ.Inputs
		compared        bool
	}{
		"Same":     {"Nothing has changed since.", inputs, inputs, false},
		"Unknown":  {"What is not known is not the same.", differ.Inputs{}, differ.Inputs{}, true},
		"First":    {"It was never found settled.", inputs, differ.Inputs{}, true},
		"Recorded": {"Another process has recorded something.", inputs, other(func(i *differ.Inputs) { i.Recorded = "2" }), true},
		"Target":   {"Git has changed.", inputs, other(func(i *differ.Inputs) { i.Target = "b" }), true},
		"Live":     {"The cluster has changed.", inputs, other(func(i *differ.Inputs) { i.Live = "u/2" }), true},
		"Policy":   {"A danger rule has changed.", inputs, other(func(i *differ.Inputs) { i.Policy = "q" }), true},
		"Schema":   {"The API server was upgraded.", inputs, other(func(i *differ.Inputs) { i.Schema = "t" }), true},
		"Scaled":   {"An autoscaler came.", inputs, other(func(i *differ.Inputs) { i.Scaled = differ.ScalesReplicas }), true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			live := objects(t, []byte(benchmarkDeployment))[0]
			target := runtime.DeepCopyJSON(live)
			target["spec"].(map[string]any)["replicas"] = int64(7)
			plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{
				ID:       differ.ID{Group: "apps", Kind: "Deployment", Namespace: "kube-system", Name: "coredns"},
				Recorded: live, Live: live, Target: &renderer.Object{Content: target}, Normal: []string{"n"},
				Inputs: c.inputs, Settled: c.settled,
			}}, differ.Policy{AnyComponent: true})
			if err != nil {
				t.Fatal(err)
			}
			if compared := plan.Count(differ.OpUpdate) == 1; compared != c.compared {
				t.Errorf("%s compared: %v", c.why, compared)
			}
			if one := plan.Changes[0]; !c.compared && (!one.Quiet() || !cmp.Equal(one.Record, live) || !cmp.Equal(one.Live, live) ||
				one.APIVersion != "apps/v1" || !cmp.Equal(one.Normal, []string{"n"})) {
				t.Errorf("not what a comparison would have come to: %+v", one)
			}
		})
	}
}

// TestPolicyHash: each part of a policy that decides about every object changes the hash.
func TestPolicyHash(t *testing.T) {
	t.Parallel()
	const reads = "cluster.labels.a == 'b'"
	rule := v1alpha1.DangerRule{Name: "a", Path: ".spec.x", Effect: v1alpha1.EffectHold, Because: "b"}
	seen := map[string]string{}
	for name, change := range map[string]func(*differ.Policy, *v1alpha1.DangerRule){
		"None":      func(*differ.Policy, *v1alpha1.DangerRule) {},
		"Component": func(p *differ.Policy, _ *v1alpha1.DangerRule) { p.Component = "c" },
		"Any":       func(p *differ.Policy, _ *v1alpha1.DangerRule) { p.AnyComponent = true },
		"Adopt":     func(p *differ.Policy, _ *v1alpha1.DangerRule) { p.Adopt = true },
		"Drift":     func(p *differ.Policy, _ *v1alpha1.DangerRule) { p.Drift = v1alpha1.DriftReport },
		"MaskKey":   func(p *differ.Policy, _ *v1alpha1.DangerRule) { p.MaskKey = []byte("k") },
		"Reads":     func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.When = reads },
		"Labels": func(p *differ.Policy, r *v1alpha1.DangerRule) {
			r.When, p.Cluster = reads, map[string]string{"a": "b"}
		},
		"Name":      func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.Name = "other" },
		"Path":      func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.Path = ".spec.y" },
		"When":      func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.When = "true" },
		"Effect":    func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.Effect = v1alpha1.EffectDeny },
		"Scope":     func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.Scope = v1alpha1.ScopeField },
		"Because":   func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.Because = "other" },
		"On":        func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.On = []v1alpha1.Event{v1alpha1.OnAdd} },
		"Group":     func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.Match.Group = "g" },
		"Kinds":     func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.Match.Kinds = []string{"K"} },
		"Namespace": func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.Match.Namespace = "n" },
		"Object":    func(_ *differ.Policy, r *v1alpha1.DangerRule) { r.Match.Name = "n" },
	} {
		p, r := differ.Policy{}, rule
		change(&p, &r)
		var err error
		if p.Rules, err = differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{r}}); err != nil {
			t.Fatal(err)
		}
		hash := p.Hash()
		if again := p.Hash(); again != hash {
			t.Errorf("%s: the same policy was hashed otherwise", name)
		}
		if other := seen[hash]; other != "" {
			t.Errorf("%s and %s have one hash", name, other)
		}
		seen[hash] = name
	}
}

// TestPolicyHashUnread: labels that no rule reads decide about nothing, and a cluster may get new
// labels.
func TestPolicyHashUnread(t *testing.T) {
	t.Parallel()
	rules, err := differ.NewRules(differ.Scopes{})
	if err != nil {
		t.Fatal(err)
	}
	with := differ.Policy{Rules: rules, Cluster: map[string]string{"a": "b"}}
	if without := (differ.Policy{Rules: rules}); with.Hash() != without.Hash() {
		t.Error("labels have a part in the hash of rules that don't read them")
	}
}

// An expression that names the variable depends on it; a longer word is not the variable.
func TestReadsCluster(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]bool{
		"cluster.labels.zone == 'a'":       true,
		"'a' in cluster.labels":            true,
		"has(cluster.labels.zone)":         true,
		`cluster["labels"]`:                true,
		"[cluster].size() == 1":            true,
		"old == new || cluster . labels":   true,
		"new == 'cluster'":                 true, // a string may be the variable's name: strings are not parsed
		"new == 'cluster-admin'":           false,
		"new in ['clusterroles', 'roles']": false,
		"new == 'subcluster'":              false,
		"clusters == 1 && cluster_name":    false,
		"":                                 false,
		"clusters == cluster.labels.size":  true,
	} {
		if got := differ.ReadsCluster(expression); got != want {
			t.Errorf("ReadsCluster(%q) = %t, want %t", expression, got, want)
		}
	}
}

// An object is quiet if nothing is to be done, shown or waited for. Each of these alone makes it be
// compared again.
func TestQuiet(t *testing.T) {
	t.Parallel()
	quiet := differ.Change{Op: differ.OpNone, State: differ.StateSynced}
	if !quiet.Quiet() {
		t.Error("nothing is to be done")
	}
	for what, disturb := range map[string]func(*differ.Change){
		"an update":              func(c *differ.Change) { c.Op = differ.OpUpdate },
		"a held change":          func(c *differ.Change) { c.State = differ.StateHeld },
		"an old record":          func(c *differ.Change) { c.RecordStale = true },
		"owners not read":        func(c *differ.Change) { c.Unread.Owners = true },
		"nodes not read":         func(c *differ.Change) { c.Unread.Nodes = true },
		"a field that is kept":   func(c *differ.Change) { c.Fields = []differ.Field{{Path: ".a", Action: differ.ActionKeep}} },
		"a reason that is shown": func(c *differ.Change) { c.Because = "it waits" },
	} {
		c := quiet
		if disturb(&c); c.Quiet() {
			t.Errorf("%s: it is quiet", what)
		}
	}
}
