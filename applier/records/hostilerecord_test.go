//go:build !race

package records_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/applier/records"
)

// TestHostileRecords: a Secret of 31 KiB became 737 MiB of heap. What is decoded of a record
// has a bound, in bytes and in what becomes of them.
func TestHostileRecords(t *testing.T) { //nolint:paralleltest // it counts what is allocated
	for name, c := range map[string]struct{ why, text, wantErr string }{
		"Values":  {why: "Three bytes become a map.", text: recordText("web", "{},", 1<<20), wantErr: "more than 300000 JSON values"},
		"Objects": {why: "Two bytes become an object of the inventory.", text: `{"format":2,"objects":[` + strings.Repeat("{},", 1<<20) + `{}]}`, wantErr: "more than 300000 JSON values"},
		"History": {why: "As above.", text: `{"format":2,"objects":[],"history":[` + strings.Repeat("{},", 1<<20) + `{}]}`, wantErr: "more than 300000 JSON values"},
		"Bytes":   {why: "A text compresses to nothing.", text: recordText("web", `"`+strings.Repeat("x", 33<<20)+`",`, 1), wantErr: "more than 32 MiB"},
		"Largest": {why: "What is allowed has a bound, too.", text: recordText("web", `{"a":1},`, 140_000)},
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // as above
			data := packed(t, c.text)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := records.Unpack(data)
			runtime.ReadMemStats(&after)
			if (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%s\ngot error %v, want one that says %q", c.why, err, c.wantErr)
			}
			const most = 256 << 20 // buffers grow by doubling
			if all := after.TotalAlloc - before.TotalAlloc; all > most {
				t.Errorf("%s\n%d MiB were allocated of a Secret of %d KiB", c.why, all>>20, len(data)>>10)
			} else {
				t.Logf("a Secret of %d KiB: %d MiB allocated", len(data)>>10, all>>20)
			}
		})
	}
}
