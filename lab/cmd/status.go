package cmd

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/cluster"
)

// report is the output of lab status -o json.
type report struct {
	StateDir string           `json:"stateDir"`
	Clusters []cluster.Status `json:"clusters"`
}

func newStatus(open opener) *cobra.Command {
	var (
		output string
		wide   bool
		sample time.Duration
	)
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the clusters, where their files are and what they use",
		Long: `Shows every cluster. Memory is what is resident; CPU is the average since the start
in percent of one core, or, with --sample, what was used in that time.`,
		Example: `  lab status
  lab status --components --sample 30s
  lab status -o json | jq -r '.clusters[] | .name + " " + .auditLog'`,
		Args: args(cobra.NoArgs),
		RunE: open.run(func(c *cobra.Command, l *cluster.Lab, _ []string) error {
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("output %q: there are text and json", output)}
			}
			all, err := l.Status(c.Context(), sample)
			if err != nil {
				return err
			}
			if output == "json" {
				encoder := json.NewEncoder(c.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(report{StateDir: l.Dir, Clusters: all})
			}
			return table(c.OutOrStdout(), all, wide)
		}),
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	c.Flags().BoolVar(&wide, "components", false, "a line for each process")
	c.Flags().DurationVar(&sample, "sample", 0, "measure CPU use over this time, such as 30s")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

const mega = 1e6

func table(w io.Writer, all []cluster.Status, wide bool) error {
	if len(all) == 0 {
		fmt.Fprintln(w, "no clusters; make one with: lab up NAME")
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tSTATE\tVERSION\tNODES\tAPI SERVER\tRSS\tCPU")
	var rss int64
	var cpu float64
	for _, s := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d MB\t%.1f %%\n",
			s.Name, s.State, s.Version(), s.Nodes, s.APIServer, int64(float64(s.RSSBytes)/mega), s.CPUPercent)
		rss += s.RSSBytes
		cpu += s.CPUPercent
		if !wide {
			continue
		}
		for _, p := range s.Components {
			fmt.Fprintf(t, "  %s\t%s\t%s\t\tpid %d\t%d MB\t%.1f %%\n",
				p.Name, p.State, s.Versions[p.Name], p.PID, int64(float64(p.RSSBytes)/mega), p.CPUPercent)
		}
	}
	fmt.Fprintf(t, "TOTAL\t\t\t\t\t%d MB\t%.1f %%\n", int64(float64(rss)/mega), cpu)
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}
