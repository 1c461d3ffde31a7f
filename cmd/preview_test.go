package cmd_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestPreview: what a merge does, by branch, by commit and by files, in each
// format, and what the exit code says of it.
func TestPreview(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.kubeconfig = ""
	f.keelson("preview", "main").want(t, 0).says(t, "nothing changes")
	f.git("checkout", "-q", "-b", "more")
	f.edit("layers/10-base.yaml", "replicas: 2", "replicas: 4\n      password: sesame")

	f.keelson("preview", "main").want(t, 0).says(t, "nothing changes")
	f.keelson("preview", "main", "--worktree").want(t, 1).says(t,
		"web v1.0.0: 1 to update\non 1 cluster: prod\n", "web v1.0.0: 2 to update\non 1 cluster: test\n", "1 component changes on 2 clusters: 3 objects updated").
		saysNot(t, "hunter2", "sesame", "Gadget")
	f.commit()
	f.keelson("preview", "main", "more").want(t, 1).says(t, "1 component changes on 2 clusters: 3 objects updated")
	f.keelson("preview", "more", "main").want(t, 1).says(t, "@@ .spec.replicas @@ set\n-4\n+2\n")
	f.keelson("preview", "main", "-o", "markdown").want(t, 1).says(t, "**1 component changes on 2 clusters", "### `web v1.0.0` on 1 cluster").
		saysNot(t, "hunter2", "sesame")

	var out struct {
		Clusters, Deliveries int
		Groups               []struct {
			Component string
			Clusters  []string
			Plan      struct{ Objects []struct{ Op, Kind string } }
		}
	}
	if err := json.Unmarshal([]byte(f.keelson("preview", "main", "-o", "json").want(t, 1).out), &out); err != nil {
		t.Fatal(err)
	}
	if out.Clusters != 2 || out.Deliveries != 2 || len(out.Groups) != 2 || out.Groups[0].Component != "web" || len(out.Groups[0].Plan.Objects) == 0 {
		t.Errorf("%+v", out)
	}

	f.edit("components/gadgets/template/templates/config.yaml", "size: \"1\"", "size: {{ required \"no size\" .Values.size }}")
	f.edit("layers/10-base.yaml", "version: v1.0.0", "version: HEAD")
	f.commit()
	f.keelson("preview", "main").want(t, 2).says(t, "components/gadgets/template/templates/config.yaml", "no size", "(on prod, test)", "the change has mistakes")
}

// TestPreviewUsage: what can't be asked is refused before anything is read.
func TestPreviewUsage(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.keelson("preview").want(t, 2).says(t, "BASE")
	f.keelson("preview", "main", "main", "--worktree").want(t, 2).says(t, "--worktree and --revision contradict")
	f.keelson("preview", "main", "-o", "patch").want(t, 2).says(t, "-o")
	r := f.keelson("preview", "mian").want(t, 2).says(t, `no branch, tag or commit is called "mian"`, `did you mean "main"?`)
	if strings.Contains(r.out, "changes") {
		t.Errorf("it shows something: %s", r.out)
	}
}
