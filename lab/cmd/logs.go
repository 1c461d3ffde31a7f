package cmd

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/cluster"
)

func newLogs(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "logs NAME COMPONENT",
		Short: "Print the log of one of a cluster's components",
		Example: `  lab logs a kube-apiserver
  tail -f "$(lab status -o json | jq -r '.clusters[0].components[1].log')"`,
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: complete(open, true),
		RunE: open.run(func(c *cobra.Command, l *cluster.Lab, given []string) error {
			path, err := l.Log(given[0], given[1])
			if err != nil {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return fmt.Errorf("open the log (was %s ever started?): %w", given[1], err)
			}
			defer func() { _ = f.Close() }() // only read
			if _, err := io.Copy(c.OutOrStdout(), f); err != nil {
				return fmt.Errorf("print the log: %w", err)
			}
			return nil
		}),
	}
}
