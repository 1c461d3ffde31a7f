package cmd

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/cluster"
)

func newKubeconfig(open opener) *cobra.Command {
	var (
		user string
		raw  bool
	)
	c := &cobra.Command{
		Use:   "kubeconfig NAME",
		Short: "Print the path of a cluster's kubeconfig",
		Long: `Prints the path of a kubeconfig whose one context is called after the cluster.
The user admin is in system:masters; keelson is bound to cluster-admin, and the
audit log tells Keelson's calls from others' by it.`,
		Example: `  export KUBECONFIG="$(lab kubeconfig a)"
  lab kubeconfig a --user keelson --raw`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: complete(open, false),
		RunE: open.run(func(c *cobra.Command, l *cluster.Lab, given []string) error {
			path, err := l.Kubeconfig(given[0], user)
			if err != nil {
				return err
			}
			if !raw {
				fmt.Fprintln(c.OutOrStdout(), path)
				return nil
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("read the kubeconfig: %w", err)
			}
			fmt.Fprint(c.OutOrStdout(), string(data))
			return nil
		}),
	}
	c.Flags().StringVar(&user, "user", cluster.Admin, "admin or keelson")
	c.Flags().BoolVar(&raw, "raw", false, "print what is in the file")
	_ = c.RegisterFlagCompletionFunc("user", cobra.FixedCompletions([]string{cluster.Admin, cluster.Keelson}, cobra.ShellCompDirectiveNoFileComp))
	return c
}
