// Package nodes_test tests workloads of apps.kruise.io on real nodes: kubelets, containers,
// Services. make e2e builds the needed programs and sets their paths.
package nodes_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

const (
	name  = "e2e"
	nodes = 5
)

// nodeCluster is the cluster with real nodes and the workload controllers.
type nodeCluster struct {
	*workloadtest.Shared

	keelson  string // the program
	registry string // of the images
	fleet    *fleet
}

var shared *nodeCluster // shared, because a machine can have one cluster with real nodes

func TestMain(m *testing.M) {
	keelson, program := os.Getenv("KEELSON_BINARY"), os.Getenv("KEELSON_LAB")
	if keelson == "" || program == "" {
		os.Exit(m.Run()) // each test reports why it is skipped
	}
	change := cluster.Change{Node: new(cluster.RealNodes), Nodes: new(nodes)}
	os.Exit(workloadtest.Main(m, name, program, change, func(ctx context.Context, s *workloadtest.Shared) {
		c := &nodeCluster{Shared: s, keelson: keelson, registry: must.Get(s.Lab.Registry(name))}
		c.deliver(ctx)
		shared = c
	}))
}

// test is a test with its own namespace.
type test struct {
	*workloadtest.Test

	log, registry string
	fleet         *fleet
	mark          int64 // of the audit log
}

func begin(t *testing.T) *test {
	t.Helper()
	if shared == nil {
		t.Skip("runs on real nodes: needs KEELSON_BINARY and KEELSON_LAB, which make e2e sets")
	}
	var own string
	t.Cleanup(func() { // runs after the log of a failed test has shown the namespace
		if own == "" {
			return
		}
		if out, err := shared.Kubectl(context.WithoutCancel(t.Context()), "", "delete", "namespace", own, "--wait=false"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	n := &test{Test: shared.Begin(t), log: shared.Log, registry: shared.registry, fleet: shared.fleet}
	own = n.Namespace
	n.listen()
	return n
}

// apply applies manifests. IMAGE/ stands for the image registry.
func (n *test) apply(manifests string) {
	n.Helper()
	n.Apply(n.images(manifests))
}

func (n *test) images(text string) string { return strings.ReplaceAll(text, "IMAGE/", n.registry+"/") }

// image changes the image of a workload's container web.
func (n *test) image(object, image string) {
	n.Helper()
	n.Do("patch", object, "--type=json", "-p", n.images(`[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "IMAGE/`+image+`"}]`))
}

// listen marks the end of the audit log.
func (n *test) listen() {
	n.Helper()
	var err error
	n.mark, err = audit.End(n.log)
	n.Check(err)
}

// steps returns the changes of a pod since was, in order, with their writer: "workload-controllers:
// gate False", "workload-controllers: image web:v2", "kubelet: runs web:v2", "workload-controllers:
// gate True".
func (n *test) steps(was corev1.Pod, container string) []string {
	n.Helper()
	events, _, err := audit.Read(n.log, n.mark)
	n.Check(err)
	type write struct {
		by  string
		pod corev1.Pod
	}
	var writes []write
	for _, e := range events {
		if e.Resource.Resource != "pods" || e.Resource.Namespace != n.Namespace || e.Resource.Name != was.Name || !e.Write() || e.Code != http.StatusOK {
			continue
		}
		w := write{by: map[bool]string{true: "kubelet", false: e.User}[strings.HasPrefix(e.User, "system:node:")]}
		w.by = strings.TrimPrefix(w.by, "system:serviceaccount:keelson-system:")
		if err := json.Unmarshal(e.Response, &w.pod); err != nil {
			n.Fatalf("%s: %v", e, err)
		}
		writes = append(writes, w)
	}
	// The log has an entry when a request is answered, so entries can be out of order.
	version := func(w write) int64 {
		is, err := strconv.ParseInt(w.pod.ResourceVersion, 10, 64)
		n.Check(err)
		return is
	}
	slices.SortStableFunc(writes, func(a, b write) int { return cmp.Compare(version(a), version(b)) })
	var steps []string
	last := n.facts(was, container)
	for _, w := range writes {
		for i, fact := range n.facts(w.pod, container) {
			if fact != last[i] && fact != "" {
				last[i] = fact
				steps = append(steps, w.by+": "+fact)
			}
		}
	}
	return steps
}

// facts returns the properties that an update in place changes: gate, image, running image.
func (n *test) facts(p corev1.Pod, container string) [3]string {
	var facts [3]string
	for _, c := range p.Status.Conditions {
		if c.Type == "InPlaceUpdateReady" {
			facts[0] = "gate " + string(c.Status)
		}
	}
	for _, c := range p.Spec.Containers {
		if c.Name == container {
			facts[1] = "image " + strings.TrimPrefix(c.Image, n.registry+"/")
		}
	}
	if c := workloadtest.Containers(p)[container]; c.State.Running != nil {
		facts[2] = "runs " + strings.TrimPrefix(c.Image, n.registry+"/")
	}
	return facts
}

// ask starts clients that send requests to the Service web until result is called. result returns the
// number of answers per version, and the errors. Each request uses a new connection, for which
// kube-proxy chooses a pod.
func (n *test) ask(clients int) (result func() (answers map[string]int, failed []error)) {
	n.Helper()
	url := n.service()
	ctx, stop := context.WithCancel(n.Context())
	var (
		mu       sync.Mutex
		answers  = map[string]int{}
		failed   []error
		together sync.WaitGroup
	)
	for range clients {
		together.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
			for ctx.Err() == nil {
				version, err := one(client, url) // not canceled, so that the last request completes
				mu.Lock()
				if err != nil {
					failed = append(failed, err)
				} else {
					answers[version]++
				}
				mu.Unlock()
				_ = process.Wait(ctx, 5*time.Millisecond) // an error means that ctx has ended
			}
		})
	}
	return func() (map[string]int, []error) {
		stop()
		together.Wait()
		return answers, failed
	}
}

func one(client *http.Client, url string) (version string, err error) {
	response, err := client.Get(url) //nolint:noctx // bounded by the client
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var answer struct{ Version string }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %w", response.Status, err)
	}
	return answer.Version, nil
}

// service returns the URL of the Service web.
func (n *test) service() string {
	n.Helper()
	s, err := n.Client.CoreV1().Services(n.Namespace).Get(n.Context(), "web", metav1.GetOptions{})
	n.Check(err)
	return (&url.URL{Scheme: "http", Host: s.Spec.ClusterIP, Path: "/"}).String()
}

// answer returns the version with which a pod answers.
func (n *test) answer(p corev1.Pod) (string, error) {
	n.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	return one(client, (&url.URL{Scheme: "http", Host: net.JoinHostPort(p.Status.PodIP, "8080"), Path: "/"}).String())
}

// reloadTime returns the time from the write that gave a pod new files to the write that says that its
// container has read them.
func (n *test) reloadTime(was corev1.Pod) time.Duration {
	n.Helper()
	events, _, err := audit.Read(n.log, n.mark)
	n.Check(err)
	var began time.Time
	for _, e := range events {
		if e.Resource.Resource != "pods" || e.Resource.Namespace != n.Namespace || e.Resource.Name != was.Name || !e.Write() || e.Code != http.StatusOK {
			continue
		}
		var p corev1.Pod
		n.Check(json.Unmarshal(e.Response, &p))
		switch state := n.reloaded(map[string]corev1.Pod{"": p})[""]; {
		case state.Result == "Reloaded" && !began.IsZero():
			return e.Time.Sub(began)
		case state.Version != "" && state.Result == "" && began.IsZero():
			began = e.Time
		}
	}
	n.Fatalf("%s: no reload in the audit log", was.Name)
	return 0
}
