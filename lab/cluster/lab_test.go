package cluster_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
)

func lab(t *testing.T) *cluster.Lab {
	t.Helper()
	return &cluster.Lab{
		Dir: filepath.Join(t.TempDir(), "clusters"),
		Say: func(line string) { t.Log(line) },
	}
}

// programs makes a set of programs that are all the same shell script.
func programs(t *testing.T, script string) binaries.Set {
	t.Helper()
	set := binaries.Set{Dir: t.TempDir()}
	for _, b := range binaries.All() {
		if err := os.WriteFile(set.Path(b.Name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return set
}

func TestUpRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, name string
		change    cluster.Change
		err       error
	}{
		"NoPrograms": {why: "Nothing can be started.", name: "a", err: binaries.ErrMissing},
		"Options":    {why: "There is no such cluster.", name: "a", change: cluster.Change{Nodes: new(-1)}, err: cluster.ErrOptions},
		"Path":       {why: "A name becomes a path.", name: "../a"},
		"Empty":      {why: "The folder would be that of all clusters.", name: ""},
		"Long":       {why: "Nodes are named after it.", name: strings.Repeat("a", 41)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := lab(t)
			err := l.Up(t.Context(), tc.name, tc.change, binaries.Set{Dir: t.TempDir()})
			if err == nil || tc.err != nil && !errors.Is(err, tc.err) {
				t.Errorf("error %v, want %v; %s", err, tc.err, tc.why)
			}
			if _, err := os.Stat(l.Dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("something was left in %s (%v); %s", l.Dir, err, tc.why)
			}
		})
	}
}

// A cluster that fails to start says why, and nothing of it runs on; down
// removes what is left.
func TestUpThatFails(t *testing.T) {
	t.Parallel()
	l := lab(t)
	err := l.Up(t.Context(), "a", cluster.Change{}, programs(t, `echo "panic: no room" >&2; exit 1`))
	if err == nil || !strings.Contains(err.Error(), "a: etcd ended") || !strings.Contains(err.Error(), "panic: no room") {
		t.Fatalf("error %v, want the component and the end of its log", err)
	}
	all, err := l.Status(t.Context(), 0)
	if err != nil || len(all) != 1 || all[0].State != cluster.Stopped || len(all[0].Components) != 5 {
		t.Fatalf("status %+v, %v; want one cluster, stopped", all, err)
	}
	if path, err := l.Kubeconfig("a", cluster.Keelson); err != nil || path != all[0].Kubeconfigs[cluster.Keelson] {
		t.Errorf("kubeconfig %q (%v), the status says %q", path, err, all[0].Kubeconfigs[cluster.Keelson])
	}
	if info, err := os.Stat(all[0].Kubeconfigs[cluster.Admin]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the administrator's kubeconfig: %v, %v", info, err)
	}
	if path, err := l.Log("a", binaries.Etcd); err != nil || path != all[0].Components[0].Log {
		t.Errorf("log %q (%v)", path, err)
	}
	if err := l.Start(t.Context(), "a", "kubelet"); !errors.Is(err, cluster.ErrNoComponent) {
		t.Errorf("start a component that isn't there: %v, want %v", err, cluster.ErrNoComponent)
	}

	for range 2 { // the second time it is gone
		if err := l.Down(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(l.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was left in %s (%v)", l.Dir, err)
	}
}

// contextUntil returns a context that ends as soon as a file has something in it.
func contextUntil(t *testing.T, path string) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		_ = wait.PollUntilContextCancel(ctx, 5*time.Millisecond, true, func(context.Context) (bool, error) {
			info, err := os.Stat(path)
			return err == nil && info.Size() > 0, nil
		})
	}()
	return ctx, cancel
}

// A process that runs without serving is ended with the start that failed.
func TestUpThatIsCancelledStopsWhatItStarted(t *testing.T) {
	t.Parallel()
	l := lab(t)
	ctx, cancel := contextUntil(t, filepath.Join(l.Dir, "a", "logs", "etcd.log"))
	defer cancel()
	err := l.Up(ctx, "a", cluster.Change{}, programs(t, `echo begun; exec sleep 600`))
	if err == nil {
		t.Fatal("up of a cluster that never serves succeeded")
	}
	all, err := l.Status(t.Context(), 0)
	if err != nil || len(all) != 1 || all[0].State != cluster.Stopped {
		t.Errorf("status %+v, %v; want one cluster, stopped", all, err)
	}
	if err := l.Down(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

func TestDownOfWhatIsNoCluster(t *testing.T) {
	t.Parallel()
	l := lab(t)
	begun := filepath.Join(l.Dir, "a", "pki") // killed before the record was written
	if err := os.MkdirAll(begun, 0o700); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(l.Dir, "b")
	if err := os.MkdirAll(broken, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, "cluster.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Down(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	// What runs can't be told: removing the folder would lose it for good.
	if err := l.Down(t.Context(), "b"); err == nil {
		t.Error("a cluster whose record can't be read was removed")
	}
	if names, err := l.Names(); err != nil || len(names) != 1 || names[0] != "b" {
		t.Errorf("clusters %v, %v; want b", names, err)
	}
	if _, err := l.AuditLog("c"); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("the audit log of no cluster: %v, want %v", err, cluster.ErrNotFound)
	}
}
