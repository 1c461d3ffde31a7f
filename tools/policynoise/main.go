// Command policynoise counts how many chart upgrades the danger rules hold or warn about.
//
// It reads folders CHART/FROM..TO with old.yaml and new.yaml. These hold the objects of two
// versions of a chart, rendered with the same values. It runs keelson diff on each pair: the old
// objects are recorded and live, and the new objects are the target.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	keelson := flag.String("keelson", "bin/keelson", "`FILE` of the program")
	rules := flag.String("rules", "", "`FILE` of danger rules that are read before the built-in ones")
	profile := flag.String("profile", "", "`PROFILE` of the built-in rules: baseline, strict or off")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: policynoise [--keelson FILE] [--rules FILE] [--profile PROFILE] FOLDER")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	run := runner{keelson: *keelson}
	if *rules != "" {
		run.flags = append(run.flags, "--rules", *rules)
	}
	if *profile != "" {
		run.flags = append(run.flags, "--profile", *profile)
	}
	if err := run.report(ctx, os.Stdout, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "policynoise:", err)
		os.Exit(1)
	}
}

// errNone is the error for a folder without upgrades, because nothing was measured.
var errNone = errors.New("no CHART/FROM..TO/old.yaml and new.yaml there")

type runner struct {
	keelson string
	flags   []string
}

// object holds the needed fields of one object of keelson diff -o json.
type object struct {
	Kind, Namespace, Name, State, Rule, Because string
	Warnings                                    []struct{ Rule, Because string }
	Fields                                      []struct{ Path, Action, Rule, Because string }
}

// stop is a rule that fires on an object of an upgrade.
type stop struct{ rule, object, because string }

// upgrade holds the stops of one upgrade.
type upgrade struct {
	name         string
	held, warned []stop
}

func (r runner) report(ctx context.Context, out io.Writer, folder string) error {
	folders, err := filepath.Glob(filepath.Join(folder, "*", "*..*"))
	if err != nil {
		return fmt.Errorf("list the upgrades: %w", err)
	}
	if len(folders) == 0 {
		return fmt.Errorf("%s: %w", folder, errNone)
	}
	all := make([]upgrade, len(folders))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for i, dir := range folders {
		group.Go(func() error {
			var err error
			all[i], err = r.compare(ctx, folder, dir)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("compare the upgrades: %w", err)
	}
	write(out, all)
	return nil
}

// compare runs keelson diff, which exits with 1 if there is a difference.
func (r runner) compare(ctx context.Context, folder, dir string) (upgrade, error) {
	before, after := filepath.Join(dir, "old.yaml"), filepath.Join(dir, "new.yaml")
	args := append([]string{"diff", "--recorded", before, "--target", after, "--live", before, "-o", "json"}, r.flags...)
	cmd := exec.CommandContext(ctx, r.keelson, args...) //nolint:gosec // the caller's own program
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (&exec.ExitError{}); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return upgrade{}, fmt.Errorf("%s: %w: %s", dir, err, strings.TrimSpace(stderr.String()))
	}
	var plan struct{ Objects []object }
	if err := json.Unmarshal(stdout.Bytes(), &plan); err != nil {
		return upgrade{}, fmt.Errorf("%s: read the plan: %w", dir, err)
	}
	name, err := filepath.Rel(folder, dir)
	if err != nil {
		return upgrade{}, fmt.Errorf("%s: %w", dir, err)
	}
	u := upgrade{name: name}
	for _, o := range plan.Objects {
		u.add(o)
	}
	return u, nil
}

func (u *upgrade) add(o object) {
	id := strings.TrimSpace(o.Kind + " " + strings.TrimPrefix(o.Namespace+"/"+o.Name, "/"))
	for _, w := range o.Warnings {
		u.warned = append(u.warned, stop{w.Rule, id, w.Because})
	}
	if o.State != "held" && o.State != "denied" {
		return
	}
	if o.Rule != "" || o.Because != "" {
		u.held = append(u.held, stop{cmp.Or(o.Rule, "-"), id, o.Because})
	}
	for _, f := range o.Fields {
		if f.Action == "hold" || f.Action == "deny" {
			u.held = append(u.held, stop{cmp.Or(f.Rule, "-"), id + " " + f.Path, f.Because})
		}
	}
}

// count returns how many upgrades have stops, and adds them to one column of byRule.
func count(all []upgrade, byRule map[string][2]int, column int, stops func(upgrade) []stop) int {
	n := 0
	for _, u := range all {
		seen := map[string]bool{}
		for _, s := range stops(u) {
			if seen[s.rule] {
				continue
			}
			seen[s.rule] = true
			row := byRule[s.rule]
			row[column]++
			byRule[s.rule] = row
		}
		n += min(len(seen), 1)
	}
	return n
}

func write(out io.Writer, all []upgrade) {
	byRule := map[string][2]int{} // by rule: held upgrades, upgrades with warnings
	held := count(all, byRule, 0, func(u upgrade) []stop { return u.held })
	warned := count(all, byRule, 1, func(u upgrade) []stop { return u.warned })
	share := func(n int) string {
		return fmt.Sprintf("%d of %d (%.1f %%)", n, len(all), 100*float64(n)/float64(len(all)))
	}
	fmt.Fprintf(out, "held: %s\nwarned of: %s\n\n", share(held), share(warned))
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RULE\tHELD\tWARNED")
	for _, rule := range slices.SortedFunc(maps.Keys(byRule), func(a, b string) int {
		return cmp.Or(byRule[b][0]-byRule[a][0], byRule[b][1]-byRule[a][1], strings.Compare(a, b))
	}) {
		fmt.Fprintf(t, "%s\t%d\t%d\n", rule, byRule[rule][0], byRule[rule][1])
	}
	_ = t.Flush() // out is a buffer or a terminal
	fmt.Fprintln(out, "\nHeld:")
	for _, u := range all {
		seen := map[string]bool{}
		for _, s := range u.held {
			if !seen[s.rule+s.object] {
				fmt.Fprintf(out, "  %s: %s: rule %s: %s\n", u.name, s.object, s.rule, s.because)
			}
			seen[s.rule+s.object] = true
		}
	}
}
