// Package kwok_test tests workloads of apps.kruise.io on a hundred nodes simulated by kwok. The API
// server, the scheduler and keelson workloads are real processes. A watch records the pods, and the
// tests check every event. make e2e-kwok builds the needed programs and sets their paths.
package kwok_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
	"github.com/keelson-io/keelson/lab/process"
)

const (
	name  = "kwok"
	nodes = 100
)

// yard is the cluster and the keelson workloads process, shared by all tests.
type yard struct {
	cluster   *workloadtest.Cluster
	lab       *cluster.Lab
	dir       string
	log       string // audit log
	workloads *process.Child
}

var shared *yard // shared, because a hundred nodes are enough for all tests

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	keelson := os.Getenv("KEELSON_BINARY")
	if keelson == "" {
		return m.Run() // each test reports why it is skipped
	}
	y, err := open(context.Background(), keelson)
	defer func() {
		if err := y.close(context.Background(), code != 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared = y
	return m.Run()
}

func open(ctx context.Context, keelson string) (y *yard, err error) {
	y = &yard{}
	set, err := binaries.Find()
	if err != nil {
		return y, err
	}
	if y.dir, err = os.MkdirTemp("", "keelson-kwok-"); err != nil {
		return y, err
	}
	y.lab = &cluster.Lab{Dir: filepath.Join(y.dir, "clusters"), Say: func(line string) { fmt.Println(line) }}
	if err := y.lab.Up(ctx, name, cluster.Change{Nodes: new(nodes), Audit: new(cluster.AuditMetadata)}, set); err != nil {
		return y, err
	}
	if y.log, err = y.lab.AuditLog(name); err != nil {
		return y, err
	}
	if y.cluster, err = workloadtest.Connect(y.lab, name, set); err != nil {
		return y, err
	}
	crds := filepath.Join(filepath.Dir(filepath.Dir(keelson)), "components", "workload-controllers", "template", "crds")
	for _, args := range [][]string{{"apply", "--server-side", "-f", crds}, {"wait", "--for=condition=Established", "--timeout=3m", "-f", crds}} {
		if out, err := y.cluster.Kubectl(ctx, "", args...); err != nil {
			return y, fmt.Errorf("%w: %s", err, out)
		}
	}
	user, err := y.lab.Kubeconfig(name, cluster.Keelson)
	if err != nil {
		return y, err
	}
	y.workloads, err = process.StartChild(process.Spec{
		Path: keelson, Log: filepath.Join(y.dir, "workloads.log"), Args: []string{"workloads", "--kubeconfig", user, "--lead=false", "--listen", ""},
	}, nil)
	return y, err
}

// close ends everything. The files of a failed run stay.
func (y *yard) close(ctx context.Context, failed bool) error {
	var ended []error
	if y.workloads != nil {
		ended = append(ended, y.workloads.Stop(time.Minute))
	}
	if y.lab == nil {
		return errors.Join(ended...)
	}
	if failed {
		fmt.Fprintln(os.Stderr, "logs of this run stay in", y.dir)
		ended = append(ended, workloadtest.SaveLogs(y.lab, name, y.dir))
	}
	if ended = append(ended, y.lab.Down(ctx, name)); !failed && errors.Join(ended...) == nil {
		return os.RemoveAll(y.dir)
	}
	return errors.Join(ended...)
}

// test is a test on the shared yard. Tests run in parallel, because they mostly wait.
type test struct {
	*workloadtest.Test
	*yard
}

func begin(t *testing.T) *test {
	t.Helper()
	if shared == nil {
		t.Skip("runs a cluster: needs KEELSON_BINARY, which make e2e-kwok sets")
	}
	t.Parallel()
	return &test{Test: shared.cluster.Begin(t), yard: shared}
}
