package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const scan = `
{"config": {"scanner_name": "govulncheck"}}
{"osv": {"id": "GO-1", "summary": "A server runs out of memory"}}
{"osv": {"id": "GO-2", "summary": "A parser hangs"}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.2.0", "trace": [{"module": "example.com/net", "version": "v1.1.0"}]}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.2.0", "trace": [
  {"module": "example.com/net", "version": "v1.1.0", "package": "example.com/net/http", "function": "Serve"},
  {"module": "ours", "package": "ours/cmd", "function": "serve", "position": {"filename": "cmd/serve.go", "line": 7}},
  {"module": "ours", "package": "ours/cmd", "function": "Run", "position": {"filename": "cmd/run.go", "line": 12}}]}}
{"finding": {"osv": "GO-2", "trace": [{"module": "example.com/parse", "version": "v0.1.0", "package": "example.com/parse"}]}}
`

func TestRun(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, in, accepted string
		out, err          string // substrings; an empty err: no error
	}{
		"Reached": {
			"What is reached fails, with the way to it and a fix.", scan, "",
			"GO-1: A server runs out of memory\n  example.com/net v1.1.0, fixed in v1.2.0; reached from cmd/serve.go:7\n2 vulnerabilities in the modules, 1 reached, 0 of them accepted",
			"1 reached and not accepted",
		},
		"Accepted":    {"A reason accepts it.", scan, "# Why.\nGO-1 example.com/net We serve no strangers.", "accepted: We serve no strangers.", ""},
		"OtherModule": {"One vulnerability can be in two modules: each is accepted apart.", scan, "GO-1 stdlib Because.", "GO-1 in stdlib is accepted, and not reached", "1 reached and not accepted"},
		"NoReason":    {"Nothing is accepted without a reason.", scan, "GO-1 example.com/net", "", `accepted:1: want GO-ID MODULE REASON`},
		"Twice":       {"The second line may say something else.", scan, "GO-1 stdlib A.\n\nGO-1 stdlib B.", "", "accepted:3: want"},
		"Empty":       {"A scan that did not run has found nothing out.", "", "", "", "no scan"},
		"CutOff":      {"Nor has one that was cut off.", scan[:len(scan)-20], "", "", "read: unexpected EOF"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "accepted")
			if err := os.WriteFile(file, []byte(c.accepted), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := run(&out, strings.NewReader(c.in), file)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s Error %v, want %q", c.why, err, c.err)
			}
			if !strings.Contains(out.String(), c.out) {
				t.Errorf("%s Got:\n%s\nwant:\n%s", c.why, out.String(), c.out)
			}
		})
	}
}
