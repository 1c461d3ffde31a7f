package cmd

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/fleet"
)

func newFleet() *cobra.Command {
	o := fleet.Default()
	c := &cobra.Command{
		Use:   "fleet FOLDER",
		Short: "Make a large fleet repository, to measure with",
		Long: `Writes a bare git repository with a made-up fleet: components with charts of
realistic shape and several versions, layers by stage, region and provider, and
clusters, each with every component. The same flags give the same commits.

  keelson validate --repo FOLDER`,
		Example: `  lab fleet /tmp/fleet.git
  lab fleet --components 20 --clusters 30 --distinct 200 /tmp/small.git`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			made, err := fleet.Generate(c.Context(), given[0], o)
			if errors.Is(err, fleet.ErrOptions) {
				return usageError{err}
			}
			if err != nil {
				return fmt.Errorf("fleet: %w", err)
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: %d deliveries, %d distinct renders, %d versions, %d files of clusters (%d distinct)\n",
				made.Commit, o.Components*o.Clusters, o.Distinct, made.Versions, made.Files, made.Contents)
			return nil
		},
	}
	c.Flags().IntVar(&o.Components, "components", o.Components, "how many components there are")
	c.Flags().IntVar(&o.Clusters, "clusters", o.Clusters, "how many clusters there are")
	c.Flags().IntVar(&o.Distinct, "distinct", o.Distinct, "how many deliveries differ in what they are rendered from")
	c.Flags().Uint64Var(&o.Seed, "seed", o.Seed, "another number makes another fleet")
	return c
}
