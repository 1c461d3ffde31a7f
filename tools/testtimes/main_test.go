package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"example.org/keelson/differ"}
{"Action":"run","Package":"example.org/keelson/differ","Test":"TestQuick"}
{"Action":"output","Package":"example.org/keelson/differ","Test":"TestQuick","Output":"=== RUN   TestQuick\n"}
{"Action":"pass","Package":"example.org/keelson/differ","Test":"TestQuick","Elapsed":0.5}
{"Action":"run","Package":"example.org/keelson/differ","Test":"TestSlow"}
{"Action":"run","Package":"example.org/keelson/differ","Test":"TestSlow/part"}
{"Action":"output","Package":"example.org/keelson/differ","Test":"TestSlow/part","Output":"=== RUN   TestSlow/part\n"}
{"Action":"output","Package":"example.org/keelson/differ","Test":"TestSlow/part","Output":"    a_test.go:7: no charts here\n"}
{"Action":"skip","Package":"example.org/keelson/differ","Test":"TestSlow/part","Elapsed":0}
{"Action":"pass","Package":"example.org/keelson/differ","Test":"TestSlow","Elapsed":2.5}
{"Action":"pass","Package":"example.org/keelson/differ","Elapsed":3}
{"Action":"start","Package":"example.org/keelson/registry"}
{"Action":"run","Package":"example.org/keelson/registry","Test":"TestKilled"}
{"Action":"fail","Package":"example.org/keelson/registry","Elapsed":9}
`

func TestRun(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, in string
		wants   []string
		err     string
	}{
		"Slowest":  {"The slowest come first.", events, []string{"TestSlow       2.5s  differ\nTestQuick      0.5s  differ\n", "registry          9.0s"}, ""},
		"Skipped":  {"A test that was left out is named with its reason.", events, []string{"differ TestSlow/part: a_test.go:7: no charts here\n"}, ""},
		"Unended":  {"A test without an end has failed.", events, []string{"\n2 passed, 1 failed, 1 skipped\n"}, ""},
		"Nothing":  {"A run without a test proves nothing.", "", nil, errNone.Error()},
		"NotEvent": {"Another file is refused.", "PASS\n", nil, "line 1 is not of go test -json"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "events.json")
			if err := os.WriteFile(file, []byte(c.in), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := run(&out, 3, []string{file})
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("%s Error %v; want %q", c.why, err, c.err)
			}
			for _, want := range c.wants {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%s It lacks %q:\n%s", c.why, want, out.String())
				}
			}
		})
	}
}
