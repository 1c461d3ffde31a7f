package cmd

import (
	"errors"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/keelson-io/keelson/lab/cluster"
)

func newDown(open opener) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "down NAME... | --all",
		Short: "End clusters and remove everything of theirs",
		Long: `Ends the clusters' processes (by their recorded pid and start time: never one
that got the pid since) and removes their folders: no process and no file stays.
A cluster that isn't there is no error.`,
		Example: `  lab down a
  lab down --all`,
		ValidArgsFunction: complete(open, false),
		RunE: open.run(func(c *cobra.Command, l *cluster.Lab, names []string) error {
			if all == (len(names) > 0) {
				return usageError{errors.New("name clusters, or say --all")}
			}
			if all {
				var err error
				if names, err = l.Names(); err != nil {
					return err
				}
			}
			return each(sets.List(sets.New(names...)), func(name string) error { return l.Down(c.Context(), name) })
		}),
	}
	c.Flags().BoolVar(&all, "all", false, "every cluster")
	return c
}
