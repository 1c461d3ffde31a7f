//go:build !race

package applier_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// A record that is larger than a Secret continues in others, which change all at
// once and leave nothing behind; grown small again, it fits into one.
func TestLargeRecord(t *testing.T) {
	w := newWorld(t)
	large := func(seed uint64) []string {
		var out []string
		for i := range 6 {
			out = append(out, configMap(fmt.Sprint("c", i), noise(seed+uint64(i), 400<<10)))
		}
		return out
	}
	for i := range 3 {
		want := w.want(fmt.Sprint("v", i), large(uint64(10*i))...)
		w.apply(want)
		w.settled(want)
		if n := len(w.parts()); n < 2 || n > 3 {
			t.Errorf("apply %d: the record continues in %d Secrets, want 2 or 3", i, n)
		}
	}
	small := make([]string, 6)
	for i := range small {
		small[i] = configMap(fmt.Sprint("c", i), "x")
	}
	want := w.want("small", small...)
	w.apply(want)
	w.settled(want)
	if n := len(w.parts()); n != 0 {
		t.Errorf("%d parts are left behind", n)
	}
}

// What the record of a component continued in goes with it, and so does what a
// killed session left.
func TestPartsGoWithTheRecord(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", largeConfigMaps(0)...))
	w.cutOff(time.Unix(1, 0), w.want("v2", largeConfigMaps(10)...), w.head())
	w.reconnect()
	if _, err := w.cluster.Recorded(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.prune(w.gone())
	w.collect()
	w.apply(w.gone())
	if names := w.partNames(); w.recorded() || len(names) > 0 {
		t.Errorf("the record is there: %v, and its parts: %v", w.recorded(), names)
	}
}

// Whoever has small records asks for parts once, when it lists the records: no
// write of one makes it look. Deletions carry the UID of what was seen.
func TestPartsCostNothingWithoutNeed(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	var asked, deleted []string
	config := rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(r.URL.RawQuery, "record-part") {
				asked = append(asked, r.URL.RawQuery)
			}
			if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/record-") {
				deleted = append(deleted, string(bodyOf(r)))
			}
			return next.RoundTrip(r)
		})
	})
	w.connect(config)
	if _, err := w.cluster.Recorded(t.Context()); err != nil {
		t.Fatal(err)
	}
	listed := len(asked)
	for _, value := range []string{"x", "z"} {
		w.apply(w.want(value, smallConfigMaps(value)...))
	}
	if listed != 1 || len(asked) != 1 {
		t.Errorf("it asked for parts %d times with the records, and then for %v", listed, asked[listed:])
	}
	w.apply(w.want("large", largeConfigMaps(0)...))
	w.apply(w.want("small", smallConfigMaps("x")...))
	if len(deleted) == 0 || len(w.parts()) > 0 {
		t.Errorf("nothing was deleted (%d), or something is left: %v", len(deleted), w.partNames())
	}
	uid := regexp.MustCompile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
	for _, body := range deleted {
		if !uid.MatchString(body) {
			t.Errorf("a deletion has no UID as its precondition: %q", body)
		}
	}
	asked = nil
	w.apply(w.want("z", smallConfigMaps("z")...))
	if len(asked) > 0 {
		t.Errorf("a record that is small again is looked after still: %v", asked)
	}
}
