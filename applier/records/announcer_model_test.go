package records

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/differ"
)

// model simulates an API server with one component of three objects, its record and the Secret of
// announcements. Sessions use real announcers and simulate the steps of an apply. A session can
// be stopped between two steps for any time.
type model struct {
	rng     *rand.Rand
	clock   int // the last resourceVersion
	record  modelRecord
	objects map[string]int // their resourceVersions
	secret  *corev1.Secret
	// takenOver is the record's resourceVersion after the last completed takeover, and by the
	// session that took over.
	takenOver int
	by        string
	// did counts events, so that the test fails when it stops exercising them.
	did map[string]int
}

type modelRecord struct {
	version int
	writer  string
	open    []string
}

type modelSession struct {
	*announcer
	m       *model
	state   func(*modelSession) error // the next step; nil: to plan
	plan    modelRecord               // what the record was, with what was announced since
	found   *announcement
	objects map[string]int // as planned
	targets []string
	touches []string
	sent    bool // by an announcement
	// unfenced: a takeover was begun, and the open objects are not touched yet.
	unfenced bool
}

const modelComponent = "web"

func newModel(seed uint64) *model {
	m := &model{rng: rand.New(rand.NewPCG(seed, 1)), clock: 10, objects: map[string]int{"a": 1, "b": 2, "c": 3}, did: map[string]int{}} //nolint:gosec // a test has to be repeatable
	m.record = modelRecord{version: 10, writer: "s0"}
	return m
}

func (m *model) tick() int { m.clock++; return m.clock }

func (m *model) session(name string) *modelSession {
	return &modelSession{m: m, announcer: &announcer{writer: name, load: m.load, save: m.save, own: map[string]announcement{}}}
}

var errModel = errors.New("no answer")

func (m *model) load(context.Context) (*corev1.Secret, error) {
	if m.rng.IntN(50) == 0 {
		return nil, errModel
	}
	return m.secret.DeepCopy(), nil
}

// save fails when the Secret has another version. Some writes and some answers are lost.
func (m *model) save(_ context.Context, s *corev1.Secret) (string, error) {
	lost := m.rng.IntN(30)
	if lost == 0 {
		return "", errModel
	}
	has := ""
	if m.secret != nil {
		has = m.secret.ResourceVersion
	}
	if s.ResourceVersion != has {
		return "", apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, s.Name, nil)
	}
	s = s.DeepCopy()
	s.ResourceVersion = strconv.Itoa(m.tick())
	m.secret = s
	if lost == 1 {
		return "", errModel
	}
	return s.ResourceVersion, nil
}

// step does the next step of an apply. It returns an error when the promise is broken.
func (s *modelSession) step() error {
	if s.m.rng.IntN(10) == 0 { // of another component of the cluster
		if err := s.write(context.Background(), &announceRequest{component: "other-" + s.writer, record: "1"}); err == nil {
			s.release("other-" + s.writer)
		}
	}
	if s.state != nil {
		return s.state(s)
	}
	return s.read()
}

// read plans with the record and the announcement in force.
func (s *modelSession) read() error {
	m := s.m
	s.plan, s.sent, s.touches = m.record, false, nil
	s.plan.open = slices.Clone(s.plan.open)
	found, err := s.entry(context.Background(), modelComponent, strconv.Itoa(s.plan.version))
	if err != nil {
		return nil //nolint:nilerr // it plans again
	}
	if s.found = found; found != nil {
		for _, id := range found.Objects {
			if !slices.Contains(s.plan.open, id.Name) {
				s.plan.open = append(s.plan.open, id.Name)
			}
		}
		if found.Writer != s.writer {
			s.plan.writer = found.Writer
		}
	}
	s.objects = maps.Clone(m.objects)
	s.targets = nil
	for _, o := range []string{"a", "b", "c"} {
		if m.rng.IntN(2) == 0 {
			s.targets = append(s.targets, o)
		}
	}
	s.state = (*modelSession).intend
	return nil
}

func modelIDs(names []string) (ids []differ.ID) {
	for _, name := range names {
		ids = append(ids, differ.ID{Kind: "ConfigMap", Name: name})
	}
	return ids
}

func (s *modelSession) intend() error {
	a := &announceRequest{component: modelComponent, record: strconv.Itoa(s.plan.version), objects: modelIDs(s.targets)}
	foreign, open := s.plan.writer != s.writer, len(s.plan.open) > 0
	if foreign {
		a.takeover, a.known, a.objects = true, s.found, nil
		if s.found != nil {
			a.objects = s.found.Objects
		}
	}
	s.state = (*modelSession).writeIntents
	switch {
	case !foreign && open && s.unfenced:
		s.touches, s.state = s.plan.open, (*modelSession).touch
	case foreign:
		if err := s.write(context.Background(), a); err != nil {
			s.m.did["takeover refused"]++
			s.state = nil
			return nil //nolint:nilerr // it plans again
		}
		if open {
			s.state = (*modelSession).fence
		}
	case !open:
		if err := s.write(context.Background(), a); err != nil {
			s.m.did["announcement refused"]++
			s.release(modelComponent)
			return nil //nolint:nilerr // the record has to say it
		}
		s.m.did["announced"]++
		s.sent, s.state = true, (*modelSession).send
	}
	return nil
}

// put writes the record if its version is the planned one. One write in 16 is lost, and one
// answer in 16.
func (s *modelSession) put(open []string) bool {
	m := s.m
	lost := m.rng.IntN(16)
	if m.record.version != s.plan.version || lost == 0 {
		s.state = nil
		return false
	}
	foreign := s.plan.writer != s.writer
	if foreign && len(s.plan.open) > 0 {
		s.unfenced = true
	}
	m.record = modelRecord{version: m.tick(), writer: s.writer, open: open}
	s.plan.version, s.plan.writer = m.record.version, s.writer
	if foreign && !s.unfenced {
		m.did["taken over"]++
		s.tookOver()
	}
	if lost == 1 {
		s.state = nil
		return false
	}
	if foreign {
		s.release(modelComponent)
	}
	return true
}

func (s *modelSession) fence() error {
	if s.put(s.plan.open) {
		s.touches, s.state = s.plan.open, (*modelSession).touch
	}
	return nil
}

func (s *modelSession) touch() error {
	if len(s.touches) > 0 {
		s.m.objects[s.touches[0]], s.touches = s.m.tick(), s.touches[1:]
		return nil
	}
	s.m.did["fenced"]++
	s.unfenced = false
	s.tookOver()
	s.state = nil
	return nil
}

func (s *modelSession) tookOver() {
	if s.plan.version > s.m.takenOver {
		s.m.takenOver, s.m.by = s.plan.version, s.writer
	}
}

func (s *modelSession) writeIntents() error {
	if s.put(slices.Clone(s.targets)) {
		s.state = (*modelSession).send
	}
	return nil
}

func (s *modelSession) send() error {
	if len(s.targets) == 0 {
		s.state = (*modelSession).facts
		return nil
	}
	name := s.targets[0]
	s.targets = s.targets[1:]
	if s.m.objects[name] != s.objects[name] {
		return nil // 409
	}
	s.m.objects[name] = s.m.tick()
	s.m.did["updated"]++
	if s.m.takenOver > s.plan.version && s.m.by != s.writer {
		return fmt.Errorf("an update of session %s, planned with the record %d, came through after session %s had taken over with the record %d",
			s.writer, s.plan.version, s.m.by, s.m.takenOver)
	}
	return nil
}

func (s *modelSession) facts() error {
	if s.sent && s.m.rng.IntN(4) == 0 { // there is nothing new to record
		s.retract(context.Background(), modelComponent)
		s.state = nil
		return nil
	}
	if s.put(nil) && s.sent {
		s.release(modelComponent)
	}
	s.state = nil
	return nil
}

// In random orders of the steps of three sessions, with lost requests and answers, no update is
// accepted after another session has taken over, and every session can announce again at last.
func TestAnnouncementsModel(t *testing.T) {
	t.Parallel()
	all := map[string]int{}
	for seed := range uint64(300) {
		m := newModel(seed)
		sessions := []*modelSession{m.session("s0"), m.session("s1"), m.session("s2")}
		for range 120 {
			s := sessions[m.rng.IntN(len(sessions))]
			for range 1 + m.rng.IntN(8) {
				if err := s.step(); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		}
		// Each session, running alone, has to be able to announce.
		for _, s := range sessions {
			before := m.did["announced"]
			for i := 0; m.did["announced"] == before; i++ {
				if i == 500 {
					t.Fatalf("seed %d: session %s can no longer announce updates", seed, s.writer)
				}
				if err := s.step(); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		}
		for what, n := range m.did {
			all[what] += n
		}
	}
	t.Log(all)
	for _, what := range []string{"announced", "announcement refused", "takeover refused", "fenced", "taken over", "updated"} {
		if all[what] < 100 {
			t.Errorf("%q happened %d times: the model no longer exercises it", what, all[what])
		}
	}
}
