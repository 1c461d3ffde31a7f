package cmd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/cmd"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer/redact"
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

// The author of a pull request learns nothing of the process's secrets from what the comment
// hides. The change hides nothing in other texts of the process, and leaves nothing in its
// memory.
func TestUntrustedRedactor(t *testing.T) {
	t.Parallel()
	hidden := redact.New()
	hidden.Hide("a password that SOPS encrypts", "7391")
	hidden.Set("a Secret of a cluster", "1", func() []redact.Value {
		return redact.Object(map[string]any{"apiVersion": "v1", "kind": "Secret", "data": map[string]any{"password": "U3VtbWVyMjAyNiE="}}, nil)
	})
	forms := hidden.Forms()
	compare, closed := cmd.UntrustedPreview(hidden)
	t.Cleanup(closed)

	f := newFleet(t, "")
	f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
	f.commit()
	repo, err := registry.Open(t.Context(), gitrepo.Options{URL: f.dir, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	load := func() *registry.Fleet {
		if err := repo.Git().Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		fleet, err := repo.Load(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		return fleet
	}
	before := load()
	f.write("components/web/template/templates/guesses.yaml", `apiVersion: v1
kind: ConfigMap
metadata: {name: guesses}
data:
  pins: "7390 7391 7392"
  passwords: "Spring2026! Summer2026! Autumn2026!"
  again: the value is mine-and-mine-alone
---
apiVersion: v1
kind: Secret
metadata: {name: words}
stringData: {a: Deployment, b: replicas, c: prod-us-01, own: mine-and-mine-alone}
`)
	f.commit()
	p, own, err := compare(t.Context(), before, load())
	if err != nil {
		t.Fatal(err)
	}
	text := own.Text(p.Markdown())
	for _, want := range []string{"7390 7391 7392", "Spring2026! Summer2026! Autumn2026!", "the value is ***"} {
		if !strings.Contains(text, want) {
			t.Errorf("the comment lacks %q:\n%s", want, text)
		}
	}
	const status = "Deployment.apps web/web: 0 of 2 replicas are ready on prod-us-01"
	if got := hidden.Text(status); got != status || hidden.Forms() != forms {
		t.Errorf("the process says %q, and knows %d forms, not %d", got, hidden.Forms(), forms)
	}

	f.write("components/web/template/templates/large.yaml", `{{- range $i := until 3 }}
---
apiVersion: v1
kind: Secret
metadata: {name: large-{{ $i }}}
stringData: {a: {{ repeat 400 (repeat 1024 (toString $i)) | quote }}}
{{- end }}
`)
	f.commit()
	if _, _, err := compare(t.Context(), before, load()); !errors.Is(err, forge.ErrTooManySecrets) {
		t.Errorf("1,200 KiB of Secrets: the error is %v", err)
	}
	f.write("components/web/template/templates/large.yaml", `apiVersion: v1
kind: Secret
metadata: {name: alike}
stringData:
{{- range $i := until 300 }}
  k{{ $i }}: {{ repeat (int (add 10 $i)) "a" | quote }}
{{- end }}
`)
	f.commit()
	if _, _, err := compare(t.Context(), before, load()); !errors.Is(err, forge.ErrTooManySecrets) {
		t.Errorf("300 values that begin alike: the error is %v", err)
	}
}

// A change can't hide what it does to one delivery behind the Secrets of another: what
// can't be hidden ends the whole preview, and its status is no success.
func TestUntrustedSecretsHideNothing(t *testing.T) {
	t.Parallel()
	compare, closed := cmd.UntrustedPreview(redact.New())
	t.Cleanup(closed)
	f := newFleet(t, "")
	f.edit("layers/10-base.yaml", "web:\n    version: v1.0.0", "web:\n    version: HEAD")
	f.edit("layers/10-base.yaml", "gadgets:\n    version: v1.0.0", "gadgets:\n    version: HEAD")
	f.commit()
	repo, err := registry.Open(t.Context(), gitrepo.Options{URL: f.dir, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	base, err := repo.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	f.write("components/gadgets/template/templates/filler.yaml", `apiVersion: v1
kind: Secret
metadata: {name: filler}
stringData: {a: {{ repeat 512 (repeat 1024 "ab") | quote }}}
`)
	f.edit("components/web/template/templates/web.yaml", "image: {{", "securityContext: {privileged: true}\n          image: {{")
	f.commit()
	if err := repo.Git().Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	head, err := repo.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if p, _, err := compare(t.Context(), base, head); !errors.Is(err, forge.ErrTooManySecrets) {
		t.Errorf("the error is %v, and the preview %+v", err, p)
	}
}
