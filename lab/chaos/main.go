// Command chaos injects faults while real Keelson processes work on real API servers.
// It kills processes, drops requests, delays answers, and breaks git and renders. Then
// it checks that nothing was lost, duplicated or deleted by mistake, and that no secret
// leaked.
//
// The checks use the API server's audit log, read by package oracle, which shares no
// code with Keelson. "chaos oracle LOG" judges a single log.
//
// A scenario that did less than its minimum fails, so a scenario that did not run can't
// pass.
package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/harness"
)

func main() {
	c := newCommand()
	harness.Main("chaos", c.ExecuteContext)
}

// sizes are the minimum amounts of work of the scenarios.
type sizes struct {
	Seeds      int           // components that each kill point is tried on
	Controller int           // components that each kill point of keelson controller is tried on
	Faults     int           // faults that the proxy injects
	Rounds     int           // rounds of two writers
	Shards     int           // rounds of three replicas
	Workloads  int           // rollouts of CloneSets and StatefulSets
	Rollouts   int           // seeds that each transition of rollouts is tried on
	Chances    int           // chances to prune objects that must stay
	Plans      int           // plans that end objects
	Contend    time.Duration // of contended writes
	Flood      time.Duration // of webhooks
}

func newCommand() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "chaos",
		Short: "Break things under Keelson, and judge it by the audit log",
		Example: `  chaos --seed 7
  chaos --only kill --seeds 3 --keep`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.parallel < 1 {
				return fmt.Errorf("--parallel=%d: at least one scenario must run at a time", o.parallel)
			}
			return runAll(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.keelson, "keelson", "bin/keelson", "the keelson `BINARY`")
	f.StringVar(&o.sops, "sops", "bin/sops", "the sops `BINARY` (make bin/sops)")
	f.StringSliceVar(&o.only, "only", nil, "run only these scenarios (default: all)")
	f.Uint64Var(&o.seed, "seed", uint64(time.Now().Unix()), "what chance is drawn from; a run prints its own")
	f.IntVar(&o.parallel, "parallel", 1, "`SCENARIOS` that run at once; those that measure time or memory always run alone")
	f.BoolVar(&o.keep, "keep", false, "leave files and audit logs for a look; clusters are ended")
	f.IntVar(&o.Seeds, "seeds", 20, "`COMPONENTS` that each kill point is tried on")
	f.IntVar(&o.Controller, "controller-seeds", 1, "`COMPONENTS` that each kill point is tried on with keelson controller")
	f.IntVar(&o.Faults, "faults", 2000, "`FAULTS` that the proxy injects")
	f.IntVar(&o.Rounds, "rounds", 100, "`ROUNDS` of two writers")
	f.IntVar(&o.Shards, "shards", 20, "`ROUNDS` of three replicas")
	f.IntVar(&o.Rollouts, "rollout-seeds", 10, "`SEEDS` that each transition of rollouts is tried on")
	f.IntVar(&o.Workloads, "workloads", 200, "`ROLLOUTS` of CloneSets and StatefulSets while their controller is killed")
	f.IntVar(&o.Chances, "chances", 1000, "`CHANCES` to prune what must stay")
	f.IntVar(&o.Plans, "plans", 200, "`PLANS` that end objects of every kind, in every way")
	f.DurationVar(&o.Contend, "contend", 5*time.Minute, "`TIME` of contended writes")
	f.DurationVar(&o.Flood, "flood", 2*time.Minute, "`TIME` that webhooks are flooded")
	c.AddCommand(newOracleCommand())
	return c
}
