package cmd_test

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// TestForgeFlags: what nothing could be posted with is a mistake before anything is
// begun, and is told of without the token.
func TestForgeFlags(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfigOf("http://127.0.0.1:1"), f.kubeconfig); err != nil {
		t.Fatal(err)
	}
	file := func(content string) string {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token := file("S3cret-of-the-forge")
	cases := map[string]struct {
		args []string
		says string
	}{
		"NoForge":      {[]string{"--forge-token-file", token}, "give --forge, too"},
		"Kind":         {[]string{"--forge", "svn", "--forge-repository", "a/b", "--forge-token-file", token}, "--forge takes gitea, github or gitlab, and not"},
		"NoRepository": {[]string{"--forge", "github", "--forge-token-file", token}, "needs --forge-repository OWNER/NAME"},
		"NoToken":      {[]string{"--forge", "github", "--forge-repository", "a/b"}, "needs --forge-token-file"},
		"NoURL":        {[]string{"--forge", "gitea", "--forge-repository", "a/b", "--forge-token-file", token}, "say its URL"},
		"PlainHTTP": {
			[]string{"--forge", "gitea", "--forge-url", "http://git.example", "--forge-repository", "a/b", "--forge-token-file", token},
			"without encryption",
		},
		"Empty": {[]string{"--forge", "github", "--forge-repository", "a/b", "--forge-token-file", file("\n")}, "must hold a token"},
		"Lines": {[]string{"--forge", "github", "--forge-repository", "a/b", "--forge-token-file", file("S3cret-of-the-forge\nS3cret-of-the-forge")}, "on one line"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.keelson(append([]string{"controller", "--listen", ""}, c.args...)...).want(t, 2).says(t, c.says).saysNot(t, "S3cret-of-the-forge")
		})
	}
}
