package cmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
)

func newBuild() *cobra.Command {
	var (
		opts  binaries.BuildOptions
		minor string
		forge bool
		node  string
	)
	c := &cobra.Command{
		Use:   "build",
		Short: "Build etcd, the control plane, kubectl and kwok, once",
		Long: `Builds the programs into the user's cache and reuses them from then on. The first
build takes five to ten minutes on two cores, 2 GB of memory and 4 GB of Go's build
cache, and needs the network or a filled module cache. With everything built it
returns at once.

Which versions is pinned by lab/build/*/go.mod. A changed pin builds into a new folder.
Of an older Kubernetes there is the API server alone, for tests; its folder shares
etcd and kubectl with the lab's own. A Gitea, to review pull requests on, is built
when it is asked for: four minutes, and a C compiler. So is what real nodes run,
kubelet, kube-proxy and containerd, and the registry that they pull from.`,
		Example: `  lab build
  lab build --only kube-apiserver,etcd
  lab build --kubernetes 1.33
  lab build --node real
  lab build --forge`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			set, err := findKubernetes(minor)
			switch {
			case err != nil:
			case forge:
				set, err = set.Forge()
			case node == cluster.RealNodes:
				set, err = set.Node()
			case node != "":
				err = usageError{fmt.Errorf("--node %s: there is %s", node, cluster.RealNodes)}
			}
			if err != nil {
				return err
			}
			opts.Progress = c.ErrOrStderr()
			return set.Build(c.Context(), opts)
		},
	}
	c.Flags().StringSliceVar(&opts.Only, "only", nil, "programs to build (default: all)")
	c.Flags().IntVarP(&opts.Parallel, "parallel", "p", binaries.DefaultParallel(), "packages compiled at once; each may take 1 GB")
	c.Flags().BoolVar(&forge, "forge", false, "build Gitea instead")
	c.Flags().StringVar(&node, "node", "", `build what nodes of this kind run instead; there is "real"`)
	kubernetesFlag(c, &minor)
	c.MarkFlagsMutuallyExclusive("forge", "node", "kubernetes")
	_ = c.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(binaries.Names(binaries.All()), cobra.ShellCompDirectiveNoFileComp))
	return c
}
