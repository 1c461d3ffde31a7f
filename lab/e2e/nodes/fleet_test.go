package nodes_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
	"github.com/keelson-io/keelson/lab/gitserver"
	"github.com/keelson-io/keelson/lab/process"
)

// fleet is a repository on a git server, and the controller that follows it.
type fleet struct {
	dir        string // a clone
	registry   string
	server     *gitserver.Server
	controller *process.Child
}

const head = "apiVersion: keelson.io/v1alpha1\nkind: "

// files returns the fleet's files without components/workload-controllers. REGISTRY/ stands for the
// image registry.
func files() map[string]string {
	return map[string]string{
		"fleet.yaml":                                  head + "Fleet\nname: nodes\n",
		"clusters/e2e/cluster.yaml":                   head + "Cluster\nconnection: {hub: true}\n",
		"clusters/e2e/workload-controllers.yaml":      head + "MetaConfig\nversion: HEAD\nvalues: {protection: {kinds: [{group: lab.example, resources: [things]}]}}\n",
		"components/workload-controllers/images.yaml": head + "Images\nimages: {keelson: {repository: REGISTRY/keelson, tag: v0.1.0}}\n",

		"clusters/e2e/web.yaml":               head + "MetaConfig\nversion: HEAD\nvalues: {replicas: 3}\n",
		"components/web/component.yaml":       head + "Component\nnamespace: pushed\ndependsOn: [workload-controllers]\n",
		"components/web/images.yaml":          head + "Images\nimages: {web: {repository: REGISTRY/web, tag: v1}}\n",
		"components/web/template/Chart.yaml":  "apiVersion: v2\nname: web\nversion: 1.0.0\n",
		"components/web/template/values.yaml": "replicas: 1\n",
		"components/web/template/templates/web.yaml": `apiVersion: apps.kruise.io/v1beta1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: web}}
  updateStrategy:
    rollingUpdate: {podUpdatePolicy: InPlaceIfPossible, maxUnavailable: 1}
  template:
    metadata: {labels: {app: web}}
    spec:
      volumes: [{name: scratch, emptyDir: {}}]
      containers:
      - name: web
        image: {{ .Values.images.web.ref }}
        volumeMounts: [{name: scratch, mountPath: /scratch}]
      - name: beside
        image: REGISTRY/pause:1
`,

		"clusters/e2e/asi-proxy.yaml":               asiProxy(0),
		"components/asi-proxy/component.yaml":       head + "Component\nnamespace: kube-system\ndependsOn: [workload-controllers]\n",
		"components/asi-proxy/images.yaml":          head + "Images\nimages: {proxy: {repository: REGISTRY/web, tag: v1}}\n",
		"components/asi-proxy/template/Chart.yaml":  "apiVersion: v2\nname: asi-proxy\nversion: 1.0.0\n",
		"components/asi-proxy/template/values.yaml": "partition: 0\nresources: {}\ntolerations: []\n",
		"components/asi-proxy/template/templates/daemonset.yaml": `apiVersion: apps.kruise.io/v1beta1
kind: DaemonSet
metadata: {name: asi-proxy}
spec:
  selector: {matchLabels: {app: asi-proxy}}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate: {rollingUpdateType: InPlaceIfPossible, maxUnavailable: 2, partition: {{ .Values.partition }}}
  template:
    metadata: {labels: {app: asi-proxy}}
    spec:
      tolerations: {{- toYaml .Values.tolerations | nindent 8 }}
      containers:
      - name: web
        image: {{ .Values.images.proxy.ref }}
        resources: {{- toYaml .Values.resources | nindent 10 }}
      - name: beside
        image: REGISTRY/pause:1
`,
	}
}

// asiProxy returns the meta-config of a proxy on each node. It is the example of the talk that
// Keelson is based on: resources, tolerations and the progress of an update.
func asiProxy(partition int) string {
	return fmt.Sprintf(head+`MetaConfig
version: HEAD
values:
  partition: %d
  resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: "1", memory: 64Mi}}
  tolerations: [{operator: Exists}]
`, partition)
}

// deliver delivers the workload controllers with Keelson, in the form in which they ship.
func (y *yard) deliver(ctx context.Context) error {
	f := &fleet{dir: filepath.Join(y.dir, "fleet"), registry: y.registry}
	y.fleet = f
	image := exec.CommandContext(ctx, filepath.Join(filepath.Dir(y.keelson), "image"),
		"--binary", "linux/amd64="+y.keelson, "--version", "v0.1.0", "--push", y.registry+"/keelson:v0.1.0")
	if out, err := image.CombinedOutput(); err != nil {
		return fmt.Errorf("push Keelson's image: %w: %s", err, out)
	}
	served := filepath.Join(y.dir, "git")
	if err := errors.Join(os.Mkdir(f.dir, 0o700), os.Mkdir(served, 0o700)); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(f.dir, "components", "workload-controllers"), os.DirFS(filepath.Join(y.root, "components", "workload-controllers"))); err != nil {
		return err
	}
	for name, content := range files() {
		if err := f.write(name, content); err != nil {
			return err
		}
	}
	var err error
	if f.server, err = gitserver.Start(ctx, served, ""); err != nil {
		return err
	}
	remote := f.server.URL("fleet.git")
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"init", "-q", "-b", "main", "--bare", filepath.Join(served, "fleet.git")}, {"remote", "add", "origin", remote}} {
		if err := f.git(ctx, args...); err != nil {
			return err
		}
	}
	if err := f.push(ctx, "the fleet"); err != nil {
		return err
	}
	if err := y.follow(); err != nil {
		return err
	}
	return f.controller.Until(ctx, workloadtest.Patience, workloadtest.Poll, func(ctx context.Context) error {
		out, err := y.cluster.Kubectl(ctx, "", "-n", "keelson-system", "rollout", "status", "deployment/workload-controllers", "--timeout=10s")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// follow starts a controller that follows the fleet.
func (y *yard) follow() error {
	user, err := y.lab.Kubeconfig(name, cluster.Keelson)
	if err != nil {
		return err
	}
	y.fleet.controller, err = process.StartChild(process.Spec{
		Path: y.keelson, Log: filepath.Join(y.dir, "controller.log"),
		Args: []string{
			"controller", "--repo", y.fleet.server.URL("fleet.git"), "--kubeconfig", user,
			"--interval", "1s", "--listen", "", "--cache-dir", filepath.Join(y.dir, "cache"),
		},
	}, nil)
	return err
}

func (f *fleet) close() error {
	var ended []error
	if f.controller != nil {
		ended = append(ended, f.controller.Stop(30*time.Second))
	}
	if f.server != nil {
		ended = append(ended, f.server.Stop())
	}
	return errors.Join(ended...)
}

func (f *fleet) write(name, content string) error {
	path := filepath.Join(f.dir, filepath.FromSlash(name))
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(strings.ReplaceAll(content, "REGISTRY/", f.registry+"/")), 0o600))
}

func (f *fleet) git(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, "git", args...)
	c.Dir = f.dir
	c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull,
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@lab.example", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@lab.example")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, out)
	}
	return nil
}

// push commits all files and pushes them.
func (f *fleet) push(ctx context.Context, why string) error {
	for _, args := range [][]string{{"add", "-A"}, {"commit", "-q", "--allow-empty", "-m", why}, {"push", "-q", "origin", "main"}} {
		if err := f.git(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// edit writes files of the fleet and pushes them.
func (n *test) edit(why string, files map[string]string) {
	n.Helper()
	for name, content := range files {
		if err := n.fleet.write(name, content); err != nil {
			n.Fatal(err)
		}
	}
	if err := n.fleet.push(n.Context(), why); err != nil {
		n.Fatal(err)
	}
}

// An image pushed to git is updated in place.
func TestPush(t *testing.T) {
	n := begin(t)
	n.Namespace = "pushed" // namespace of the component
	n.Settled("web", 3, 3)
	before := byName(n.Pods("web"))
	n.listen()
	n.edit("web v2", map[string]string{"components/web/images.yaml": head + "Images\nimages: {web: {repository: REGISTRY/web, tag: v2}}\n"})
	n.Until("clonesets/web", "noticed", func(s workloadtest.Status) bool { return s.UpdatedReplicas < 3 })
	n.Settled("web", 3, 3)
	n.kept("web", "web:v2", before)
	n.gated(before)
}

// Commits lower a DaemonSet's partition from 5 to 0 of 5 nodes. Each step updates pods in place.
func TestPartition(t *testing.T) {
	n := begin(t)
	n.Namespace = "kube-system" // namespace of the component
	const set = "daemonsets.apps.kruise.io/asi-proxy"
	at := func(updated int64) func(workloadtest.Status) bool {
		return func(s workloadtest.Status) bool {
			return s.DesiredNumberScheduled == nodes && s.NumberAvailable == nodes && s.UpdatedNumberScheduled == updated
		}
	}
	n.Until(set, "on each node", at(nodes))
	before := byName(n.Pods("asi-proxy"))
	n.listen()
	n.edit("asi-proxy v2, nowhere yet", map[string]string{
		"clusters/e2e/asi-proxy.yaml":      asiProxy(nodes),
		"components/asi-proxy/images.yaml": head + "Images\nimages: {proxy: {repository: REGISTRY/web, tag: v2}}\n",
	})
	for _, partition := range []int{nodes, 4, 2, 0} {
		n.edit(fmt.Sprintf("asi-proxy: partition %d", partition), map[string]string{"clusters/e2e/asi-proxy.yaml": asiProxy(partition)})
		n.Until(set, fmt.Sprintf("at partition %d", partition), at(int64(nodes-partition)))
	}
	n.kept("asi-proxy", "web:v2", before)
	n.gated(before)
}
