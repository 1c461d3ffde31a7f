package cmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/binaries"
)

func newAssets() *cobra.Command {
	var minor string
	c := &cobra.Command{
		Use:   "assets",
		Short: "Print the folder of the built programs, for KUBEBUILDER_ASSETS",
		Long: `Prints the folder that holds etcd, kube-apiserver and kubectl, where tests that
use controller-runtime's envtest look for them. Exits with 3 if they are not built.`,
		Example: `  lab build --only etcd,kube-apiserver,kubectl
  KUBEBUILDER_ASSETS="$(lab assets)" go test ./...
  lab build --kubernetes 1.33 && KUBEBUILDER_ASSETS="$(lab assets --kubernetes 1.33)" go test ./...`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			set, err := findKubernetes(minor)
			if err != nil {
				return err
			}
			if err := set.Require(binaries.Assets()...); err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), set.Dir)
			return nil
		},
	}
	kubernetesFlag(c, &minor)
	return c
}
