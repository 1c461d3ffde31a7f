package audit_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/lab/audit"
)

const log = "testdata/audit.log"

func TestRead(t *testing.T) {
	t.Parallel()
	events, _, err := audit.Read(log, 0)
	if err != nil || len(events) != 4 {
		t.Fatalf("%d events, want 4: %v", len(events), err)
	}
	want := audit.Event{
		ID: "9a1c0c52-0001", Stage: audit.ResponseComplete, Verb: "patch",
		User: "keelson", UserAgent: "keelson/v0",
		Resource:     audit.Resource{Group: "apps", Version: "v1", Resource: "deployments", Namespace: "kube-system", Name: "dns"},
		Code:         200,
		URI:          "/apis/apps/v1/namespaces/kube-system/deployments/dns?dryRun=All&fieldManager=keelson&force=true",
		Received:     time.Date(2026, 1, 2, 3, 4, 5, 1000, time.UTC),
		Time:         time.Date(2026, 1, 2, 3, 4, 5, 250e6, time.UTC),
		DryRun:       true,
		FieldManager: "keelson",
		Force:        true,
		Request:      []byte(`{"spec":{"replicas":3}}`),
		Response:     []byte(`{"spec":{"replicas":3},"status":{}}`),
	}
	if diff := cmp.Diff(want, events[0]); diff != "" {
		t.Errorf("first event (-want +got):\n%s", diff)
	}

	kinds := []struct {
		write, read, watch bool
		line               string
	}{
		{write: true, line: "03:04:05.250 keelson patch apps/v1 deployments kube-system/dns 200 dry-run as keelson forced"},
		{watch: true, line: "03:04:06.000 keelson watch v1 configmaps 200"},
		{read: true, line: "03:04:07.000 admin get /openapi/v3 304"},
		{write: true, line: "03:04:08.000 admin update apps/v1 deployments/scale web/shop 409"},
	}
	for i, want := range kinds {
		e := events[i]
		if e.Write() != want.write || e.Read() != want.read || e.Watch() != want.watch {
			t.Errorf("%s: write %t, read %t, watch %t", e.Verb, e.Write(), e.Read(), e.Watch())
		}
		if got := e.String(); got != want.line {
			t.Errorf("line %q, want %q", got, want.line)
		}
	}
}

// A reader follows a log that is being written to.
func TestReadGoesOnWhereItEnded(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSpace(string(data)), "\n")
	path := filepath.Join(t.TempDir(), "audit.log")
	if end, err := audit.End(path); err != nil || end != 0 {
		t.Errorf("a log that isn't there ends at %d, %v", end, err)
	}

	var next int64
	read := func(content string, want ...string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		var events []audit.Event
		if events, next, err = audit.Read(path, next); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range events {
			got = append(got, e.Verb)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("verbs (-want +got):\n%s", diff)
		}
	}
	read(lines[0], "patch")
	read(lines[0])
	read(lines[0] + lines[1][:100]) // half a line
	read(lines[0]+lines[1]+lines[2], "watch", "get")
	if end, err := audit.End(path); err != nil || end != next {
		t.Errorf("the log ends at %d (%v), was read to %d", end, err, next)
	}

	if err := os.WriteFile(path, []byte(lines[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := audit.Read(path, next); !errors.Is(err, audit.ErrRotated) {
		t.Errorf("a log that became shorter: %v, want %v", err, audit.ErrRotated)
	}
}

func write(t *testing.T, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadRefusesWhatIsNoEvent(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ why, line string }{
		"NoJSON":  {why: "Lines that two writers mixed.", line: `{"auditID":{"auditID"`},
		"NoEvent": {why: "Not an audit log.", line: `{}`},
		"NoURI":   {why: "What was asked for can't be told.", line: `{"auditID":"1","stage":"ResponseComplete","verb":"get","requestURI":"%"}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			events, next, err := audit.Read(write(t, string(good)+tc.line+"\n"), 0)
			if err == nil || len(events) != 4 || next != int64(len(good)) {
				t.Errorf("%d events to byte %d, error %v; %s", len(events), next, err, tc.why)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	data, err := os.ReadFile(log)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data, int64(0))
	f.Add([]byte("{}\n"), int64(1))
	f.Fuzz(func(t *testing.T, data []byte, since int64) {
		path := write(t, string(data))
		if since < 0 || since > int64(len(data)) {
			return
		}
		events, next, _ := audit.Read(path, since)
		if next < since || next > int64(len(data)) {
			t.Fatalf("read from %d to %d of %d", since, next, len(data))
		}
		for _, e := range events {
			_ = e.String()
		}
	})
}

// A line that is being written ends before the offset: reading would begin in the middle
// of it.
func TestEndWaitsForTheLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	write := func(text string) {
		if _, err := f.WriteString(text); err != nil {
			t.Error(err)
		}
	}
	const line = `{"kind":"Event"}` + "\n"
	write(line + line[:5])
	go write(line[5:])
	end, err := audit.End(path)
	if err != nil || end != int64(2*len(line)) {
		t.Errorf("it ends at %d of %d, %v", end, 2*len(line), err)
	}
}
