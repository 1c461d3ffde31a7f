package records

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// stored is a cluster's Secret of announcements.
type stored struct {
	secret *corev1.Secret
	writes int
}

// holding is one with some data; empty: there is no Secret.
func holding(data string) *stored {
	if data == "" {
		return &stored{}
	}
	return &stored{secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}, Data: map[string][]byte{keyIntents: []byte(data)}}}
}

func (f *stored) load(context.Context) (*corev1.Secret, error) { return f.secret.DeepCopy(), nil }

func (f *stored) save(_ context.Context, s *corev1.Secret) (string, error) {
	if f.secret != nil && f.secret.ResourceVersion != s.ResourceVersion || f.secret == nil && s.ResourceVersion != "" {
		return "", apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, intentsName, nil)
	}
	f.writes++
	s = s.DeepCopy()
	s.ResourceVersion = strconv.Itoa(100 + f.writes)
	f.secret = s
	return s.ResourceVersion, nil
}

func (f *stored) session(name string) *announcer {
	return &announcer{writer: name, load: f.load, save: f.save, own: map[string]announcement{}}
}

func takenOver(err error) bool {
	_, ok := errors.AsType[*takeoverError](err)
	return ok
}

// A session whose takeover was not followed by a write of the record can't announce updates: the
// session from which it took over may still write the record, without knowing of the updates.
func TestTakeoverIsNoAnnouncement(t *testing.T) {
	t.Parallel()
	f := holding("")
	first, second := f.session("first"), f.session("second")
	if err := second.write(t.Context(), &announceRequest{component: "web", record: "10", takeover: true}); err != nil {
		t.Fatal(err)
	}
	found, err := first.entry(t.Context(), "web", "10")
	if err == nil {
		err = first.write(t.Context(), &announceRequest{component: "web", record: "10", takeover: true, known: found})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := first.write(t.Context(), &announceRequest{component: "web", record: "10", objects: modelIDs([]string{"b"})}); !takenOver(err) {
		t.Errorf("the error is %v: it may update what the other session does not know of", err)
	}
}

// Entries may come from a backup of another cluster, with resourceVersions of that cluster.
func TestAnnouncementsOfAnotherCluster(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"Takeover":     `{"web":{"claimed":"5000000"}}`,
		"Announcement": `{"web":{"record":"5000000","writer":"old","objects":[{"kind":"ConfigMap","name":"a"}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := holding(data).session("new")
			a := &announceRequest{component: "web", record: "3000", takeover: true}
			err := s.write(t.Context(), a)
			refusal, ok := errors.AsType[*takeoverError](err)
			if !ok {
				t.Fatalf("the error is %v: nothing newer is overwritten before the record was looked at", err)
			}
			a.invalid = &refusal.by
			if err := s.write(t.Context(), a); err != nil {
				t.Errorf("it can't be taken over: %v", err)
			}
		})
	}
}

// A refusal by remembered entries reads the Secret again: the cluster may have been restored.
func TestAnnouncementsAreReadAgain(t *testing.T) {
	t.Parallel()
	f := holding("")
	s := f.session("s")
	if err := s.write(t.Context(), &announceRequest{component: "web", record: "5000", takeover: true}); err != nil {
		t.Fatal(err)
	}
	s.release("web")
	f.secret.Data[keyIntents], f.secret.ResourceVersion = []byte(`{"web":{"claimed":"300"}}`), "90"
	if err := s.write(t.Context(), &announceRequest{component: "web", record: "400", takeover: true}); err != nil {
		t.Errorf("it was refused for what is no longer said: %v", err)
	}
}

// A deleted Secret gets back the announcements that are still in force.
func TestAnnouncementsAreDeleted(t *testing.T) {
	t.Parallel()
	f := holding("")
	s := f.session("s")
	one := &announceRequest{component: "one", record: "10", objects: modelIDs([]string{"a"})}
	if err := s.write(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	f.secret = nil
	if err := s.write(t.Context(), &announceRequest{component: "two", record: "11"}); err != nil {
		t.Fatal(err)
	}
	found, err := f.session("next").entry(t.Context(), "one", "10")
	if err != nil || found == nil || len(found.Objects) != 1 {
		t.Errorf("found is %v (%v)", found, err)
	}
}

// Takeovers of removed components are dropped when there are many. Dropped takeovers still refuse
// announcements of old records.
func TestTakeoversAreForgotten(t *testing.T) {
	t.Parallel()
	f := holding("")
	s := f.session("s")
	for i := range maxTakeovers + 10 {
		name := "c" + strconv.Itoa(i)
		s.own[name] = announcement{Record: strconv.Itoa(100_000 + i), Writer: "s", TakenOverAt: strconv.Itoa(100_000 + i)}
	}
	if err := s.write(t.Context(), &announceRequest{component: "web", record: "900000", takeover: true}); err != nil {
		t.Fatal(err)
	}
	clear(s.own)
	if err := s.write(t.Context(), &announceRequest{component: "web", record: "900001"}); err != nil {
		t.Fatal(err)
	}
	if err := s.write(t.Context(), &announceRequest{component: "web", record: "900002"}); err != nil {
		t.Fatal(err)
	}
	if n := len(s.all); n > maxTakeovers {
		t.Errorf("%d takeovers are kept, more than %d", n, maxTakeovers)
	}
	old := f.session("old")
	if err := old.write(t.Context(), &announceRequest{component: "c0", record: "100000"}); !takenOver(err) {
		t.Errorf("the error is %v: the component was taken over at this record", err)
	}
	if err := old.write(t.Context(), &announceRequest{component: "c0", record: "100000", takeover: true}); err != nil {
		t.Errorf("it can't be taken over: %v", err)
	}
}

// A Secret that is half full refuses announcements, and no takeovers.
func TestAnnouncementsLeaveRoom(t *testing.T) {
	t.Parallel()
	f := holding("")
	s := f.session("s")
	var names []string
	for i := range announcedObjects {
		names = append(names, strings.Repeat("x", 200)+strconv.Itoa(i))
	}
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		err = s.write(t.Context(), &announceRequest{component: fmt.Sprint("c", i), record: "10", objects: modelIDs(names)})
	}
	if !errors.Is(err, errNoRoom) {
		t.Errorf("the error is %v", err)
	}
	if err := f.session("next").write(t.Context(), &announceRequest{component: "web", record: "10", takeover: true}); err != nil {
		t.Errorf("it can't be taken over: %v", err)
	}
}

// A hostile Secret of announcements is refused before it takes much memory.
func TestHostileAnnouncements(t *testing.T) {
	for name, data := range map[string]string{
		"Large": `{"web":{"objects":[` + strings.Repeat(`{},`, 2_000_000) + `{}]}}`,
		"Many":  `{"web":{"objects":[` + strings.Repeat(`{},`, 200_000) + `{}]}}`,
		"Empty": ` `,
		"Other": `[]`,
	} {
		t.Run(name, func(t *testing.T) {
			s := holding(data).session("s")
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := s.entry(t.Context(), "web", "1")
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), "stop all Keelson processes that write to the cluster, and delete the Secret") {
				t.Errorf("the error is %v", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 32<<20 {
				t.Errorf("it took %d MB", took>>20)
			}
		})
	}
	if a, err := holding("null").session("s").entry(t.Context(), "web", "1"); a != nil || err != nil {
		t.Errorf("of nothing it found %v (%v)", a, err)
	}
}
