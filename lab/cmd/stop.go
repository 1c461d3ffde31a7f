package cmd

import (
	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/cluster"
)

func newStop(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "stop NAME [COMPONENT...]",
		Short: "Stop a cluster, or some of its components, and keep its state",
		Example: `  lab stop a                     # all of it
  lab stop a kube-apiserver      # an outage
  lab start a kube-apiserver     # and its end, on the same port`,
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: complete(open, true),
		RunE: open.run(func(c *cobra.Command, l *cluster.Lab, given []string) error {
			return l.Stop(c.Context(), given[0], given[1:]...)
		}),
	}
}
