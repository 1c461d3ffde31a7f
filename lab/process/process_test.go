package process_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/process"
)

// start runs a shell script and ends it with the test.
func start(t *testing.T, script string) (id process.ID, log string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "log")
	id, err := process.Start(process.Spec{
		Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"PATH=/usr/bin:/bin", "GREETING=hello"}, Dir: "/", Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = id.Signal(syscall.SIGKILL) })
	return id, log
}

func alive(t *testing.T, id process.ID) bool {
	t.Helper()
	is, err := id.Alive()
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// waitFor waits until a log holds a line.
func waitFor(t *testing.T, log, line string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		data, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(line+"\n")) {
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%q never came; the log is %q", line, data)
		case <-tick.C:
		}
	}
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	id, log := start(t, `echo $GREETING $HOME; exec sleep 600`)
	waitFor(t, log, "hello") // and nothing of our environment
	if !alive(t, id) {
		t.Fatal("not alive after its start")
	}
	pgid, err := syscall.Getpgid(id.PID)
	if err != nil || pgid != id.PID {
		t.Errorf("process group %d (%v), want its own, %d", pgid, err, id.PID)
	}
	usage, err := id.Usage()
	if err != nil || usage.RSS <= 0 || usage.Peak < usage.RSS/2 || usage.Age < 0 || usage.Age > time.Minute {
		t.Errorf("usage %+v, %v", usage, err)
	}

	if err := id.Stop(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if alive(t, id) {
		t.Error("alive after Stop")
	}
	if err := id.Stop(t.Context(), time.Minute); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
	if _, err := id.Usage(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("usage after Stop: %v, want %v", err, os.ErrProcessDone)
	}
}

func TestStopKillsWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	id, log := start(t, `trap '' TERM; echo ready; exec sleep 600`)
	waitFor(t, log, "ready")
	if err := id.Stop(t.Context(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if alive(t, id) {
		t.Error("alive after Stop")
	}
}

// The record of a process may be older than the pid's present owner.
func TestReusedPIDIsLeftAlone(t *testing.T) {
	t.Parallel()
	owner, _ := start(t, `exec sleep 600`)
	cases := map[string]struct {
		why    string
		change func(*process.ID)
	}{
		"StartedAtAnotherTime": {
			why:    "The pid was reused in the same boot.",
			change: func(id *process.ID) { id.Start-- },
		},
		"AnotherBoot": {
			why:    "After a reboot both pid and start can be equal by chance.",
			change: func(id *process.ID) { id.Boot = "00000000-0000-0000-0000-000000000000" },
		},
		"Nothing": {
			why:    "A process that was never started has the zero ID.",
			change: func(id *process.ID) { *id = process.ID{} },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			recorded := owner
			tc.change(&recorded)
			if alive(t, recorded) {
				t.Errorf("alive; %s", tc.why)
			}
			if recorded.PID > 0 {
				if err := recorded.Signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
					t.Errorf("Signal: %v, want %v; %s", err, os.ErrProcessDone, tc.why)
				}
			}
			if err := recorded.Stop(t.Context(), 0); err != nil {
				t.Errorf("Stop: %v; %s", err, tc.why)
			}
			if !alive(t, owner) {
				t.Fatalf("the pid's owner was ended; %s", tc.why)
			}
		})
	}
}
