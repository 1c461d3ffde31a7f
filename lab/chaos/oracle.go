package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/harness/must"
)

func newOracleCommand() *cobra.Command {
	var ledger string
	c := &cobra.Command{
		Use:   "oracle LOG",
		Short: "Judge an audit log by the rules for Keelson's writes",
		Long: `Oracle reads the audit log of an API server of the lab and prints each write of
the user keelson that broke a rule, with its audit ID. It fails if there is one,
or if there is no write at all.`,
		Example: "  chaos oracle audit.log --ledger ledger.json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			allowed, err := oracle.Load(ledger)
			if err != nil {
				return err
			}
			events, _, err := audit.Read(args[0], 0)
			if err != nil {
				return err
			}
			verdict := oracle.Judge(events, allowed)
			for _, v := range verdict.Violations {
				fmt.Fprintln(cmd.OutOrStdout(), v)
			}
			fmt.Fprintln(cmd.OutOrStdout(), verdict)
			switch {
			case len(verdict.Violations) > 0:
				return fmt.Errorf("%d writes of %d broke a rule", len(verdict.Violations), verdict.Writes)
			case verdict.Writes == 0:
				return fmt.Errorf("%s holds no write of keelson: there is nothing to judge", args[0])
			}
			return nil
		},
	}
	c.AddCommand(newCourseCommand())
	c.Flags().StringVar(&ledger, "ledger", "ledger.json", "`FILE` of what Keelson may write and delete, as a scenario leaves it")
	return c
}

func newCourseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "course FOLDER",
		Short: "Judge the audit logs of a hub and its clusters by the course that changes have to take",
		Long: `Course reads the folder that the scenario rollouts leaves with --keep: audit.log of the
hub, audit-CLUSTER.log of each cluster, and course-COMPONENT.json, which says how the
changes of a component have to go. It prints what went otherwise, and fails if
something did, or if there is too little to judge.`,
		Example: "  chaos oracle course /tmp/keelson-chaos-123/rollouts",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			wrong, judged := 0, 0
			err := must.Try(func() {
				hub, clusters := readLogs(args[0])
				for _, path := range must.Get(filepath.Glob(filepath.Join(args[0], "course-*.json"))) {
					var course oracle.Course
					must.Do(json.Unmarshal(must.Get(os.ReadFile(path)), &course))
					verdict := oracle.JudgeCourse(course, hub, clusters)
					for _, v := range verdict.Violations {
						fmt.Fprintln(cmd.OutOrStdout(), v)
					}
					fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", course.Component, verdict)
					if judged++; len(verdict.Violations) > 0 || verdict.Empty() {
						wrong++
					}
				}
			})
			switch {
			case err != nil:
				return err
			case judged == 0:
				return fmt.Errorf("%s holds no course-COMPONENT.json: there is nothing to judge", args[0])
			case wrong > 0:
				return fmt.Errorf("%d components of %d took another course, or left nothing to judge", wrong, judged)
			}
			return nil
		},
	}
}

// readLogs reads the audit logs in a folder: the hub's log, and the clusters' logs by name.
func readLogs(folder string) (hub []audit.Event, clusters map[string][]audit.Event) {
	read := func(path string) []audit.Event {
		events, _, err := audit.Read(path, 0)
		must.Do(err)
		return events
	}
	clusters = map[string][]audit.Event{}
	for _, path := range must.Get(filepath.Glob(filepath.Join(folder, "audit-*.log"))) {
		clusters[strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "audit-"), ".log")] = read(path)
	}
	return read(filepath.Join(folder, "audit.log")), clusters
}
