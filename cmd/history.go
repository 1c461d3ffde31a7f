package cmd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/registry"
)

// historyRun is one run of history.
type historyRun struct {
	*cli.Invocation
	fleets   *fleetrepo.Opener
	clusters connection.Connector
}

func newHistory(inv *cli.Invocation) *cobra.Command {
	run := &historyRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	return &cobra.Command{
		Use:     "history CLUSTER [COMPONENT]",
		GroupID: cli.GroupCluster,
		Short:   "Show what was delivered to a cluster, and when",
		Long: `History prints the last deliveries of a component to a cluster, or of all its
components, with the newest first. It reads them from the records in the
cluster, which also have components that git no longer has.

EPOCH and WRITER name the process that delivered. PINNED marks a rollback.
HEALTH is the health of a delivery when the next one began; 'keelson status'
shows the health of the newest.

Exit codes: 0 printed, 2 the records can't be read.`,
		Example: `  keelson history prod-us-01
  keelson history prod-us-01 coredns
  keelson history prod-us-01 coredns -o json`,
		Args:              cli.Args("CLUSTER [COMPONENT]", 1, 2),
		ValidArgsFunction: run.fleets.CompleteNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := run.CheckFormat(); err != nil {
				return err
			}
			ctx := cmd.Context()
			f, err := run.fleets.LoadFleet(ctx, false)
			if err != nil {
				return err
			}
			c, err := fleetrepo.FindCluster(f, args[0])
			if err != nil {
				return err
			}
			live, err := run.clusters.Connect(ctx, c, nil)
			if err != nil {
				return err
			}
			entries, err := readHistory(ctx, live, c, args[1:])
			if err != nil {
				return err
			}
			if run.Output != cli.FormatText {
				return run.Encode(entries)
			}
			if len(entries) == 0 {
				run.Warn("nothing was delivered to %s yet", c.Name)
				return nil
			}
			return run.Write([]byte(run.historyTable(entries).String()))
		},
	}
}

// delivered is one line of the history.
type delivered struct {
	Component string `json:"component"`
	records.HistoryEntry
	// Pin keeps the component at this delivery until git changes. Only the newest delivery has it.
	Pin *records.Pin `json:"pin,omitempty"`
}

func readHistory(ctx context.Context, live *applier.Cluster, c *registry.Cluster, components []string) ([]delivered, error) {
	recorded, err := live.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	if len(components) == 0 {
		components = recorded
	} else if name := components[0]; !slices.Contains(recorded, name) && c.Delivery(name) == nil {
		return nil, fmt.Errorf("neither git nor cluster %s knows a component %q: %s", c.Name, name, fleetrepo.Choice("records", recorded))
	}
	out := []delivered{}
	for _, name := range components {
		r, err := live.Record(ctx, name)
		if err != nil {
			return nil, err
		}
		for i, e := range r.History {
			one := delivered{Component: name, HistoryEntry: e}
			if i == 0 {
				one.Pin = r.Pin
			}
			out = append(out, one)
		}
	}
	return out, nil
}

func (run *historyRun) historyTable(entries []delivered) *cli.Table {
	t := &cli.Table{
		Painter: run.Painter(run.Env.Out), Width: run.Env.Columns(run.Env.Out),
		Columns: []cli.Column{
			{Title: "COMPONENT"},
			{Title: "NUMBER"},
			{Title: "TIME"},
			{Title: "VERSION"},
			{Title: "HEALTH"},
			{Title: "REVISION", MinWidth: 7},
			{Title: "CREATED"},
			{Title: "UPDATED"},
			{Title: "DELETED"},
			{Title: "PINNED"},
			{Title: "EPOCH"},
			{Title: "WRITER", MinWidth: 8},
		},
	}
	for _, e := range entries {
		r := cli.Row{Cells: []cli.Cell{
			{Text: cli.OneLine(e.Component)},
			{Text: strconv.Itoa(e.Number)},
			{Text: e.Time.UTC().Format(time.RFC3339)},
			{Text: cli.OneLine(e.Version)},
			{Text: cli.OneLine(string(e.Health))},
			{Text: cli.OneLine(fmt.Sprintf("%.12s", e.Revision))},
			{Text: strconv.Itoa(e.Created)},
			{Text: strconv.Itoa(e.Updated)},
			{Text: strconv.Itoa(e.Deleted)},
			{Text: map[bool]string{true: "yes"}[e.Pinned]},
			{Text: strconv.FormatInt(e.Epoch, 10)},
			{Text: cli.OneLine(e.Writer)},
		}}
		if e.Pin != nil {
			r.Notes = append(r.Notes, cli.Cell{Text: cli.OneLine("! " + e.Component + " is " + e.Pin.String()), Style: cli.Yellow})
		}
		t.Rows = append(t.Rows, r)
	}
	return t
}
