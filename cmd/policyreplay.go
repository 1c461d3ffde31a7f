package cmd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/cmd/internal/rendering"
	"github.com/keelson-io/keelson/controllers/preview"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
)

// replayMost is the default of --commits, the largest number of replayed commits.
const replayMost = 200

// replayRun is one run of policyreplay.
type replayRun struct {
	*cli.Invocation
	fleets  *fleetrepo.Opener
	renders *rendering.Local
}

func newPolicyReplay(inv *cli.Invocation) *cobra.Command {
	run := &replayRun{Invocation: inv, fleets: fleetrepo.New(inv), renders: rendering.New(inv)}
	var o previewOptions
	commits := replayMost
	cmd := &cobra.Command{
		Use:   "replay BASE..HEAD",
		Short: "Show which danger rules fire on the commits of a branch",
		Long: `Replay compares each commit from BASE to HEAD with the commit before it, as
'keelson preview' does. It prints which danger rules hold, deny or warn. It
follows first parents, and sends no request to a cluster. The built-in rules
are those of this program; each commit has its own other rules.

Exit codes: 0 printed, 2 a commit can't be read.`,
		Example: `  keelson policy replay v2026.10..main
  keelson policy replay HEAD~20..HEAD -o json`,
		Args:              cli.Args("BASE..HEAD", 1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := run.CheckFormat(); err != nil {
				return err
			}
			base, head, found := strings.Cut(args[0], "..")
			if !found || base == "" || head == "" || strings.HasPrefix(head, ".") {
				return cli.Usagef("%q is no BASE..HEAD", args[0])
			}
			if commits < 1 {
				return cli.Usagef("--commits %d: it is at least 1", commits)
			}
			list, err := run.replay(cmd.Context(), o, base, head, commits)
			if err != nil {
				return err
			}
			return run.Show(list, replayText(list))
		},
	}
	cmd.Flags().IntVar(&commits, "commits", commits, "how many commits to read at the most")
	o.caps.AddFlags(cmd)
	run.renders.AddFlags(cmd)
	return cmd
}

// replayed holds the danger rules that fire on one commit.
type replayed struct {
	Commit  string `json:"commit"`
	Subject string `json:"subject"`
	// Fired lists the rules, sorted by name.
	Fired []replayedRule `json:"fired,omitempty"`
	// Problems counts the mistakes that are new in the commit. Mistakes are the first of them, as
	// "FILE:LINE:COLUMN: message".
	Problems int      `json:"problems,omitempty"`
	Mistakes []string `json:"mistakes,omitempty"`
}

// mistakesShown is how many mistakes of one commit are listed.
const mistakesShown = 5

// replayedRule is one rule that fires on a commit.
type replayedRule struct {
	Rule string `json:"rule"`
	// Effect is hold, deny or warn.
	Effect string `json:"effect"`
	// Objects maps each object to its number of clusters.
	Objects map[string]int `json:"objects"`
}

func (run *replayRun) replay(ctx context.Context, o previewOptions, base, head string, most int) ([]replayed, error) {
	run.Revision = head
	repo, after, err := run.fleets.LoadRepo(ctx, false)
	if err != nil {
		return nil, err
	}
	from, err := repo.Git().Resolve(base)
	if err != nil {
		return nil, fmt.Errorf("BASE: %w", err)
	}
	commits, err := repo.Git().FirstParents(ctx, from, after.Revision, most)
	if err != nil {
		return nil, fmt.Errorf("BASE: %w", err)
	}
	p, err := newPreviewer(run.renders, o)
	if err != nil {
		return nil, err
	}
	before, err := repo.LoadCommit(ctx, from)
	if err != nil {
		return nil, err
	}
	progress := run.NewProgress()
	defer progress.Clear()
	out := make([]replayed, 0, len(commits))
	for i, commit := range commits {
		progress.Print(fmt.Sprintf("replayed %d of %s", i, cli.Plural(len(commits), "commit", "commits")))
		made, err := repo.Git().Commit(commit)
		if err != nil {
			return nil, err
		}
		next, err := repo.LoadCommit(ctx, commit)
		if err != nil {
			return nil, fmt.Errorf("commit %.12s: %w", commit, err)
		}
		one, err := p.replayOne(ctx, before, next)
		if err != nil {
			return nil, fmt.Errorf("commit %.12s: %w", commit, err)
		}
		one.Commit, one.Subject = commit, firstLine(made.Message)
		out, before = append(out, one), next
	}
	return out, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

func (p *previewer) replayOne(ctx context.Context, before, after *registry.Fleet) (replayed, error) {
	made, err := p.compare(ctx, before, after, func(int, int) {})
	if err != nil {
		return replayed{}, err
	}
	var out replayed
	for _, problem := range made.Problems {
		if !problem.Before {
			if out.Problems++; len(out.Mistakes) < mistakesShown {
				out.Mistakes = append(out.Mistakes, problem.Error())
			}
		}
	}
	fired := map[string]*replayedRule{}
	for i := range made.Groups {
		addFired(fired, &made.Groups[i])
	}
	for _, key := range slices.Sorted(maps.Keys(fired)) {
		out.Fired = append(out.Fired, *fired[key])
	}
	return out, nil
}

// addFired adds the rules that fire on a group of clusters.
func addFired(fired map[string]*replayedRule, g *preview.Group) {
	for i := range g.Plan.Changes {
		c := &g.Plan.Changes[i]
		seen := map[string]bool{}
		add := func(rule, effect string) {
			if rule == "" || seen[rule+" "+effect] {
				return
			}
			seen[rule+" "+effect] = true
			r := fired[rule+" "+effect]
			if r == nil {
				r = &replayedRule{Rule: rule, Effect: effect, Objects: map[string]int{}}
				fired[rule+" "+effect] = r
			}
			r.Objects[g.Component+": "+c.ID.String()] += len(g.Clusters)
		}
		for _, w := range c.Warnings {
			add(w.Rule, "warn")
		}
		switch c.State {
		case differ.StateHeld:
			add(c.Rule, "hold")
		case differ.StateDenied:
			add(c.Rule, "deny")
		case differ.StateSynced, differ.StateChanged:
		}
		for _, f := range c.Fields {
			switch f.Action {
			case differ.ActionHold:
				add(f.Rule, "hold")
			case differ.ActionDeny:
				add(f.Rule, "deny")
			case differ.ActionSet, differ.ActionRestore, differ.ActionRemove, differ.ActionKeep, differ.ActionRelease, differ.ActionAdopt:
			}
		}
	}
}

// replayText lists the commits on which a rule fires, and counts the rules.
func replayText(list []replayed) string {
	var b strings.Builder
	quiet := 0
	counts := map[string]int{} // commits by effect
	for _, one := range list {
		if len(one.Fired) == 0 && one.Problems == 0 {
			quiet++
			continue
		}
		fmt.Fprintf(&b, "%.12s %s\n", one.Commit, cli.OneLine(one.Subject))
		if one.Problems > 0 {
			fmt.Fprintf(&b, "  %s\n", cli.Plural(one.Problems, "mistake", "mistakes"))
			for _, mistake := range one.Mistakes {
				fmt.Fprintf(&b, "    %s\n", cli.OneLine(mistake))
			}
		}
		effects := map[string]bool{}
		for _, r := range one.Fired {
			effects[r.Effect] = true
			for _, object := range slices.Sorted(maps.Keys(r.Objects)) {
				fmt.Fprintf(&b, "  %-4s %s: %s\n", r.Effect, cli.OneLine(r.Rule), cli.OneLine(object+" on "+cli.Plural(r.Objects[object], "cluster", "clusters")))
			}
		}
		for effect := range effects {
			counts[effect]++
		}
	}
	fmt.Fprintf(&b, "%s: %d held, %d denied, %d warned of, %d without a rule that fires\n", cli.Plural(len(list), "commit", "commits"),
		counts["hold"], counts["deny"], counts["warn"], quiet)
	return b.String()
}
