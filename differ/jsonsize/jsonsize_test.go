package jsonsize_test

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/differ/jsonsize"
)

// TestMeter: it counts the same however a text is cut into reads.
func TestMeter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text          string
		each          int
		bytes, values int64
	}{
		"Map":      {text: `{"a":1,"b":[2,3,{}]}`, each: jsonsize.Never, bytes: 20, values: 6},
		"Text":     {text: `["{[,\"{[,\\",","]`, each: jsonsize.Never, bytes: 18, values: 2},
		"Events":   {text: `{"a":{}} {"b":[1,2` + "\n", bytes: 11, values: 3},
		"Item":     {text: `{"items":[{"a":{}},{"b":1},`, each: 2, bytes: 1, values: 1},
		"NotJSON":  {text: `}}]] x`, each: jsonsize.Never, bytes: 6},
		"NotBegun": {text: `  `, bytes: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for cut := range len(c.text) + 1 {
				m := jsonsize.Meter{MaxBytes: 1000, MaxValues: 1000, Each: c.each}
				for _, part := range []string{c.text[:cut], c.text[cut:]} {
					if err := m.Count([]byte(part)); err != nil {
						t.Fatal(err)
					}
				}
				if m.Bytes() != c.bytes || m.Values() != c.values {
					t.Fatalf("cut at %d: %d bytes, %d values; want %d, %d", cut, m.Bytes(), m.Values(), c.bytes, c.values)
				}
			}
		})
	}
}

// TestMeterEnds: a limit holds within one read, too, where the count begins anew after it.
func TestMeterEnds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[1,2,3]`:             "",
		`[1,2,3,4] [1]`:       "more than 3 JSON values",
		`["0123456789012345"`: "more than 16 bytes",
	} {
		m := jsonsize.Meter{MaxBytes: 16, MaxValues: 3}
		err := m.Count([]byte(text))
		if (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: got error %v, want %q", text, err, want)
		}
	}
	m := jsonsize.Meter{MaxBytes: 2 << 20, MaxValues: 3}
	if err := m.Count(make([]byte, 2<<20+1)); err == nil || err.Error() != "more than 2 MiB" {
		t.Errorf("got error %v", err)
	}
}

// TestMemory: what is estimated is not less than what Go takes, and no multiple of it.
func TestMemory(t *testing.T) { //nolint:paralleltest // it counts what is allocated
	for name, one := range map[string]string{
		"Maps":    `{},`,
		"Lists":   `[],`,
		"Fields":  `{"a":{"b":{}}},`,
		"Objects": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"b","labels":{"app":"c"}},"data":{"a":"text"}},`,
		"Numbers": `1000000,`,
		"Texts":   `"text",`,
		"Wide":    `{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9},`,
	} {
		text := []byte("[" + strings.Repeat(one, 20_000) + "0]")
		before := heap()
		var value any
		if err := json.Unmarshal(text, &value); err != nil {
			t.Fatal(err)
		}
		is, estimate := heap()-before, int64(jsonsize.Memory(value))
		// A list grows by more than it needs.
		if estimate < is*2/3 || estimate > 4*is {
			t.Errorf("%s: %d bytes are estimated, and it takes %d", name, estimate, is)
		}
		runtime.KeepAlive(value)
		runtime.KeepAlive(text)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // it is not that large
}
