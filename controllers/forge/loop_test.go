package forge_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/controllers/preview"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// memory is a forge that remembers what was written.
type memory struct {
	forge.Proposer // which this loop asks for nothing
	mu             sync.Mutex
	pulls          []forge.PullRequest
	comments       map[int64][]forge.Comment
	statuses       map[string][]forge.Status
	writes         int
	down           error
	broken         int64 // the pull request whose comments can't be read
}

func newMemory() *memory {
	return &memory{comments: map[int64][]forge.Comment{}, statuses: map[string][]forge.Status{}}
}

func (m *memory) PullRequests(context.Context, string) ([]forge.PullRequest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pulls), m.down
}

func (m *memory) Comments(_ context.Context, number int64) ([]forge.Comment, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if number == m.broken {
		return nil, errors.New("this one is broken")
	}
	return slices.Clone(m.comments[number]), m.down
}

func (m *memory) Status(_ context.Context, revision string) (forge.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if all := m.statuses[revision]; len(all) > 0 {
		return all[len(all)-1], m.down
	}
	return forge.Status{}, m.down
}

func (m *memory) Reviews(context.Context, int64) ([]forge.Review, error) { return nil, m.down }

func (m *memory) SetStatus(_ context.Context, revision string, s forge.Status) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	m.statuses[revision] = append(m.statuses[revision], s)
	return m.down
}

func (m *memory) SetComment(_ context.Context, number int64, c forge.Comment) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	c.Body = strings.ReplaceAll(c.Body, "\n", "\r\n") + "\r\n" // as some forges do
	if c.ID == 0 {
		c.ID = int64(m.writes)
		m.comments[number] = append(m.comments[number], c)
		return m.down
	}
	i := slices.IndexFunc(m.comments[number], func(o forge.Comment) bool { return o.ID == c.ID })
	m.comments[number][i] = c
	return m.down
}

func (m *memory) DeleteComment(_ context.Context, number, id int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	m.comments[number] = slices.DeleteFunc(m.comments[number], func(c forge.Comment) bool { return c.ID == id })
	return m.down
}

// scene is a fleet of two clusters in a repository, with a forge and a loop.
type scene struct {
	*memory
	t      *testing.T
	dir    string
	now    time.Time
	tell   func(error)
	counts *prometheus.Registry
	stop   func()           // ends the process in the middle of the slow one's preview; nil: nothing does
	slow   string           // the commit whose preview never ends
	ends   map[string]error // by commit, what its preview ends with
	render int
	loop   *forge.Loop
}

const header = "apiVersion: keelson.io/v1alpha1\nkind: "

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{memory: newMemory(), t: t, dir: t.TempDir(), now: time.Unix(1_800_000_000, 0)}
	s.git("init", "-q", "-b", "main")
	s.write("fleet.yaml", header+"Fleet\nname: test\n")
	s.write("components/web/component.yaml", header+"Component\nnamespace: web\n")
	s.write("components/web/template/Chart.yaml", "apiVersion: v2\nname: web\nversion: 1.0.0\n")
	s.write("components/web/template/templates/all.yaml", `apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {text: {{ .Values.text | quote }}}
`)
	s.write("layers/10-base.yaml", header+"Layer\nclusterSelector: {}\ncomponents:\n  web: {version: HEAD, values: {text: one}}\n")
	for _, c := range []string{"a", "b"} {
		s.write("clusters/"+c+"/cluster.yaml", header+"Cluster\nconnection: {context: "+c+"}\n")
	}
	s.commit()
	s.begin()
	return s
}

// begin is a process that begins.
func (s *scene) begin() {
	s.t.Helper()
	repo, err := registry.Open(s.t.Context(), gitrepo.Options{URL: s.dir, CacheDir: s.t.TempDir(), Proposals: true})
	if err != nil {
		s.t.Fatal(err)
	}
	cache, caps := renderer.NewCache(renderer.New(), 64<<20), renderer.NewExtensions(renderer.DefaultCapabilities())
	redactor := redact.New()
	redactor.Hide("test", "hunter2-hunter2")
	compare := func(ctx context.Context, base, head *registry.Fleet) (*preview.Preview, *redact.Redactor, error) {
		p, err := preview.Make(ctx, preview.Options{
			Base: base, Head: head, Workers: 2, Bytes: 1 << 30, MaskKey: []byte("key"),
			Render: func(c *registry.Cluster) preview.Render { return renderer.NewTargets(cache, c, caps).Render },
		})
		return p, redactor, err
	}
	s.counts = prometheus.NewRegistry()
	s.loop, err = forge.NewLoop(forge.LoopOptions{
		Forge: s, Repo: repo, Version: "v1", Interval: time.Minute, Time: 20 * time.Second, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Now: func() time.Time { return s.now }, Registry: s.counts, Told: func(err error) { s.tell(err) },
		Preview: func(ctx context.Context, base, head string) (forge.Verdict, error) {
			s.render++
			if head == s.slow {
				if s.stop != nil {
					s.stop()
				}
				<-ctx.Done()
			}
			if err := s.ends[head]; err != nil {
				return forge.Verdict{}, err
			}
			return forge.Judge(ctx, repo, base, head, compare)
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// previews is how many were made since the process began, whatever became of them.
func (s *scene) previews() (n float64) {
	s.t.Helper()
	families, err := s.counts.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "keelson_previews_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			n += m.GetCounter().GetValue()
		}
	}
	return n
}

func (s *scene) write(name, content string) {
	s.t.Helper()
	path := filepath.Join(s.dir, filepath.FromSlash(name))
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) text(text string) {
	s.t.Helper()
	s.write("layers/10-base.yaml", header+"Layer\nclusterSelector: {}\ncomponents:\n  web: {version: HEAD, values: {text: "+text+"}}\n")
}

func (s *scene) git(args ...string) string {
	s.t.Helper()
	c := exec.CommandContext(s.t.Context(), "git", args...)
	c.Dir = s.dir
	c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull,
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com")
	out, err := c.CombinedOutput()
	if err != nil {
		s.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *scene) commit() string {
	s.t.Helper()
	s.git("add", "-A")
	s.git("commit", "-q", "-m", "x")
	return s.git("rev-parse", "HEAD")
}

// propose makes the files the head of a pull request, and has main checked out again.
func (s *scene) propose(number int64) string {
	s.t.Helper()
	s.git("checkout", "-q", "-B", fmt.Sprintf("topic-%d", number))
	head := s.commit()
	ref := fmt.Sprintf("refs/pull/%d/head", number)
	s.git("update-ref", ref, head)
	s.git("checkout", "-q", "main")
	s.pulls = slices.DeleteFunc(s.pulls, func(p forge.PullRequest) bool { return p.Number == number })
	s.pulls = append(s.pulls, forge.PullRequest{Number: number, Head: head, Ref: ref})
	return head
}

// pass looks once, and wants so many writes.
func (s *scene) pass(writes int) {
	s.t.Helper()
	before := s.writes
	if err := s.loop.Pass(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	if got := s.writes - before; got != writes {
		s.t.Errorf("%d writes, want %d: %v %v", got, writes, s.comments, s.statuses)
	}
}

// says is the one comment.
func (s *scene) says(number int64, parts ...string) {
	s.t.Helper()
	if len(s.comments[number]) != 1 {
		s.t.Fatalf("%d comments: %v", len(s.comments[number]), s.comments[number])
	}
	body := s.comments[number][0].Body
	if !strings.HasPrefix(body, "<!-- keelson: preview -->") {
		s.t.Errorf("the marker does not stand first: %s", body)
	}
	for _, part := range parts {
		if !strings.Contains(body, part) {
			s.t.Errorf("the comment does not say %q:\n%s", part, body)
		}
	}
}

func (s *scene) states(revision string, want ...forge.State) string {
	s.t.Helper()
	got, description := []forge.State{}, ""
	for _, one := range s.statuses[revision] {
		got = append(got, one.State)
		description = one.Description
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("statuses (-want +got):\n%s", diff)
	}
	return description
}

// One comment and a status, which a push changes, and nothing else does.
func TestPullRequest(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.text("two")
	first := s.propose(1)
	s.pass(3) // pending, the comment, success
	s.says(1, "1 component changes on 2 clusters", "+two")
	if got, want := s.states(first, forge.Pending, forge.Success), "1 component changes on 2 clusters: 2 objects updated"; got != want {
		t.Errorf("the status says %q, want %q", got, want)
	}
	s.pass(0)

	s.git("checkout", "-q", "topic-1")
	s.text("three")
	second := s.propose(1)
	s.pass(3)
	s.says(1, "+three")
	s.states(second, forge.Pending, forge.Success)

	s.write("README.md", "main moves on")
	s.commit()
	s.pass(0)
	if s.render != 2 {
		t.Errorf("%d previews, want 2: what main does changes nothing for it", s.render)
	}

	s.begin() // another process sees what was done
	s.pass(0)
	if s.render != 2 {
		t.Error("a process that begins does again what stands there")
	}
	s.pulls = nil
	s.pass(0)
}

// What the status is for each kind of change.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why    string
		change func(s *scene)
		state  forge.State
		says   string
		text   []string // of the comment; nil: there is none
	}{
		"Nothing": {
			"A comment on each corrected typo would be noise.", func(s *scene) { s.write("README.md", "x") },
			forge.Success, "nothing changes", nil,
		},
		"Mistake": {
			"It must not be merged.", func(s *scene) { s.write("clusters/a/web.yaml", header+"MetaConfig\nversion: v9.9.9\n") },
			forge.Failure, "1 mistake; nothing changes",
			[]string{"clusters/a/web.yaml"},
		},
		"Broken": {
			"As above: nothing could be read any more.", func(s *scene) { s.write("fleet.yaml", "kind: Flotilla @all\n") },
			forge.Failure, "The fleet can't be read with this change",
			[]string{"`load", "fleet.yaml"},
		},
		"Held": {
			"It waits for an approval in git, which may come in the same pull request.",
			func(s *scene) {
				s.write("fleet.yaml", header+"Fleet\nname: test\ndanger:\n- {name: no-text, match: {kinds: [ConfigMap]}, path: .data.text, on: [change], effect: hold, because: of the test}\n")
				s.text("two")
			},
			forge.Success, "2 objects held; 1 component changes on 2 clusters",
			[]string{"Held", "of the test"},
		},
		"Denied": {
			"It would make deliveries fail.",
			func(s *scene) {
				s.write("fleet.yaml", header+"Fleet\nname: test\ndanger:\n- {name: no-text, match: {kinds: [ConfigMap]}, path: .data.text, on: [change], effect: deny, because: of the test}\n")
				s.text("two")
			},
			forge.Failure, "2 objects denied; 1 component changes",
			[]string{"of the test"},
		},
		"Secret": {
			"No comment shows a value of the change's own Secrets.", func(s *scene) { s.text("hunter2-hunter2") },
			forge.Success, "1 component changes",
			[]string{"+***"},
		},
		"Mentions": {
			"Text of a pull request mentions no user, and ends no code block.", func(s *scene) { s.text(`"@everyone\n` + "```" + `\n/close\n# heading"`) },
			forge.Success, "1 component changes",
			[]string{"````diff"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			c.change(s)
			head := s.propose(7)
			if err := s.loop.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := s.states(head, forge.Pending, c.state); !strings.HasPrefix(got, c.says) {
				t.Errorf("the status says %q, want %q. %s", got, c.says, c.why)
			}
			if c.text == nil {
				if len(s.comments[7]) > 0 {
					t.Errorf("there is a comment. %s", c.why)
				}
				return
			}
			s.says(7, c.text...)
			if body := s.comments[7][0].Body; strings.Contains(body, "hunter2") {
				t.Errorf("it shows a secret: %s", body)
			}
		})
	}
}

// What was missing comes with a tag: who failed for it is looked at again.
func TestTagComes(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.write("clusters/a/web.yaml", header+"MetaConfig\nversion: v1.0.0\n")
	head := s.propose(1)
	s.pass(3)
	s.states(head, forge.Pending, forge.Failure)
	s.pass(0)
	s.git("tag", "web/v1.0.0", "main")
	s.pass(2) // the comment and the status, which was final
	s.states(head, forge.Pending, forge.Failure, forge.Success)
	s.says(1, "web HEAD → v1.0.0")
}

// One that is broken, or takes for ever, is in no other's way; one whose commit the
// repository does not have yet is tried again.
func TestOthersGoOn(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.text("two")
	s.propose(1)
	s.text("three")
	third := s.propose(3)
	s.pulls[0].Head = strings.Repeat("1", 40) // the forge knows more than its repository
	s.broken = 2
	s.text("four")
	s.propose(2)
	s.pass(3)
	s.states(third, forge.Pending, forge.Success)
	s.broken = 0
	s.pass(0) // it is not their time yet
	s.now = s.now.Add(3 * time.Second)
	s.pass(3)
	s.says(2, "+four")
}

// One that takes for ever is ended, and tried again later each time.
func TestSlow(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.loop.Time = 50 * time.Millisecond
	s.text("two")
	s.slow = s.propose(1)
	s.pass(3)
	s.says(1, "The preview takes longer than 50ms")
	s.states(s.slow, forge.Pending, forge.Error)
	for _, wait := range []time.Duration{time.Second / 2, time.Second, 2 * time.Second} {
		before := s.previews() // a slow machine may end one before it renders
		s.now = s.now.Add(wait - 1)
		s.pass(0)
		s.now = s.now.Add(1)
		s.pass(0) // it says the same
		if got := s.previews() - before; got != 1 {
			t.Errorf("%v previews after %s, want 1", got, wait)
		}
	}
	fixed := s.slow
	s.slow = ""
	s.loop.Time = time.Minute
	s.now = s.now.Add(4 * time.Second)
	s.pass(2)
	s.states(fixed, forge.Pending, forge.Error, forge.Success)
}

// What a change would end in whenever it is tried is final: it is said once, and not tried
// again before something else is known. The other pull requests have their previews.
func TestTooMuch(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{
		"Secrets": forge.ErrTooManySecrets,
		"Bytes":   fmt.Errorf("compare web on a: %w: the differences take more than 128 MiB", preview.ErrTooMuch),
		"Rules":   fmt.Errorf("compare web on a: %w: the danger rules", differ.ErrTooMuch),
		"Memory":  fmt.Errorf("%w: 512 MiB", renderer.ErrTaskMemory),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.text("two")
			head := s.propose(1)
			s.ends = map[string]error{head: end}
			s.text("three")
			other := s.propose(2)
			s.pass(6)
			s.says(1, "The change is too much to preview", end.Error())
			s.states(head, forge.Pending, forge.Error)
			s.states(other, forge.Pending, forge.Success)
			s.now = s.now.Add(time.Hour)
			s.pass(0)
			if s.render != 2 {
				t.Errorf("%d previews, want 2", s.render)
			}
		})
	}
}

// A preview that an earlier process began and did not finish may be what ended it: it is
// not begun again at once, and in the end not at all. So it is with one that failed.
func TestBegunByAnother(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.text("two")
	head := s.propose(1)
	crash := func() { // the process ends in the middle of the preview
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		s.slow = head
		s.stop = stop
		if err := s.loop.Pass(ctx); err != nil {
			t.Fatal(err)
		}
		s.begin()
	}
	crash()
	s.states(head, forge.Pending)
	for attempt := 2; attempt <= 5; attempt++ {
		s.pass(0)
		s.now = s.now.Add(time.Minute - 1)
		s.pass(0)
		s.now = s.now.Add(1)
		crash()
		if got, want := s.statuses[head][attempt-1].Description, fmt.Sprintf("attempt %d", attempt); !strings.Contains(got, want) {
			t.Errorf("the status says %q, want %q", got, want)
		}
	}
	s.slow = ""
	before := s.render
	s.pass(0)
	s.now = s.now.Add(time.Minute)
	s.pass(2)
	s.says(1, "ended 5 times before it was done")
	s.states(head, forge.Pending, forge.Pending, forge.Pending, forge.Pending, forge.Pending, forge.Error)
	s.now = s.now.Add(time.Hour)
	s.pass(0)
	if s.render != before {
		t.Errorf("it was previewed again")
	}

	s.begin() // what ended in an error waits as long, and may have passed
	s.pass(0)
	s.now = s.now.Add(time.Minute)
	s.pass(3)
	s.says(1, "+two")
}

// A forge that is down changes nothing, and says so once.
func TestForgeDown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.text("two")
	s.propose(1)
	down := errors.New("the forge is down")
	s.down = down
	if err := s.loop.Pass(t.Context()); !errors.Is(err, down) || s.writes > 0 {
		t.Errorf("%v, %d writes", err, s.writes)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var told []error
	s.tell = func(err error) {
		if told = append(told, err); err == nil {
			stop()
			return
		}
		s.mu.Lock()
		s.down = nil
		s.mu.Unlock()
		s.loop.Soon()
	}
	s.loop.Run(ctx)
	if len(told) != 2 || told[0] == nil || told[1] != nil {
		t.Errorf("told %v", told)
	}
	s.says(1, "+two")
}

// Two processes may both make a comment. Only one of them stays. A comment that only quotes the
// marker is a person's answer, and stays too.
func TestOneComment(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.text("two")
	s.propose(1)
	quote := forge.Comment{ID: 90, Body: "see\n> <!-- keelson: preview -->"}
	s.comments[1] = []forge.Comment{quote, {ID: 91, Body: "<!-- keelson: preview -->\nold"}, {ID: 92, Body: "<!-- keelson: preview -->\nold"}}
	s.pass(4)
	if got := s.comments[1]; len(got) != 2 || got[0] != quote || !strings.Contains(got[1].Body, "+two") || got[1].ID != 91 {
		t.Errorf("%v", got)
	}
}
