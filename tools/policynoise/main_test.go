package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReport uses a script that prints the same output as keelson diff.
func TestReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "keelson")
	script := `#!/bin/sh
case "$3" in
*/a/*) echo '{"objects": [{"kind": "Service", "namespace": "web", "name": "a", "state": "held", "fields": [{"path": ".spec.type", "action": "hold", "rule": "service-type", "because": "it opens"}]}]}'; exit 1 ;;
*/b/*) echo '{"objects": [{"kind": "Role", "name": "b", "state": "changed", "warnings": [{"rule": "role", "because": "it gains"}, {"rule": "role", "because": "it gains"}]}]}'; exit 1 ;;
*/c/*) echo '{"objects": []}' ;;
*) echo 'broken' >&2; exit 2 ;;
esac
`
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	charts := filepath.Join(dir, "charts")
	for _, name := range []string{"a/1..2", "b/1..2", "c/1..2", "c/2..3"} {
		if err := os.MkdirAll(filepath.Join(charts, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := (runner{keelson: program}).report(t.Context(), &out, charts); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"held: 1 of 4 (25.0 %)\nwarned of: 1 of 4 (25.0 %)", "service-type  1     0", "role          0     1",
		"a/1..2: Service web/a .spec.type: rule service-type: it opens",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

// A folder without upgrades and a failing program give an error instead of 0 %.
func TestReportOfNothing(t *testing.T) {
	t.Parallel()
	if err := (runner{keelson: "true"}).report(t.Context(), &bytes.Buffer{}, t.TempDir()); !errors.Is(err, errNone) {
		t.Errorf("error of an empty folder: %v, want %v", err, errNone)
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a", "1..2"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := (runner{keelson: "false"}).report(t.Context(), &bytes.Buffer{}, dir); err == nil {
		t.Error("a program without output passed")
	}
}
