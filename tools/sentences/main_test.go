package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	for text, want := range map[string][]string{
		"One is short. This sentence has\nsix words.":                       {"This sentence has six words"},
		"a list of these things:\n\n- the first of the items\n- the second": {"a list of these things", "the first of the items"},
		"a value of 1.5 stays whole, e.g this":                              {"a value of 1.5 stays whole, e.g this"},
		"(It stands in parentheses here.) The next one begins after it.":    {"(It stands in parentheses here", "The next one begins after it"},
	} {
		if diff := cmp.Diff(want, split(text)); diff != "" {
			t.Errorf("%q: -want +got:\n%s", text, diff)
		}
	}
}

// Comments and messages count; directives, code in literals, keys and tests don't.
func TestRun(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"a.go":      "package a\n\n// F returns one of the errors.\n//nolint:all // not a word of this\nfunc F() string { return \"this message has five words\" }\n\nvar x, y = `self.a == self.b in some code here`, \"short key\"\n",
		"a_test.go": "package a\n\n// A test is not read by this.\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		options
		want string
	}{
		{options{draw: 20, most: 5}, "a.go:3 (comment, 6 words) F returns one of the errors\na.go:5 (message, 5 words) this message has five words\n2 sentences, 1 of more than 5 words (50.0 %)\n"},
		{options{draw: 0, most: 6}, "2 sentences, 0 of more than 6 words (0.0 %)\n"},
		{options{long: true, most: 5}, "a.go:3 (comment, 6 words) F returns one of the errors\n2 sentences, 1 of more than 5 words (50.0 %)\n"},
	} {
		var out strings.Builder
		if err := run(&out, root, test.options); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, out.String()); diff != "" {
			t.Errorf("%+v: -want +got:\n%s", test.options, diff)
		}
	}
}

func TestTreeWithoutSentences(t *testing.T) {
	if err := run(&strings.Builder{}, t.TempDir(), options{}); err == nil {
		t.Error("a tree without sentences is no error")
	}
}

func TestDrawIsRepeatable(t *testing.T) {
	all := make([]sentence, 100)
	for i := range all {
		all[i].line = i
	}
	first, again, other := drawn(all, options{draw: 20, seed: 1}), drawn(all, options{draw: 20, seed: 1}), drawn(all, options{draw: 20, seed: 2})
	if !cmp.Equal(first, again, cmp.AllowUnexported(sentence{})) || cmp.Equal(first, other, cmp.AllowUnexported(sentence{})) {
		t.Errorf("drawn:\n%v\n%v\n%v", first, again, other)
	}
}
