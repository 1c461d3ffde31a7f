package cmd

import (
	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/cluster"
)

func newStart(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "start NAME [COMPONENT...]",
		Short: "Start a stopped cluster, or some of its components, on the same ports",
		Example: `  lab start a
  lab start a kube-apiserver`,
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: complete(open, true),
		RunE: open.run(func(c *cobra.Command, l *cluster.Lab, given []string) error {
			return l.Start(c.Context(), given[0], given[1:]...)
		}),
	}
}
