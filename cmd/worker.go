package cmd

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/rendering"
	"github.com/keelson-io/keelson/renderer"
)

func newWorker(inv *cli.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:    rendering.WorkerCommand,
		Short:  "Render charts for another keelson",
		Hidden: true,
		Args:   cli.Args("none", 0, 0),
		// The process has no environment and no folder, so there are no settings to read.
		PersistentPreRun: func(*cobra.Command, []string) { inv.Started = true },
		RunE: func(*cobra.Command, []string) error {
			return renderer.Work(inv.Env.In, os.NewFile(3, "answers"))
		},
	}
}
