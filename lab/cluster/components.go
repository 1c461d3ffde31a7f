package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/lab/binaries"
)

// ErrNoComponent is the error of a component that a cluster doesn't have.
var ErrNoComponent = errors.New("no such component")

// component is one process of a cluster: what to run, and what it costs. Those of real
// nodes have more: another path than that of the program of their name, namespaces, what
// is to be done when they have begun, and when they have ended.
type component struct {
	name         string
	controlPlane bool // part of a cluster that is a control plane only
	args         func(r *record) []string
	gogc         string // how early the process collects its garbage

	path  func(r *record) string
	alone uintptr
	begun func(pid int) error
	ended func(ctx context.Context, r *record) error
}

// components returns the processes of a cluster in the order in which they
// are started. They are ended the other way round.
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

// environment of a process: nothing of the user's, so that no configuration in
// the home directory changes a cluster.
//
// An API server calls webhooks and aggregated APIs at the addresses of Services,
// which nothing answers here, but perhaps a stranger in the user's network: it
// would be sent objects, secrets included. So whatever isn't loopback, which Go
// exempts from proxies, goes to a proxy that isn't there and fails at once.
func (c component) environment(r *record) []string {
	proxies := []string{"HTTP_PROXY=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1"}
	if r.Options.real() {
		// Services and pods are there, and answer.
		proxies = append(proxies, "NO_PROXY="+r.Options.within())
	}
	return append(
		proxies,
		"HOME="+r.dir,
		"PATH=/usr/bin:/bin",
		"GOMAXPROCS=2",
		"GOGC="+c.gogc,
	)
}

// pick returns the named components of a cluster, or all if none is named, in
// the order in which they are started.
func (r *record) pick(parts []string) ([]component, error) {
	all := components(r.Options)
	if len(parts) == 0 {
		return all, nil
	}
	known := componentNames(all)
	for _, part := range parts {
		if !slices.Contains(known, part) {
			return nil, fmt.Errorf("%s: %w: %q; there are %s", r.Name, ErrNoComponent, part, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(c component) bool { return !slices.Contains(parts, c.name) }), nil
}

func list(of []component) string { return strings.Join(componentNames(of), ", ") }

// Components returns the names of all components.
func Components() []string { return componentNames(components(Options{})) }
