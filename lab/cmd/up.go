package cmd

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
)

func newUp(open opener) *cobra.Command {
	var (
		nodes   int
		node    string
		hub     bool
		labels  map[string]string
		service string
	)
	c := &cobra.Command{
		Use:   "up NAME...",
		Short: "Make clusters, or start those that don't run",
		Long: `Makes the named clusters, or starts what doesn't run of those that exist, and
returns when they serve: API server ready, nodes Ready, pods can be made. A cluster
that runs is left alone, so up can be repeated. If one fails to start, what ran
of it is stopped, and the error shows the log.

A cluster that exists keeps its options; --nodes and --label change them.

Nodes are played by kwok. With --node real they are real: each has a kubelet, a
kube-proxy and a containerd in namespaces of its own, and pulls its images from a
registry of the cluster, which has the lab's own (web, slow, crash). That takes root,
Debian's runc, containernetworking-plugins and iptables, and lab build --node real;
a machine has one such cluster at a time, and its Services answer on it.`,
		Example: `  lab up a
  lab up testing canary production --nodes 5
  lab up hub --control-plane-only
  lab up a --label pool=gpu
  lab up a --node real --nodes 2`,
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: complete(open, false),
		RunE: open.run(func(c *cobra.Command, l *cluster.Lab, names []string) error {
			change := cluster.Change{
				Nodes: changed(c, "nodes", &nodes), Node: changed(c, "node", &node), ControlPlaneOnly: changed(c, "control-plane-only", &hub),
				ServiceCIDR: changed(c, "service-cidr", &service), NodeLabels: labels,
			}
			set, err := binaries.Find()
			if err != nil {
				return err
			}
			names = sets.List(sets.New(names...))
			if err := each(names, func(name string) error { return l.Up(c.Context(), name, change, set) }); err != nil {
				return err
			}
			for _, name := range names {
				path, err := l.Kubeconfig(name, cluster.Admin)
				if err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "export KUBECONFIG=%s\n", path)
			}
			return nil
		}),
	}
	c.Flags().IntVar(&nodes, "nodes", cluster.DefaultNodes, "nodes of each cluster, played by kwok unless --node says otherwise")
	c.Flags().StringVar(&node, "node", "", `"real": kubelet, kube-proxy and containerd in namespaces of their own; one cluster a machine, as root`)
	c.Flags().BoolVar(&hub, "control-plane-only", false, "etcd and API server alone: no controllers, no scheduler, no nodes")
	c.Flags().StringToStringVar(&labels, "label", nil, "labels of new nodes, key=value")
	c.Flags().StringVar(&service, "service-cidr", cluster.DefaultServiceCIDR, "addresses of Services")
	return c
}

// changed returns the value of a flag, or nil if the command line doesn't set the flag.
func changed[T any](c *cobra.Command, flag string, value *T) *T {
	if c.Flags().Changed(flag) {
		return value
	}
	return nil
}
