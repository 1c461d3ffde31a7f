// Package kwok_test tests workloads of apps.kruise.io on a hundred nodes simulated by kwok. The API
// server, the scheduler and keelson workloads are real processes. A watch records the pods, and the
// tests check every event. make e2e-kwok builds the needed programs and sets their paths.
package kwok_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

const (
	name  = "kwok"
	nodes = 100
)

// test is a test on the shared cluster. Tests run in parallel, because they mostly wait.
type test struct {
	*workloadtest.Test

	log string // audit log
}

var shared *workloadtest.Shared // a hundred nodes are enough for all tests

func TestMain(m *testing.M) {
	keelson := os.Getenv("KEELSON_BINARY")
	if keelson == "" {
		os.Exit(m.Run()) // each test reports why it is skipped
	}
	change := cluster.Change{Nodes: new(nodes), Audit: new(cluster.AuditMetadata)}
	os.Exit(workloadtest.Main(m, name, "", change, func(ctx context.Context, s *workloadtest.Shared) {
		crds := filepath.Join(filepath.Dir(filepath.Dir(keelson)), "components", "workload-controllers", "template", "crds")
		must.Do(harness.InstallCRDs(ctx, must.Get(harness.Admin(s.Lab, name)), crds))
		s.Start("workloads", keelson, "workloads", "--kubeconfig", must.Get(s.Lab.Kubeconfig(name, cluster.Keelson)), "--lead=false", "--listen", "")
		shared = s
	}))
}

func begin(t *testing.T) *test {
	t.Helper()
	if shared == nil {
		t.Skip("runs a cluster: needs KEELSON_BINARY, which make e2e-kwok sets")
	}
	t.Parallel()
	return &test{Test: shared.Begin(t), log: shared.Log}
}

// play writes a pod's status, as its kubelet would.
func (n *test) play(pod, status string) {
	n.Helper()
	patch := []byte(`{"status": ` + status + `}`)
	_, err := n.Client.CoreV1().Pods(n.Namespace).Patch(n.Context(), pod, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	n.Check(err)
}

// cloneSet returns a CloneSet web of web:v1, with the rest of its spec and of its pods' metadata.
func cloneSet(spec, metadata string) string {
	return `
apiVersion: apps.kruise.io/v1beta1
kind: CloneSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}` + metadata + `}
    spec: {containers: [{name: web, image: "web:v1"}]}
  ` + spec + "\n"
}
