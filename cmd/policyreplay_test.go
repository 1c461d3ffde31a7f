package cmd_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestPolicyReplay: each commit of a branch against the one before it, with the rules that
// fire on it; what cannot be replayed is named.
func TestPolicyReplay(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.kubeconfig = ""
	f.keelson("policy", "replay", "main..main").want(t, 0).says(t, "0 commits: 0 held, 0 denied, 0 warned of")
	f.git("checkout", "-q", "-b", "more")
	f.edit("layers/10-base.yaml", "replicas: 2", "replicas: 4")
	f.commit()
	f.edit("layers/10-base.yaml", "replicas: 4", "replicas: 0")
	f.commit()

	f.keelson("policy", "replay", "main..more").want(t, 0).
		says(t, "hold fewer-replicas: web: Deployment.apps", "2 commits: 1 held, 0 denied", "1 without a rule that fires")
	var list []struct {
		Commit, Subject string
		Fired           []struct {
			Rule, Effect string
			Objects      map[string]int
		}
	}
	if err := json.Unmarshal([]byte(f.keelson("policy", "replay", "main..more", "-o", "json").want(t, 0).out), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || len(list[0].Commit) != 40 || len(list[0].Fired) != 0 || len(list[1].Fired) == 0 || list[1].Fired[0].Effect != "hold" {
		t.Errorf("%+v", list)
	}

	for _, c := range []struct {
		why, says string
		args      []string
	}{
		{"A single revision is no way.", `"main" is no BASE..HEAD`, []string{"main"}},
		{"Three dots are another way.", "is no BASE..HEAD", []string{"main...more"}},
		{"Nothing can't be replayed.", "at least 1", []string{"main..more", "--commits", "0"}},
		{"A commit that is not before HEAD is never come to.", "not among the commits", []string{"more..main"}},
		{"More commits than asked for are not read in silence.", "not among the commits", []string{"main..more", "--commits", "1"}},
		{"A typing mistake is found.", `did you mean "main"?`, []string{"mian..more"}},
	} {
		if r := f.keelson(append([]string{"policy", "replay"}, c.args...)...).want(t, 2); !strings.Contains(r.err, c.says) {
			t.Errorf("%s stderr: %s\nwant %q", c.why, r.err, c.says)
		}
	}
}
