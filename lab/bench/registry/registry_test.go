package registry

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/lab/fleet"
)

// TestFleet: a generated fleet has no error and the requested number of renders; otherwise the
// figures would be wrong. The measurement itself fails if a commit changes nothing.
func TestFleet(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		made fleet.Options
	}{
		"Few":  {"Everything is the same everywhere.", fleet.Options{Components: 3, Clusters: 10, Distinct: 3, Seed: 1}},
		"Some": {"The large one's proportions.", fleet.Options{Components: 20, Clusters: 30, Distinct: 200, Seed: 2}},
		"All":  {"No two clusters are alike in anything.", fleet.Options{Components: 4, Clusters: 12, Distinct: 48, Seed: 3}},
		"One":  {"The least there can be.", fleet.Options{Components: 1, Clusters: 2, Distinct: 1, Seed: 4}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "fleet.git")
			if _, err := fleet.Generate(t.Context(), dir, c.made); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := Run(t.Context(), []string{"--commits=1", "--workers=false", "--alone=false", dir}, &out); err != nil {
				t.Fatalf("%s\n%v\n%s", c.why, err, out.String())
			}
			want := fmt.Sprintf("%d clusters, %d deliveries, %d distinct renders", c.made.Clusters,
				c.made.Components*c.made.Clusters, c.made.Distinct)
			if !strings.HasPrefix(out.String(), want) {
				t.Errorf("%s\nwant %s, got:\n%s", c.why, want, out.String())
			}
		})
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--commits=0", "x"}, {"--nope"}, {t.TempDir()}} {
		if err := Run(t.Context(), args, &bytes.Buffer{}); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
