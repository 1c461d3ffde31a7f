package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/lab/binaries"
)

// ErrNoComponent is returned for a component that a cluster doesn't have.
var ErrNoComponent = errors.New("no such component")

// component is one process of a cluster. The last four fields are set for clusters
// with real nodes: the path of a program that isn't named like the component, the
// namespaces, and the callbacks after the start and after the end.
type component struct {
	name         string
	controlPlane bool // part of a cluster that is a control plane only
	args         func(s *clusterState) []string
	gogc         string // GOGC of the process

	path  func(s *clusterState) string
	alone uintptr
	begun func(pid int) error
	ended func(ctx context.Context, s *clusterState) error
}

// components returns the processes of a cluster in start order. They are stopped in
// reverse order.
func components(o Options) []component {
	all := []component{
		{name: binaries.Etcd, controlPlane: true, args: etcdArgs, gogc: "100"},
		{name: binaries.APIServer, controlPlane: true, args: apiserverArgs, gogc: "75"},
		{name: binaries.ControllerManager, args: controllerManagerArgs, gogc: "75"},
		{name: binaries.Scheduler, args: schedulerArgs, gogc: "75"},
		{name: binaries.Kwok, args: kwokArgs, gogc: "75"},
	}
	if o.real() {
		return append(all[:len(all)-1], realComponents(o.Nodes)...)
	}
	if o.ControlPlaneOnly {
		return slices.DeleteFunc(all, func(c component) bool { return !c.controlPlane })
	}
	return all
}

func componentNames(of []component) []string {
	var names []string
	for _, c := range of {
		names = append(names, c.name)
	}
	return names
}

// environment returns the environment variables of a process. None comes from the
// user, so that no configuration in the home directory changes a cluster.
//
// An API server calls webhooks and aggregated APIs at the addresses of Services.
// No Service answers here, but a host in the user's network may have such an address.
// That host would receive objects, secrets included. So every call goes to a proxy
// that doesn't exist and fails at once, except loopback, which Go never proxies.
func (c component) environment(s *clusterState) []string {
	proxies := []string{"HTTP_PROXY=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1"}
	if s.Options.real() {
		// With real nodes, Services and pods answer.
		proxies = append(proxies, "NO_PROXY="+s.Options.within())
	}
	return append(
		proxies,
		"HOME="+string(s.dir),
		"PATH=/usr/bin:/bin",
		"GOMAXPROCS=2",
		"GOGC="+c.gogc,
	)
}

// pick returns the named components of a cluster in start order, or all components
// if no name is given.
func (s *clusterState) pick(parts []string) ([]component, error) {
	all := components(s.Options)
	if len(parts) == 0 {
		return all, nil
	}
	known := componentNames(all)
	for _, part := range parts {
		if !slices.Contains(known, part) {
			return nil, fmt.Errorf("%s: %w: %q; there are %s", s.Name, ErrNoComponent, part, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(c component) bool { return !slices.Contains(parts, c.name) }), nil
}

func list(of []component) string { return strings.Join(componentNames(of), ", ") }

// Components returns the names of all components of a cluster with default options.
func Components() []string { return componentNames(components(Options{})) }
