package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/chaos/oracle"
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
	c.Flags().StringVar(&ledger, "ledger", "ledger.json", "`FILE` of what Keelson may write and delete, as a scenario leaves it")
	return c
}
