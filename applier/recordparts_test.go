//go:build !race

package applier_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
)

// noise is a text that does not compress.
func noise(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, seed))
	data := make([]byte, n*3/4)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return base64.StdEncoding.EncodeToString(data)
}

// largeConfigMaps make a record that takes more than one Secret.
func largeConfigMaps(seed uint64) []string {
	var out []string
	for i := range 4 {
		out = append(out, configMap(fmt.Sprint("c", i), noise(seed+uint64(i), 400<<10)))
	}
	return out
}

func smallConfigMaps(value string) []string {
	var out []string
	for i := range 4 {
		out = append(out, configMap(fmt.Sprint("c", i), value))
	}
	return out
}

// head matches the write of the component's record that follows on parts of it.
func (w *world) head() func(*http.Request) bool {
	var parts atomic.Bool
	return func(r *http.Request) bool {
		own := strings.Contains(r.URL.Path, "/keelson-system/secrets")
		if own && r.Method == http.MethodPost && bytes.Contains(bodyOf(r), []byte("keelson.io/record-part")) {
			parts.Store(true)
			return false
		}
		return parts.Load() && own && (r.Method == http.MethodPost || r.Method == http.MethodPut)
	}
}

// parts are the Secrets that the record is continued in.
func (w *world) parts() []unstructured.Unstructured {
	w.t.Helper()
	list, err := w.dynamic.Resource(secrets).Namespace("keelson-system").List(w.t.Context(),
		metav1.ListOptions{LabelSelector: "keelson.io/record-part=" + w.component})
	if err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// partNames are the names of the Secrets that the record is continued in.
func (w *world) partNames() []string {
	w.t.Helper()
	var out []string
	for _, u := range w.parts() {
		out = append(out, u.GetName())
	}
	slices.Sort(out)
	return out
}

// A session that was killed with the parts of a large record written, and not their
// head, leaves nothing behind once another one has written the record.
func TestPartsOfKilledWriterAreSwept(t *testing.T) {
	cases := map[string]struct {
		why              string
		old, begun, then []string
		parts            int // in the end
	}{
		"First":  {"It was the first apply.", nil, largeConfigMaps(10), largeConfigMaps(10), 2},
		"Large":  {"The record was large before, and is.", largeConfigMaps(0), largeConfigMaps(10), largeConfigMaps(20), 2},
		"Same":   {"The same is tried again.", largeConfigMaps(0), largeConfigMaps(10), largeConfigMaps(10), 2},
		"Grows":  {"It was to grow large.", smallConfigMaps("x"), largeConfigMaps(10), largeConfigMaps(20), 2},
		"Small":  {"No head ever named a part.", smallConfigMaps("x"), largeConfigMaps(10), smallConfigMaps("z"), 0},
		"Shrink": {"The next record needs none.", largeConfigMaps(0), largeConfigMaps(10), smallConfigMaps("z"), 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if c.old != nil {
				w.apply(w.want("v1", c.old...))
			}
			before := len(w.parts())
			w.cutOff(time.Unix(1, 0), w.want("v2", c.begun...), w.head())
			if n := len(w.parts()); n < before+2 {
				t.Fatalf("%s There are %d parts, and were %d: the killed session left none", c.why, n, before)
			}
			w.reconnect()
			if _, err := w.cluster.Recorded(t.Context()); err != nil { // as every process begins
				t.Fatal(err)
			}
			want := w.want("v3", c.then...)
			w.apply(want)
			w.settled(want)
			if names := w.partNames(); len(names) != c.parts {
				t.Errorf("%s The parts are %v, want %d", c.why, names, c.parts)
			}
		})
	}
}

// A writer takes over while the one before it sweeps: the parts of its head, which
// comes next, stay, and the record can be read at any time. A writer whose head is
// refused sweeps its own with the next one.
func TestPartsOfNextWriterStay(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", largeConfigMaps(0)...))

	sweeps := newGate(func(r *http.Request) bool {
		return r.Method == http.MethodGet && strings.Contains(r.URL.RawQuery, "record-part%3D"+w.component)
	})
	first := make(chan error, 1)
	config := rest.CopyConfig(server)
	config.Wrap(sweeps.wrap)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch && !r.URL.Query().Has("dryRun") {
				return nil, errKilled // when it has swept
			}
			return next.RoundTrip(r)
		})
	})
	old, err := applier.New(applier.Options{Name: "test", Config: config, Writer: records.Writer{Identity: "old"}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := old.Plan(t.Context(), w.want("v2", largeConfigMaps(10)...))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := old.Apply(t.Context(), p, applier.ApplyOptions{Now: time.Unix(2, 0)})
		first <- err
	}()
	<-sweeps.reached // its head is written

	w.reconnect()
	want := w.want("v3", largeConfigMaps(20)...)
	finish := w.held(want, w.head()) // its parts are written, and its head is not
	made := w.partNames()
	close(sweeps.open)
	if err := <-first; !errors.Is(err, errKilled) {
		t.Fatalf("the first apply ended with %v", err)
	}
	left := w.partNames()
	w.reconnect()
	if _, err := w.cluster.Record(t.Context(), w.component); err != nil {
		t.Errorf("the record can't be read: %v", err)
	}
	// Two of v1, two of the head that is there, two of the one that comes.
	if len(made) != 6 || len(left) != 4 {
		t.Fatalf("the parts were %v, and are %v", made, left)
	}
	if err := finish(); err != nil && !errors.Is(err, applier.ErrStale) {
		t.Fatal(err)
	}
	w.reconnect()
	w.until(want, nil)
	w.settled(want)
	if names := w.partNames(); len(names) != 2 {
		t.Errorf("the parts are %v in the end", names)
	}
}

// Who reads a record while it is replaced, and its parts are deleted, gets the next.
func TestRecordIsReadWhileReplaced(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", largeConfigMaps(0)...))
	reads := newGate(func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/record-"+w.component+".") })
	config := rest.CopyConfig(server)
	config.Wrap(reads.wrap)
	reader, err := applier.New(applier.Options{Name: "test", Config: config})
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		r, err := reader.Record(t.Context(), w.component)
		if err == nil && r.Version != "v2" {
			err = fmt.Errorf("it is of version %s", r.Version)
		}
		read <- err
	}()
	<-reads.reached
	w.apply(w.want("v2", largeConfigMaps(10)...))
	close(reads.open)
	if err := <-read; err != nil {
		t.Error(err)
	}
}

// A part that is missing is an error and no absence: nothing is planned.
func TestMissingPart(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", largeConfigMaps(0)...)
	w.apply(want)
	lost := w.parts()[1].GetName()
	if err := w.dynamic.Resource(secrets).Namespace("keelson-system").Delete(t.Context(), lost, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.reconnect()
	if _, err := w.cluster.Plan(t.Context(), want); err == nil || !strings.Contains(err.Error(), lost) {
		t.Errorf("error is %v, want one that names %s", err, lost)
	}
}
