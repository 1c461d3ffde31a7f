package cmd_test

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// TestWebhookFlags: a receiver of webhooks that can't tell a stranger's from the
// git host's does not start.
func TestWebhookFlags(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfigOf("http://127.0.0.1:1"), f.kubeconfig); err != nil {
		t.Fatal(err)
	}
	secrets := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	short := secrets("short", "0123456789abcdef0123456789abcdef\ntoo short\n")
	cases := map[string]struct {
		args []string
		says []string
	}{
		"NoSecret": {[]string{"--webhook-listen", "127.0.0.1:0"}, []string{"needs --webhook-secret-file"}},
		"NoListen": {[]string{"--webhook-secret-file", short}, []string{"give --webhook-listen"}},
		"Short":    {[]string{"--webhook-listen", "127.0.0.1:0", "--webhook-secret-file", short}, []string{short + ":2", "shorter than 16 bytes", "openssl rand"}},
		"Empty":    {[]string{"--webhook-listen", "127.0.0.1:0", "--webhook-secret-file", secrets("empty", "\n\n")}, []string{"holds none"}},
		"Missing":  {[]string{"--webhook-listen", "127.0.0.1:0", "--webhook-secret-file", filepath.Join(t.TempDir(), "none")}, []string{"no such file"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.keelson(append([]string{"controller", "--listen", ""}, c.args...)...).want(t, 2).says(t, c.says...)
		})
	}
}
