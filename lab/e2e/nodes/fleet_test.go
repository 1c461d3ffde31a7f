package nodes_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
	"github.com/keelson-io/keelson/lab/gitserver"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

// fleet is a repository on a git server, and the controller that follows it.
type fleet struct {
	harness.Clone

	registry   string
	controller *process.Child
	follow     func() // starts the controller
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
func (c *nodeCluster) deliver(ctx context.Context) {
	bin := filepath.Dir(c.keelson)
	for _, program := range []string{"keelson", "reload-agent"} {
		must.Get(harness.Run(ctx, ".", filepath.Join(bin, "image"), "--program", program,
			"--binary", "linux/amd64="+filepath.Join(bin, program), "--version", "v0.1.0", "--push", c.registry+"/"+program+":v0.1.0"))
	}
	served := filepath.Join(c.Dir, "git")
	must.Do(os.Mkdir(served, 0o700))
	must.Do(harness.NewBare(ctx, filepath.Join(served, "fleet.git")))
	server := must.Get(gitserver.Start(ctx, served, ""))
	c.AtEnd(server.Stop)
	f := &fleet{registry: c.registry}
	f.Clone = must.Get(harness.NewClone(ctx, server.URL("fleet.git"), filepath.Join(c.Dir, "fleet")))
	root := filepath.Dir(filepath.Dir(c.keelson))
	must.Do(os.CopyFS(f.Path("components/workload-controllers"), os.DirFS(filepath.Join(root, "components", "workload-controllers"))))
	for name, content := range files() {
		must.Do(f.write(name, content))
	}
	must.Do(f.Push(ctx, "the fleet"))
	f.follow = func() {
		f.controller = c.Start("controller", c.keelson, "controller", "--repo", server.URL("fleet.git"),
			"--kubeconfig", must.Get(c.Lab.Kubeconfig(name, cluster.Keelson)),
			"--interval", "1s", "--listen", "", "--cache-dir", filepath.Join(c.Dir, "cache"))
	}
	f.follow()
	c.fleet = f
	must.Do(f.controller.Until(ctx, workloadtest.Patience, workloadtest.Poll, func(ctx context.Context) error {
		out, err := c.Kubectl(ctx, "", "-n", "keelson-system", "rollout", "status", "deployment/workload-controllers", "--timeout=10s")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
}

func (f *fleet) write(name, content string) error {
	return f.Write(name, strings.ReplaceAll(content, "REGISTRY/", f.registry+"/"))
}

// edit writes files of the fleet and pushes them.
func (n *test) edit(why string, files map[string]string) {
	n.Helper()
	for name, content := range files {
		n.Check(n.fleet.write(name, content))
	}
	n.Check(n.fleet.Push(n.Context(), why))
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
