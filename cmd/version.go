package cmd

import (
	"cmp"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/cmd/internal/cli"
)

func newVersion(inv *cli.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of Keelson",
		Long: `Version prints the version of this binary, of the Go that built it, and the
platform that it was built for.`,
		Example: `  keelson version
  keelson version -o json`,
		Args:              cli.Args("none", 0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			if err := inv.CheckFormat(); err != nil {
				return err
			}
			version, platform := cmp.Or(inv.Env.Version, "dev"), runtime.GOOS+"/"+runtime.GOARCH
			return inv.Show(map[string]string{"version": version, "go": runtime.Version(), "platform": platform},
				fmt.Sprintf("keelson %s (%s, %s)\n", version, runtime.Version(), platform))
		},
	}
}
