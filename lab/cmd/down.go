package cmd

import (
	"errors"

	"github.com/spf13/cobra"
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
		RunE: func(c *cobra.Command, names []string) error {
			if all == (len(names) > 0) {
				return usageError{errors.New("name clusters, or say --all")}
			}
			l, err := open(c)
			if err != nil {
				return err
			}
			if all {
				if names, err = l.Names(); err != nil {
					return err
				}
			}
			return each(unique(names), func(name string) error { return l.Down(c.Context(), name) })
		},
	}
	c.Flags().BoolVar(&all, "all", false, "every cluster")
	return c
}
