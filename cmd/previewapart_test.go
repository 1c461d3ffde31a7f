//go:build !race

// Race detectors take memory of their own, which limits of memory count.

package cmd_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/cmd"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
)

// A preview is made in a process of its own, which reads what was fetched, and answers with
// what stands on the pull request. What no process survives leaves this one as it is.
func TestPreviewApart(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the limits are Linux's")
	}
	cases := map[string]struct {
		why    string
		change func(*fleet)
		state  forge.State
		final  bool
		says   string
	}{
		"Ordinary": {
			"It says what keelson preview says.", func(f *fleet) { f.edit("layers/10-base.yaml", "replicas: 2", "replicas: 4") },
			forge.Success, false, ".spec.replicas",
		},
		"Broken": {
			"The mistake is told with its line.", func(f *fleet) { f.write("fleet.yaml", "kind: Flotilla\n") },
			forge.Failure, false, "fleet.yaml",
		},
		"Memory": {
			"A component of 16 MiB takes more than the process may have.", func(f *fleet) {
				f.write("components/gadgets/template/templates/config.yaml", "{{ range $i := until 4000 }}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c{{ $i }}}\ndata:\n{{ range $k := until 100 }}  key{{ $k }}: value {{ $i }}\n{{ end }}{{ end }}")
			},
			forge.Error, true, "too much",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "")
			f.edit("layers/10-base.yaml", "gadgets:\n    version: v1.0.0", "gadgets:\n    version: HEAD")
			f.commit()
			cache := t.TempDir()
			options := gitrepo.Options{URL: f.dir, CacheDir: cache, Proposals: true}
			repo, err := registry.Open(t.Context(), options)
			if err != nil {
				t.Fatal(err)
			}
			base, err := repo.Git().Resolve("")
			if err != nil {
				t.Fatal(err)
			}
			c.change(f)
			f.commit()
			if err := repo.Git().Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
			head, err := repo.Git().Resolve("")
			if err != nil {
				t.Fatal(err)
			}
			make, err := cmd.PreviewApart(repo, cache, 192<<20)
			if err != nil {
				t.Fatal(err)
			}
			v, err := make(t.Context(), base, head)
			if err != nil && !errors.Is(err, renderer.ErrTaskMemory) {
				t.Fatal(err)
			}
			if err != nil { // the loop says so
				v = forge.Verdict{Status: forge.Status{State: forge.Error}, Text: "too much", Final: true}
			}
			if v.Status.State != c.state || v.Final != c.final || !strings.Contains(v.Text, c.says) {
				t.Errorf("%s It is %+v", c.why, v)
			}
		})
	}
}
