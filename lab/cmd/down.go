package cmd

import (
	"errors"

	"github.com/spf13/cobra"
)

func newDown(open opener) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "down NAME... | --all",
		Short: "End clusters and remove all of them",
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
			var errs []error
			for _, name := range unique(names) {
				errs = append(errs, l.Down(c.Context(), name))
			}
			return join(errs)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "every cluster")
	return c
}

// join joins the errors of several clusters; what all of them are, it is.
func join(errs []error) error { return errors.Join(errs...) }
