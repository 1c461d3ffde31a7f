package cmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func (f *fleet) read(name string) string {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.dir, filepath.FromSlash(f.rename.Replace(name))))
	if os.IsNotExist(err) {
		return ""
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return string(data)
}

// Pause and resume edit the one line that they are about, and git does the rest.
func TestPause(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.kubeconfig = ""
	before := f.read("clusters/prod/cluster.yaml")

	t.Log("a cluster")
	f.keelson("pause", "prod", "--because", "INC-1: it's down").want(t, 0).says(t,
		"clusters/prod/cluster.yaml: prod is paused\n", "commit it, and push; nothing changes before that:\n",
		`  git add clusters/prod/cluster.yaml && git commit -m 'pause prod: INC-1: it'\''s down' -- clusters/prod/cluster.yaml`)
	if got, want := f.read("clusters/prod/cluster.yaml"), strings.Replace(before, "kind: Cluster\n", "kind: Cluster\npaused: true # INC-1: it's down\n", 1); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	f.keelson("pause", "prod", "--because", "again").want(t, 0).says(t, "prod is paused already (clusters/prod/cluster.yaml)")
	f.keelson("validate", "--worktree").want(t, 0)
	f.keelson("resume", "prod", "web").want(t, 0).says(t, "web on prod is not paused already", "prod itself is paused, with all its components: 'keelson resume prod'")
	f.keelson("resume", "prod").want(t, 0).says(t, "prod is not paused\n")
	if got := f.read("clusters/prod/cluster.yaml"); got != before {
		t.Errorf("got\n%s\nwant\n%s", got, before)
	}

	t.Log("a component with a file of its own, and one that only layers set")
	before = f.read("clusters/prod/web.yaml")
	for _, component := range []string{"web", "gadgets"} {
		var out struct {
			Cluster, Component, File string
			Changed                  bool
		}
		decode(t, f.keelson("pause", "prod", component, "-o", "json").want(t, 0).out, &out)
		if out.File != "clusters/prod/"+component+".yaml" || !out.Changed || out.Component != component {
			t.Errorf("got %+v", out)
		}
	}
	if got, want := f.read("clusters/prod/gadgets.yaml"), "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\npaused: true\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	f.keelson("validate", "--worktree").want(t, 0)
	f.keelson("resume", "prod", "web").want(t, 0)
	f.keelson("resume", "prod", "gadgets").want(t, 0)
	if got := f.read("clusters/prod/web.yaml"); got != before {
		t.Errorf("got\n%s\nwant\n%s", got, before)
	}
	if got := f.read("clusters/prod/gadgets.yaml"); got != "" {
		t.Errorf("the file that pause made is still there: %q", got)
	}
}

func TestPauseRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.kubeconfig = ""
	f.write("clusters/test/web.yaml", "{apiVersion: keelson.io/v1alpha1, kind: MetaConfig}")
	cases := map[string]struct {
		why  string
		args []string
		want string
	}{
		"Cluster":   {why: "A typo is told.", args: []string{"pause", "prd"}, want: `there is no cluster "prd" in the work tree (did you mean "prod"?)`},
		"Component": {why: "As is one behind it.", args: []string{"resume", "prod", "gadget"}, want: `cluster prod has no component "gadget" (did you mean "gadgets"?)`},
		"Revision":  {why: "History can't be edited.", args: []string{"pause", "prod", "--revision", "main"}, want: "leave --revision out"},
		"Remote":    {why: "Git is the only way in.", args: []string{"pause", "prod", "--repo", "https://git.example/fleet.git"}, want: "https://git.example/fleet.git is no folder: clone it"},
		"Flow":      {why: "There is no line of its own.", args: []string{"pause", "test", "web"}, want: "clusters/test/web.yaml: it is not written as one key a line"},
		"NoFlag":    {why: "A reason is for a pause.", args: []string{"resume", "prod", "--because", "x"}, want: "unknown flag"},
		"Approve":   {why: "The same folder.", args: []string{"approve", "prod", "--revision", "main"}, want: "leave --revision out"},
		"Because":   {why: "Who reviews it wants to know.", args: []string{"approve", "prod", "--all"}, want: "--because is missing"},
		"Outside":   {why: "Approvals have their folder.", args: []string{"approve", "prod", "--all", "--because", "x", "--file", "approvals/../fleet.yaml"}, want: "--file takes approvals/NAME.yaml"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := f.keelson(tc.args...).want(t, 2)
			if !strings.Contains(r.err, tc.want) {
				t.Errorf("%s got %q, want %q", tc.why, r.err, tc.want)
			}
		})
	}
}

// What is held is shown, approved in the work tree once, and applied when that is
// committed.
func TestApprove(t *testing.T) {
	c := live(t)
	f := newFleet(t, "approve")
	runDeployments(t, c, "webapprove")
	f.keelson("apply", "prod", "--yes", "--timeout", "3m").want(t, 0)
	f.keelson("approve", "prod").want(t, 0).says(t, "prod: 0 objects are held")
	f.edit("clusters/prod/web.yaml", "replicas: 3", "replicas: 1\n  labels: {a: b}")
	f.commit()

	f.keelson("approve", "prod").want(t, 1).says(t, "HELD Deployment.apps web/web", "-3", "+1", "prod: 1 object is held", "nothing was written: name the object")
	f.keelson("approve", "prod", "web", "Secret web/web", "--because", "x").want(t, 2).says(t, "Secret web/web of web is not held on prod")
	if got := f.read("approvals/prod.yaml"); got != "" {
		t.Errorf("it wrote %q", got)
	}
	f.keelson("approve", "prod", "web", "Deployment.apps web/web", "--because", "CHG-1").want(t, 0).says(t,
		"approvals/prod.yaml: 1 approval added", "git commit -m 'approve web on prod: CHG-1'")
	first := f.read("approvals/prod.yaml")
	if !strings.HasPrefix(first, "apiVersion: keelson.io/v1alpha1\nkind: Approvals\napprovals:\n- {cluster: prod, component: webapprove, object: Deployment.apps webapprove/webapprove, hash: ") {
		t.Errorf("got %q", first)
	}
	f.keelson("approve", "prod", "--all", "--because", "CHG-2", "--file", "approvals/other.yaml").want(t, 0).says(t, "the work tree approves it already")
	if got := f.read("approvals/other.yaml") + f.read("approvals/prod.yaml"); got != first {
		t.Errorf("it was approved twice: %q", got)
	}
	f.keelson("diff", "prod", "web").want(t, 1).says(t, "HELD") // it is not committed
	f.commit()
	f.keelson("approve", "prod").want(t, 0).says(t, "prod: 0 objects are held")
	f.keelson("apply", "prod", "--yes", "--timeout", "3m").want(t, 0)
}
