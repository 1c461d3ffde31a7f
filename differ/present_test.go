package differ_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// everything returns a plan with one of each thing that a plan can have.
func everything() differ.Plan {
	at := yamlfile.Position{File: "templates/a.yaml", Line: 7}
	id := func(name string) differ.ID {
		return differ.ID{Group: "apps", Kind: "Thing", Namespace: "prod", Name: name}
	}
	lines := func(changed string) string { return "a\nb\nc\nd\n" + changed + "\nf\ng\nh\ni\n" }
	return differ.Plan{Changes: []differ.Change{
		{ID: id("settled"), Op: differ.OpNone, State: differ.StateSynced},
		{ID: id("created"), Op: differ.OpCreate, State: differ.StateChanged, Source: at, Record: object{"spec": object{"a": int64(1), "b": "x: y"}}, Admission: []differ.Addition{{Path: ".a"}}},
		{ID: id("deleted"), Op: differ.OpDelete, State: differ.StateChanged},
		{ID: id("forgotten"), Op: differ.OpForget, State: differ.StateSynced, Because: "it is gone"},
		{ID: id("kept"), Op: differ.OpNone, State: differ.StateSynced, Source: at, Fields: []differ.Field{{Path: ".a", Action: differ.ActionKeep, Live: int64(2), Target: int64(1), Rule: "mine", Because: "they say so"}}},
		{ID: id("released"), Op: differ.OpNone, State: differ.StateSynced, Source: at, Fields: []differ.Field{{Path: ".a", Action: differ.ActionRelease, Live: int64(2), Because: "another client's"}}},
		{ID: id("updated"), Op: differ.OpUpdate, State: differ.StateChanged, Source: at, Hash: "ff", Unpredicted: "the server was busy", Fields: []differ.Field{
			{Path: ".set", Action: differ.ActionSet, Live: "a", Target: "b"},
			{Path: ".added", Action: differ.ActionSet, Target: list{"a", object{"b": "c"}}},
			{Path: ".restored", Action: differ.ActionRestore, Live: false, Target: true, Because: "a person changed it"},
			{Path: ".removed", Action: differ.ActionRemove, Live: 0.5},
			{Path: ".adopted", Action: differ.ActionAdopt, Live: "a", Target: "a"},
			{Path: ".kept", Action: differ.ActionKeep, Target: "a"},
			{Path: ".lines", Action: differ.ActionSet, Live: lines("old"), Target: lines("new")},
			{Path: ".firstLine", Action: differ.ActionSet, Live: "old\nb\n", Target: "new\nb\n"},
			{Path: ".moreLines", Action: differ.ActionSet, Live: "one", Target: "one\ntwo\n"},
			{Path: ".map", Action: differ.ActionSet, Live: object{"a": int64(1), "b": int64(1)}, Target: object{"a": int64(1), "b": int64(2)}},
		}, Admission: []differ.Addition{{Path: ".x", Live: "a"}, {Path: ".y", Predicted: "b"}, {Path: ".z", Live: "a", Predicted: "b"}}},
		{ID: id("replaced"), Op: differ.OpReplace, State: differ.StateChanged, Source: at},
		{ID: id("held"), Op: differ.OpNone, State: differ.StateHeld, Source: at, Hash: "0123", Fields: []differ.Field{
			{Path: ".a", Action: differ.ActionSet, Target: "x"}, {Path: ".b", Action: differ.ActionKeep, Live: "x"}, {Path: ".c", Action: differ.ActionHold, Live: "x", Rule: "mine", Because: "they say so"},
		}},
		{ID: id("in part"), Op: differ.OpUpdate, State: differ.StateHeld, Source: at, Hash: "4567"},
		{ID: id("refused"), Op: differ.OpNone, State: differ.StateHeld, Source: at, Hash: "89ab", Rule: "refused", Because: "not in this house"},
		{ID: id("denied"), Op: differ.OpNone, State: differ.StateDenied, Source: at, Hash: "cdef", Fields: []differ.Field{
			{Path: ".a", Action: differ.ActionHold, Target: "x"}, {Path: ".b", Action: differ.ActionDeny, Target: "x\x1b[31m\u202e", Rule: "mine", Because: "never"},
		}},
	}}
}

// All that a diff can show, plain and with colors: testdata/everything.txt, in which each color is
// a word in angle brackets. -update rewrites the file.
func TestWriteText(t *testing.T) {
	t.Parallel()
	colors := strings.NewReplacer("\x1b[31m", "<red>", "\x1b[32m", "<green>", "\x1b[33m", "<yellow>", "\x1b[36m", "<cyan>", "\x1b[1m", "<bold>", "\x1b[0m", "<>")
	var plain, colored bytes.Buffer
	if err := errors.Join(everything().WriteText(&plain, false), everything().WriteText(&colored, true)); err != nil {
		t.Fatal(err)
	}
	got := colors.Replace(colored.String())
	const file = "testdata/everything.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // test data
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
	words := strings.NewReplacer("<red>", "", "<green>", "", "<yellow>", "", "<cyan>", "", "<bold>", "", "<>", "")
	if diff := cmp.Diff(words.Replace(string(want)), plain.String()); diff != "" {
		t.Errorf("without colors other words (-want +got):\n%s", diff)
	}
}

// The same plan as JSON: testdata/everything.json.
func TestMarshalJSON(t *testing.T) {
	t.Parallel()
	got := asJSON(t, everything())
	const file = "testdata/everything.json"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // test data
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// A plan's warnings are those of all its changes.
func TestWarningsCount(t *testing.T) {
	t.Parallel()
	p := differ.Plan{Changes: []differ.Change{{Warnings: make([]differ.Warning, 2)}, {}, {Warnings: make([]differ.Warning, 1)}}}
	if got := p.Warnings(); got != 3 {
		t.Errorf("%d, want 3", got)
	}
}

// A diff says what the objects were compared with, as text and in Markdown.
func TestAgainst(t *testing.T) {
	t.Parallel()
	plan := everything()
	for against, want := range map[string]string{"": "--- live\n", "base": "--- base\n"} {
		plan.Against = against
		var text, markdown bytes.Buffer
		if err := errors.Join(plan.WriteText(&text, false), plan.WriteMarkdown(&markdown)); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), want) || !strings.Contains(markdown.String(), want) {
			t.Errorf("against %q: %q is not in\n%s\n%s", against, want, text.String(), markdown.String())
		}
	}
}
