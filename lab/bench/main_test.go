package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const measured = `goos: linux
goarch: amd64
pkg: github.com/keelson-io/keelson/lab/bench/engines
cpu: A machine
BenchmarkSettled/engine=keelson-2      	   10000	     50000 ns/op	    8000 B/op	     100 allocs/op
BenchmarkSettled/engine=keelson-2      	   10000	    900000 ns/op	    8000 B/op	     100 allocs/op
BenchmarkSettled/engine=keelson-2      	   10000	     40000 ns/op	    8000 B/op	     100 allocs/op
BenchmarkSettled/engine=gitops-engine-2	     100	   4000000 ns/op	 1400000 B/op	   20000 allocs/op
BenchmarkFleet/engine=keelson-2        	    1000	   1000000 ns/op	        44.00 objects/op	  220000 B/op	    2200 allocs/op
BenchmarkLeaves/leaves=10/engine=keelson-2        	   20000	     10000 ns/op	    6600 B/op	      85 allocs/op
BenchmarkLeaves/leaves=10000/engine=keelson-2     	     100	   8000000 ns/op	  700000 B/op	   20000 allocs/op
BenchmarkLeaves/leaves=10000/engine=gitops-engine-2	      10	 100000000 ns/op	40000000 B/op	  560000 allocs/op
BenchmarkUnchanged/engine=keelson-2    	 5000000	       250 ns/op	       0 B/op	       0 allocs/op
BenchmarkRender/chart=coredns/engine=keelson-2              	     100	   6000000 ns/op	  100000 B/op	     900 allocs/op
BenchmarkRender/chart=coredns/engine=keelson-in-process-2   	     100	   5000000 ns/op	 2000000 B/op	   40000 allocs/op
BenchmarkOther-2                       	 5000000	       250 ns/op	       0 B/op	       0 allocs/op
PASS
ok  	github.com/keelson-io/keelson/lab/bench/engines	26.007s
`

// The table shows the median of the runs, so a disturbed run has no effect. An engine without a
// benchmark is left out of that benchmark's table.
const tables = `
  Settled                                time/op  vs keelson     B/op  allocs/op
  keelson                                50.00µs          1×  8.000kB        100
  gitops-engine                          4.000ms         80×  1.400MB      20000

  Fleet                                  time/op  vs keelson     B/op  allocs/op
  keelson                                1.000ms          1×  220.0kB       2200

  Unchanged                              time/op  vs keelson    B/op  allocs/op
  keelson                                250.0ns          1×  0.000B          0

  Render/chart=coredns                   time/op  vs keelson     B/op  allocs/op
  keelson                                6.000ms          1×  100.0kB        900
  keelson-in-process                     5.000ms      0.833×  2.000MB      40000

  Time per leaf field, of                     10    10000
  keelson                                1.000µs  800.0ns
  gitops-engine                                   10.00µs

  settled check of a Deployment: 50.00µs of 100.0µs, 8.000kB of 60.00kB
  check by unchanged hashes: 250.0ns of 1.000µs
  rendering in worker processes: 1.20 to 1.20× the time in one process, of 1.3×
`

func TestTables(t *testing.T) {
	t.Parallel()
	got, err := printed(t, measured)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.TrimPrefix(tables, "\n"), got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestNoTables(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ why, measured, want string }{
		"Nothing": {
			why:      "Without an API server every benchmark is skipped, and go test passes.",
			measured: "PASS\nok  \tengines\t0.1s\n", want: "no benchmark of an engine",
		},
		"Broken": {
			why:      "A table that lacks a result without a word would mislead.",
			measured: strings.Replace(measured, "50000 ns/op", "5oooo ns/op", 1), want: "bench.txt:5: ",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := printed(t, c.measured)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s\nerror: %v, want one with %q", c.why, err, c.want)
			}
			if got != "" {
				t.Errorf("%s\nprinted nevertheless:\n%s", c.why, got)
			}
		})
	}
}

func printed(t *testing.T, measured string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bench.txt")
	if err := os.WriteFile(file, []byte(measured), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := run(t.Context(), []string{"results", file}, &out)
	return out.String(), err
}
