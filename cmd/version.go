package cmd

import (
	"cmp"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of Keelson",
		Long: `Version prints the version of this binary, of the Go that built it, and the
platform that it was built for.`,
		Example: `  keelson version
  keelson version -o json`,
		Args:              args("none", 0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			if err := oneOf("-o", a.output, outputText, outputJSON, outputYAML); err != nil {
				return err
			}
			version, platform := cmp.Or(a.env.Version, "dev"), runtime.GOOS+"/"+runtime.GOARCH
			return a.show(map[string]string{"version": version, "go": runtime.Version(), "platform": platform},
				fmt.Sprintf("keelson %s (%s, %s)\n", version, runtime.Version(), platform))
		},
	}
}
