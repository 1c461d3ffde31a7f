package cmd

import (
	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/node"
)

// newNode returns the hidden command that a real node starts with; see [node.Main].
func newNode() *cobra.Command {
	return &cobra.Command{
		Use:    "node FILE",
		Short:  "Be a real node: lab up --node real starts it",
		Hidden: true,
		Args:   args(cobra.ExactArgs(1)),
		RunE:   func(c *cobra.Command, names []string) error { return node.Main(c.Context(), names[0]) },
	}
}
