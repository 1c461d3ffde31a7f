package process_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/process"
)

// child runs a shell script and ends it with the test.
func child(t *testing.T, script string) *process.Child {
	t.Helper()
	c, err := process.StartChild(process.Spec{Path: "/bin/sh", Args: []string{"-c", script}, Dir: "/", Log: filepath.Join(t.TempDir(), "script.log")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Kill() })
	return c
}

func TestChildEnds(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, script string
		end         func(*process.Child) error
		want        string // in the error; empty: none
	}{
		"Stopped": {
			why: "A program that ends well when told to.", script: `trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done`,
			end: func(c *process.Child) error { return c.Stop(time.Minute) },
		},
		"StoppedBadly": {
			why: "How it ended must not be lost.", script: `trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done`,
			end: func(c *process.Child) error { return c.Stop(time.Minute) }, want: "exit status 3",
		},
		"StoppedEarly": {
			why: "It does not handle the signal yet.", script: `echo ready; exec sleep 600`,
			end: func(c *process.Child) error { return c.Stop(time.Minute) },
		},
		"DoesNotStop": {
			why: "It is killed, and that is no good end.", script: `trap '' TERM; echo ready; while :; do sleep 0.01; done`,
			end: func(c *process.Child) error { return c.Stop(20 * time.Millisecond) }, want: "did not stop within 20ms",
		},
		"Killed": {
			why: "A power cut is what was asked for.", script: `echo ready; exec sleep 600`,
			end: (*process.Child).Kill,
		},
		"Twice": {
			why: "Whoever cleans up need not know who was first.", script: `echo ready; exec sleep 600`,
			end: func(c *process.Child) error { return errors.Join(c.Kill(), c.Kill()) },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := child(t, tc.script)
			waitFor(t, c.Log, "ready")
			err := tc.end(c)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q; %s", err, tc.want, tc.why)
			}
			if _, err := c.Usage(); err == nil {
				t.Errorf("it still runs; %s", tc.why)
			}
		})
	}
}

func TestChildOutput(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c, err := process.StartChild(process.Spec{Path: "/bin/sh", Args: []string{"-c", "echo said; echo logged >&2"}, Log: filepath.Join(t.TempDir(), "x.log")}, &out)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Until(t.Context(), time.Minute, time.Millisecond, func(context.Context) error { return errors.New("it runs") })
	if !strings.Contains(err.Error(), "by itself") {
		t.Fatal(err)
	}
	waitFor(t, c.Log, "logged")
	if got := out.String(); got != "said\n" || c.Name != "x" {
		t.Errorf("%s said %q", c.Name, got)
	}
}

func TestChildUntil(t *testing.T) {
	t.Parallel()
	never := func(context.Context) error { return errors.New("not as it should be") }
	cases := map[string]struct {
		why, script string
		limit       time.Duration
		check       func(context.Context) error
		want        []string // in the error; empty: none
	}{
		"Passes":  {why: "There is nothing to wait for.", script: "exec sleep 600", limit: time.Minute, check: func(context.Context) error { return nil }},
		"TooLate": {why: "What was wrong last is why.", script: "exec sleep 600", limit: time.Millisecond, check: never, want: []string{"not within 1ms", "not as it should be"}},
		"Ended":   {why: "Nothing will change any more.", script: "exit 4", limit: time.Minute, check: never, want: []string{"script ended: exit status 4"}},
		"Gone":    {why: "Nor when it ended well.", script: "exit 0", limit: time.Minute, check: never, want: []string{"script ended: by itself"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := child(t, tc.script).Until(t.Context(), tc.limit, time.Millisecond, tc.check)
			if (err == nil) != (len(tc.want) == 0) {
				t.Fatalf("error %v; %s", err, tc.why)
			}
			for _, text := range tc.want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %v, want %q; %s", err, text, tc.why)
				}
			}
		})
	}
}

// TestUsageOfAll: children count that run, and the CPU of those that ended.
func TestUsageOfAll(t *testing.T) {
	t.Parallel()
	c := child(t, `sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; sh -c 'echo ready; while :; do sleep 1; done' & wait`) // the child says it: it is what it will be
	waitFor(t, c.Log, "ready")
	alone, err := c.Usage()
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.UsageOfAll()
	if err != nil {
		t.Fatal(err)
	}
	if all.CPU <= alone.CPU || all.RSS <= alone.RSS || all.Peak <= alone.Peak {
		t.Errorf("alone %+v, with children %+v", alone, all)
	}
}
