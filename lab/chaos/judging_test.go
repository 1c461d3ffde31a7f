package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// TestFailed shows that nothing passes without having run.
func TestFailed(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		o    outcome
		want bool
	}{
		"Well":      {why: "All that had to be was done, and survived.", o: outcome{result: result{must: 2, number: 2, survived: 2}}},
		"More":      {why: "More is welcome.", o: outcome{result: result{must: 2, number: 3, survived: 3}}},
		"Nothing":   {why: "It did not run.", want: true},
		"TooLittle": {why: "It proved less than it says.", o: outcome{result: result{must: 2, number: 1, survived: 1}}, want: true},
		"Lost":      {why: "One was not survived.", o: outcome{result: result{must: 2, number: 2, survived: 1}}, want: true},
		"Violation": {
			why: "A rule was broken.", want: true,
			o: outcome{result: result{must: 1, number: 1, survived: 1, violations: []string{"x"}}},
		},
		"Error": {
			why: "It could not be carried out.", want: true,
			o: outcome{err: errors.New("x"), result: result{must: 1, number: 1, survived: 1}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.o.failed() != tc.want {
				t.Errorf("failed is %t, want %t: %s", !tc.want, tc.want, tc.why)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	if _, err := choose(allScenarios(), []string{"kil"}); err == nil || !strings.Contains(err.Error(), "kill") {
		t.Errorf("a scenario that isn't there: %v, want an error that names those that are", err)
	}
	one, err := choose(allScenarios(), []string{"prune"})
	if err != nil || len(one) != 1 || one[0].name != "prune" {
		t.Errorf("chose %v, %v", one, err)
	}
}

// TestPoints holds the size of the matrix.
func TestPoints(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	applies := map[killedApply]int{}
	for _, p := range allPoints(controllerMoments()) {
		if names[p.String()] {
			t.Errorf("two points are called %q", p)
		}
		names[p.String()] = true
		applies[p.apply]++
	}
	if len(names) < 25 || applies[install] == 0 || applies[upgrade] == 0 || applies[uninstall] == 0 {
		t.Errorf("%d points, by apply %v", len(names), applies)
	}
}

// TestBuildComponent holds what the comparison with an undisturbed component rests on.
func TestBuildComponent(t *testing.T) {
	t.Parallel()
	for _, with := range []extra{plain, withKind, withHook} {
		for seed := range uint64(50) {
			a, b := buildComponent("one", componentInput{seed: seed, with: with, secret: "s"}), buildComponent("twin", componentInput{seed: seed, with: with, secret: "s"})
			if got, want := strings.ReplaceAll(text(b), "twin", "one"), text(a); got != want {
				t.Fatalf("seed %d: two components of one recipe differ:\n%s\n%s", seed, got, want)
			}
			if len(a.removed) == 0 || len(a.replaced) == 0 || text(a) == text(buildComponent("one", componentInput{seed: seed + 1, with: with, secret: "s"})) {
				t.Fatalf("seed %d: %d removed, %d replaced; and its successor must differ", seed, len(a.removed), len(a.replaced))
			}
		}
	}
}

func text(c component) string {
	var b strings.Builder
	for _, p := range append(c.old, c.next...) {
		fmt.Fprintln(&b, p.Object, p.manifest)
	}
	return b.String()
}

// TestSearch hides a secret in each of its forms, between other letters.
func TestSearch(t *testing.T) {
	t.Parallel()
	must.Test(t, func() {
		c := newPlantedSecrets(1)
		value := c.plant("here")
		for i, form := range disguises(value) {
			if found := search(t, c, "x="+string(form)+"y"); len(found) != 1 || !strings.Contains(found[0], "planted in here") {
				t.Errorf("form %d (%s): found %v", i, form, found)
			}
		}
		if found := search(t, c, "x="+value[1:]); len(found) != 0 {
			t.Errorf("found what is not there: %v", found)
		}
	})
}

func search(t *testing.T, c *plantedSecrets, content string) []string {
	t.Helper()
	dir := t.TempDir()
	must.Do(os.WriteFile(filepath.Join(dir, "log"), []byte(content), 0o600))
	files, _, found := c.search(dir)
	if files != 1 {
		must.Failf("searched %d files", files)
	}
	return found
}

// TestWhole shows what of a record is found out.
func TestWhole(t *testing.T) {
	t.Parallel()
	live := state{"ConfigMap a": "", "Secret b": ""}
	cases := map[string]struct {
		recorded recordedObjects
		want     int
	}{
		"Whole":     {recordedObjects{objects: []string{"ConfigMap a", "Secret b"}}, 0},
		"Forgotten": {recordedObjects{objects: []string{"ConfigMap a"}}, 1},
		"Gone":      {recordedObjects{objects: []string{"ConfigMap a", "Secret b", "Service c"}}, 1},
		"Open":      {recordedObjects{objects: []string{"ConfigMap a", "Secret b"}, open: []string{"Secret b (update)"}}, 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.recorded.whole(live); len(got) != tc.want {
				t.Errorf("%q, want %d contradictions", got, tc.want)
			}
		})
	}
}
