package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/images"
	"github.com/keelson-io/keelson/lab/node"
	"github.com/keelson-io/keelson/lab/pki"
	"github.com/keelson-io/keelson/lab/process"
)

// A cluster with real nodes has a switch that connects the machine and the nodes. The
// machine runs the control plane and the registry. The API server and the registry listen
// on the machine's address on the switch. The switch is connected to no other network.
const (
	maxRealNodes = 8
	machine      = "10.245.0.1"
	switchBits   = 24
	allPods      = "10.244.0.0/16"
	kubeletUser  = "kubelet-client" // the user of the API server's requests to kubelets
)

// systemPath is the PATH of the machine's own programs. It doesn't depend on the user's
// environment.
const systemPath = "/usr/sbin:/usr/bin:/sbin:/bin"

// debian is the command that installs the programs for real nodes on Debian.
const debian = "apt-get install runc containernetworking-plugins iptables"

// ErrNoRealNodes is returned on a machine that can't run real nodes.
var ErrNoRealNodes = errors.New("real nodes can't run here")

func (o Options) real() bool { return o.Node == RealNodes }

// host returns the address that a cluster's API server listens on.
func (o Options) host() string {
	if o.real() {
		return machine
	}
	return "127.0.0.1"
}

// within returns the NO_PROXY of a cluster with real nodes: the names and addresses of
// Services, pods and nodes, which the API server calls directly.
func (o Options) within() string {
	return strings.Join([]string{".svc", "10.245.0.0/24", allPods, o.ServiceCIDR}, ",")
}

func realName(cluster string, i int) string { return fmt.Sprintf("%s-node-%d", cluster, i) }
func realAddress(i int) netip.Addr          { return netip.AddrFrom4([4]byte{10, 245, 0, byte(i + 2)}) }

func realPods(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)
}

func (s *clusterState) cgroup(i int) string {
	return "/keelson-lab-" + s.Name + "/" + realName(s.Name, i)
}
func (s *clusterState) registry() string { return fmt.Sprintf("%s:%d", machine, s.Ports.Registry) }

// podRoutes returns the routes from a node to the pods of all other nodes. With -1, it
// returns the routes from the machine to all pods, and to Services through the first node.
func (s *clusterState) podRoutes(from int) []node.Route {
	var routes []node.Route
	for i := range s.Options.Nodes {
		if i != from {
			routes = append(routes, node.Route{To: realPods(i), Via: realAddress(i)})
		}
	}
	if services, err := netip.ParsePrefix(s.Options.ServiceCIDR); err == nil && from < 0 && s.Options.Nodes > 0 {
		routes = append(routes, node.Route{To: services, Via: realAddress(0)})
	}
	return routes
}

// checkMachine returns nil if the machine can run real nodes. Otherwise the error wraps
// [ErrNoRealNodes] and names the first missing requirement.
func checkMachine() error {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return fmt.Errorf("%w: they take Linux and root", ErrNoRealNodes)
	}
	if _, err := cniPlugins(); err != nil {
		return err
	}
	for _, program := range []string{"runc", "iptables"} {
		if !slices.ContainsFunc(strings.Split(systemPath, ":"), func(dir string) bool {
			_, err := exec.LookPath(filepath.Join(dir, program))
			return err == nil
		}) {
			return fmt.Errorf("%w: %s isn't installed; on Debian: %s", ErrNoRealNodes, program, debian)
		}
	}
	return nil
}

// cniPlugins returns the folder of the CNI plugins: Debian's folder, or the usual one.
func cniPlugins() (string, error) {
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin"} {
		if _, err := os.Stat(filepath.Join(dir, "ptp")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w: there are no CNI plugins; on Debian: %s", ErrNoRealNodes, debian)
}

// realComponents returns the registry and the nodes of a cluster.
func realComponents(nodes int) []component {
	all := []component{{name: binaries.Registry, gogc: "75", args: func(s *clusterState) []string {
		return []string{"serve", s.dir.config("registry.yaml")}
	}, path: func(s *clusterState) string { return filepath.Join(s.NodeBin, binaries.Registry) }}}
	for i := range nodes {
		all = append(all, component{
			name:  fmt.Sprintf("node-%d", i),
			gogc:  "75",
			path:  func(s *clusterState) string { return s.Program },
			args:  func(s *clusterState) []string { return []string{"node", s.dir.node(i, "node.json")} },
			alone: node.Namespaces,
			begun: func(pid int) error { return node.Plug(pid, i) },
			ended: func(ctx context.Context, s *clusterState) error {
				return errors.Join(node.Unplug(i), node.RemoveCgroups(ctx, s.cgroup(i)))
			},
		})
	}
	return all
}

// connect creates the switch of a cluster with real nodes.
func (s *clusterState) connect() error {
	if !s.Options.real() {
		return nil
	}
	address := netip.PrefixFrom(netip.MustParseAddr(machine), switchBits)
	if err := node.NewSwitch(string(s.dir), address, s.podRoutes(-1)); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

// disconnect removes the switch and the cgroups of a cluster with real nodes. No process
// of the cluster may be running.
func (s *clusterState) disconnect(ctx context.Context) error {
	if !s.Options.real() {
		return nil
	}
	return errors.Join(node.RemoveSwitch(string(s.dir)), node.RemoveCgroups(ctx, "/keelson-lab-"+s.Name))
}

// writeNodes writes the files that the real nodes and the registry read.
func (s *clusterState) writeNodes(ca *pki.Authority, now time.Time) {
	if !s.Options.real() {
		return
	}
	plugins := must.Get(cniPlugins())
	s.fill("registry.yaml", s.dir.config("registry.yaml"), map[string]string{"Registry": s.registry(), "Storage": s.dir.path("registry")})
	for i := range s.Options.Nodes {
		s.writeNode(i, plugins, ca, now)
	}
}

func (s *clusterState) writeNode(i int, plugins string, ca *pki.Authority, now time.Time) {
	name := realName(s.Name, i)
	for _, dir := range []string{"cni", "certs.d/" + s.registry(), "lib", "log"} {
		must.Do(os.MkdirAll(s.dir.node(i, dir), 0o700))
	}
	pair := must.Get(ca.Issue(pki.Subject{Name: "system:node:" + name, Groups: []string{"system:nodes"}, Hosts: []string{name, realAddress(i).String()}}, now))
	write(s.dir.node(i, "kubeconfig.yaml"), must.Get(pki.Kubeconfig(s.Name, s.server(), "system:node:"+name, ca.Cert, pair)))
	write(s.dir.node(i, "node.crt"), pair.Cert)
	write(s.dir.node(i, "node.key"), pair.Key)
	values := map[string]string{
		"Pause": s.registry() + "/" + images.Pause, "Hosts": s.dir.node(i, "certs.d"), "CNI": plugins, "CNIConfig": s.dir.node(i, "cni"),
		"Registry": s.registry(), "Pods": realPods(i).String(), "Address": realAddress(i).String(),
		"Cert": s.dir.node(i, "node.crt"), "Key": s.dir.node(i, "node.key"), "CA": s.dir.pki("ca.crt"), "Cgroup": s.cgroup(i),
		"Kubeconfig": s.dir.kubeconfig("kube-proxy"), "AllPods": allPods,
	}
	for file, at := range map[string]string{
		"containerd.toml": "containerd.toml", "kubelet.yaml": "kubelet.yaml", "kube-proxy.yaml": "kube-proxy.yaml",
		"cni.conflist": "cni/lab.conflist", "hosts.toml": "certs.d/" + s.registry() + "/hosts.toml",
	} {
		s.fill(file, s.dir.node(i, at), values)
	}
	write(s.dir.node(i, "node.json"), must.Get(json.MarshalIndent(s.nodeConfig(i), "", "  ")))
}

func (s *clusterState) nodeConfig(i int) node.Config {
	name := realName(s.Name, i)
	program := func(name string, args ...string) node.Program {
		return node.Program{Name: name, Path: filepath.Join(s.NodeBin, name), Args: args}
	}
	return node.Config{
		Name:    name,
		Address: netip.PrefixFrom(realAddress(i), switchBits),
		Gateway: netip.MustParseAddr(machine),
		Routes:  s.podRoutes(i),
		Cgroup:  s.cgroup(i),
		Binds:   []node.Bind{{Folder: s.dir.node(i, "lib"), At: "/var/lib"}, {Folder: s.dir.node(i, "log"), At: "/var/log"}},
		// containerd finds its shim in this path, and the shim finds runc.
		Path: s.NodeBin + ":" + systemPath,
		Logs: s.dir.path("logs"),
		Programs: []node.Program{
			program(binaries.Containerd, "--config="+s.dir.node(i, "containerd.toml")),
			program(
				binaries.Kubelet,
				"--config="+s.dir.node(i, "kubelet.yaml"),
				"--kubeconfig="+s.dir.node(i, "kubeconfig.yaml"),
				"--hostname-override="+name,
				"--node-ip="+realAddress(i).String(),
			),
			program(binaries.KubeProxy, "--config="+s.dir.node(i, "kube-proxy.yaml"), "--hostname-override="+name),
		},
	}
}

// fill executes an embedded template with the values and writes the result.
func (s *clusterState) fill(file, path string, values map[string]string) {
	var out bytes.Buffer
	filled := must.Get(template.New(file).Option("missingkey=error").ParseFS(files, "files/node/"+file))
	must.Do(filled.Execute(&out, values))
	write(path, out.Bytes())
}

// furnishImages pushes the lab's images. No pod starts without them.
func (s *clusterState) furnishImages(ctx context.Context) error {
	program := filepath.Join(filepath.Dir(s.Program), "testimage")
	if err := images.Push(ctx, s.registry(), images.Tests(program)...); err != nil {
		return fmt.Errorf("%s: %w (make lab builds what they are made of)", s.Name, err)
	}
	return nil
}

// furnishReal grants kube-proxy its rights and pushes images. A kubelet registers its
// node itself, and realNodesReady labels the node.
func (s *clusterState) furnishReal(ctx context.Context, client kubernetes.Interface) error {
	if err := s.bindRole(ctx, client, "system:node-proxier", "system:kube-proxy"); err != nil {
		return err
	}
	return s.furnishImages(ctx)
}

// realNodesReady labels registered nodes, and returns nil if all nodes are Ready.
func (s *clusterState) realNodesReady(ctx context.Context, client kubernetes.Interface) error {
	for i := range s.Options.Nodes {
		name := realName(s.Name, i)
		n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
		if n.Labels[madeBy] == "" {
			labels := map[string]string{madeBy: "lab", corev1.LabelTopologyRegion: "lab", corev1.LabelTopologyZone: zone(i)}
			maps.Copy(labels, s.Options.NodeLabels)
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
			if err != nil {
				return fmt.Errorf("label %s: %w", name, err)
			}
			if _, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				return fmt.Errorf("label %s: %w", name, err)
			}
		}
		if !schedulable(*n) {
			return fmt.Errorf("%s: %w", name, errNodes)
		}
	}
	return nil
}

// start starts the process of a component. If the begun callback fails, start ends the
// process again.
func (c component) start(ctx context.Context, s *clusterState, path string) (process.ID, error) {
	id, err := process.Start(process.Spec{
		Path:  path,
		Args:  c.args(s),
		Env:   c.environment(s),
		Dir:   string(s.dir),
		Log:   s.dir.log(c.name),
		Alone: c.alone,
	})
	if err != nil || c.begun == nil {
		return id, err
	}
	if err := c.begun(id.PID); err != nil {
		return process.ID{}, errors.Join(err, id.Stop(context.WithoutCancel(ctx), 0))
	}
	return id, nil
}
