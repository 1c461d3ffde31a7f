package cmd

import (
	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/binaries"
)

// kubernetesFlag adds --kubernetes, which selects a version of Kubernetes that can be built.
func kubernetesFlag(c *cobra.Command, minor *string) {
	c.Flags().StringVar(minor, "kubernetes", "", "minor version of Kubernetes, such as 1.33 (default: that of the lab)")
	_ = c.RegisterFlagCompletionFunc("kubernetes", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		set, err := binaries.Find()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		minors, err := set.Minors()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return minors, cobra.ShellCompDirectiveNoFileComp
	})
}

// findKubernetes returns the programs of a minor version; "" is the version of the lab.
func findKubernetes(minor string) (binaries.Set, error) {
	set, err := binaries.Find()
	if err != nil {
		return binaries.Set{}, err
	}
	return set.Kubernetes(minor)
}
