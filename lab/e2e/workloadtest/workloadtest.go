// Package workloadtest has helpers for tests of apps.kruise.io workloads on clusters of the lab:
// kubectl, a namespace for each test, and waiting for a workload's status.
package workloadtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
)

// Patience is the time limit of a wait, and Poll the interval of its checks. Patience is not a
// performance bound: a busy machine may be slow.
const (
	Patience = 3 * time.Minute
	Poll     = 50 * time.Millisecond
)

// Cluster is a running cluster with administrator access.
type Cluster struct {
	Program    string // kubectl
	Kubeconfig string
	Client     kubernetes.Interface
}

// Connect returns a running cluster of the lab.
func Connect(lab *cluster.Lab, name string, set binaries.Set) (*Cluster, error) {
	path, err := lab.Kubeconfig(name, cluster.Admin)
	if err != nil {
		return nil, err
	}
	config, err := harness.Config(lab, name, cluster.Admin)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", name, err)
	}
	return &Cluster{Program: set.Path(binaries.Kubectl), Kubeconfig: path, Client: client}, nil
}

// Kubectl runs kubectl with input on stdin. It returns the output of stdout and stderr, also with
// an error.
func (c *Cluster) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	run := exec.CommandContext(ctx, c.Program, append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	run.Stdin = strings.NewReader(input)
	out, err := run.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), err
}

// SaveLogs copies the logs of a cluster's components to a folder, before the cluster is removed. It
// does nothing if the cluster has no logs.
func SaveLogs(lab *cluster.Lab, name, to string) error {
	err := os.CopyFS(to, os.DirFS(filepath.Join(lab.Dir, name, "logs")))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("save logs: %w", err)
	}
	return nil
}

// Test is a test with its own namespace.
type Test struct {
	*testing.T
	*Cluster
	Namespace string
}

// Begin creates the namespace of a test, named after the test. If the test fails, its log shows the
// objects in the namespace.
func (c *Cluster) Begin(t *testing.T) *Test {
	t.Helper()
	n := &Test{T: t, Cluster: c, Namespace: strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(t.Name(), "Test"), "/", "-"))}
	n.Do("create", "namespace", n.Namespace)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, what := range [][]string{{"pods,clonesets,daemonsets.apps.kruise.io,statefulsets.apps.kruise.io,events", "wide"}, {"clonesets,daemonsets.apps.kruise.io,statefulsets.apps.kruise.io", "yaml"}} {
			out, err := n.Kubectl(context.WithoutCancel(t.Context()), "", "-n", n.Namespace, "get", what[0], "-o", what[1])
			t.Logf("%v\n%s", err, out)
		}
	})
	return n
}

// Check ends the test on an error.
func (n *Test) Check(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// Do runs kubectl in the namespace, and fails the test on an error.
func (n *Test) Do(args ...string) string {
	n.Helper()
	out, err := n.Kubectl(n.Context(), "", append([]string{"-n", n.Namespace}, args...)...)
	if err != nil {
		n.Fatalf("%v\n%s", err, out)
	}
	return out
}

// Apply applies manifests to the namespace.
func (n *Test) Apply(manifests string) {
	n.Helper()
	if out, err := n.Kubectl(n.Context(), manifests, "-n", n.Namespace, "apply", "-f", "-"); err != nil {
		n.Fatalf("%v\n%s", err, out)
	}
}

// Patch changes an object's spec by a merge patch. spec is JSON.
func (n *Test) Patch(object, spec string) {
	n.Helper()
	n.Do("patch", object, "--type=merge", "-p", `{"spec": `+spec+`}`)
}

// Status holds the status fields of CloneSets, StatefulSets and DaemonSets.
type Status struct {
	ObservedGeneration int64

	// Fields of a CloneSet and a StatefulSet.
	Replicas, ReadyReplicas, AvailableReplicas                      int64
	UpdatedReplicas, UpdatedReadyReplicas, UpdatedAvailableReplicas int64
	ExpectedUpdatedReplicas                                         int64
	CurrentRevision, UpdateRevision                                 string
	Batches                                                         struct{ Batch, Reason, Message string }
	VolumeClaims                                                    []struct{ CompatibleReplicas, CompatibleReadyReplicas int64 }
	// Fields of a DaemonSet, whose UpdateRevision is a hash.
	DesiredNumberScheduled, CurrentNumberScheduled, UpdatedNumberScheduled int64
	NumberReady, NumberAvailable, NumberUnavailable, NumberMisscheduled    int64
}

// Until waits until an object's status is up to date with its spec and is returns true, and returns
// the status. The object is named as for kubectl: clonesets/web, daemonsets.apps.kruise.io/agent.
func (n *Test) Until(object, what string, is func(Status) bool) Status {
	n.Helper()
	path := "/apis/apps.kruise.io/v1beta1/namespaces/" + n.Namespace + "/" + strings.Replace(object, ".apps.kruise.io", "", 1)
	var last struct {
		Metadata struct{ Generation int64 }
		Status   Status
	}
	err := wait.PollUntilContextTimeout(n.Context(), Poll, Patience, true, func(ctx context.Context) (bool, error) {
		text, err := n.Client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(ctx)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, err //nolint:wrapcheck // the test says of what
		}
		last.Status = Status{}
		if err := json.Unmarshal(text, &last); err != nil {
			return false, fmt.Errorf("%s: %w", text, err)
		}
		return last.Status.ObservedGeneration == last.Metadata.Generation && is(last.Status), nil
	})
	if err != nil {
		n.Fatalf("%s is never %s: %v: %+v", object, what, err, last.Status)
	}
	return last.Status
}

// Settled waits until a CloneSet has the given numbers of pods and updated pods, all available.
func (n *Test) Settled(set string, pods, updated int64) Status {
	n.Helper()
	return n.settled("clonesets/"+set, pods, updated)
}

// SettledStatefulSet does the same for a StatefulSet.
func (n *Test) SettledStatefulSet(set string, pods, updated int64) Status {
	n.Helper()
	return n.settled("statefulsets.apps.kruise.io/"+set, pods, updated)
}

func (n *Test) settled(object string, pods, updated int64) Status {
	n.Helper()
	return n.Until(object, fmt.Sprintf("%d pods, %d of them updated", pods, updated), func(s Status) bool {
		return s.Replicas == pods && s.ReadyReplicas == pods && s.AvailableReplicas == pods &&
			s.UpdatedReplicas == updated && s.UpdatedReadyReplicas == updated && s.UpdatedAvailableReplicas == updated
	})
}

// Pods returns the pods with the label app, by UID.
func (n *Test) Pods(app string) map[types.UID]corev1.Pod {
	n.Helper()
	list, err := n.Client.CoreV1().Pods(n.Namespace).List(n.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	n.Check(err)
	all := map[types.UID]corev1.Pod{}
	for _, p := range list.Items {
		all[p.UID] = p
	}
	return all
}

// Containers returns the statuses of the containers, by name.
func Containers(p corev1.Pod) map[string]corev1.ContainerStatus {
	all := map[string]corev1.ContainerStatus{}
	for _, c := range p.Status.ContainerStatuses {
		all[c.Name] = c
	}
	return all
}
