package cmd_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/lab/cmd"
)

// run executes a command line with a state directory.
func run(t *testing.T, dir string, args ...string) (stdout string, code int) {
	t.Helper()
	var out, problems bytes.Buffer
	c := cmd.New()
	c.SetArgs(append([]string{"--state-dir", dir}, args...))
	c.SetOut(&out)
	c.SetErr(&problems)
	err := c.ExecuteContext(t.Context())
	if err != nil {
		t.Logf("lab %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), cmd.ExitCode(err)
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		args []string
		want int
	}{
		"Help":              {why: "What lab alone shows.", want: 0},
		"UnknownCommand":    {why: "A typing mistake.", args: []string{"upp"}, want: 2},
		"UnknownFlag":       {why: "A typing mistake.", args: []string{"status", "--wide"}, want: 2},
		"NoName":            {why: "Which cluster?", args: []string{"up"}, want: 2},
		"BadOutput":         {why: "Not one of the two.", args: []string{"status", "-o", "yaml"}, want: 2},
		"DownOfNothing":     {why: "All of them must be said.", args: []string{"down"}, want: 2},
		"DownOfBoth":        {why: "All, or those?", args: []string{"down", "a", "--all"}, want: 2},
		"NoSuchCluster":     {why: "Scripts tell it from trouble.", args: []string{"kubeconfig", "a"}, want: 3},
		"StopOfNoCluster":   {why: "Scripts tell it from trouble.", args: []string{"stop", "a"}, want: 3},
		"DownOfNoCluster":   {why: "There is nothing to do.", args: []string{"down", "a"}, want: 0},
		"DownAllOfNone":     {why: "There is nothing to do.", args: []string{"down", "--all"}, want: 0},
		"StatusOfNone":      {why: "That is a status.", args: []string{"status"}, want: 0},
		"UnknownKubeconfig": {why: "There are two users.", args: []string{"kubeconfig", "a", "--user", "b"}, want: 2},
		"NoSuchProgram":     {why: "A typing mistake.", args: []string{"build", "--only", "kube-apiservr"}, want: 2},
		"NoSuchKubernetes":  {why: "Only pinned ones are built.", args: []string{"assets", "--kubernetes", "1.2"}, want: 2},
		"NotAName":          {why: "It would become a path.", args: []string{"down", "../a"}, want: 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "clusters")
			if _, got := run(t, dir, tc.args...); got != tc.want {
				t.Errorf("exit code %d, want %d; %s", got, tc.want, tc.why)
			}
			if _, err := os.Stat(dir); err == nil {
				t.Error("the state directory was made, for nothing")
			}
		})
	}
}

// For programs that read it, the JSON of a lab without clusters has an empty list, not null.
func TestStatusJSONIsNeverNull(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "clusters")
	out, _ := run(t, dir, "status", "-o", "json")
	var got struct {
		StateDir string             `json:"stateDir"`
		Clusters *[]json.RawMessage `json:"clusters"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.StateDir != dir || got.Clusters == nil || len(*got.Clusters) != 0 {
		t.Errorf("printed %s", out)
	}
}
