package cmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
)

// policyRun is one run of policy.
type policyRun struct {
	*cli.Invocation
	fleets *fleetrepo.Opener
}

func newPolicy(inv *cli.Invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "policy",
		GroupID: cli.GroupGit,
		Short:   "Show and try out the danger rules",
		Long: `Policy shows the danger rules: what is kept, held, denied or warned of, and
why. component.yaml and fleet.yaml have rules under danger. The built-in rules
follow them.`,
		Example: `  keelson policy list coredns`,
		Args:    cli.Args("list", 0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPolicyList(inv), newPolicyTest(inv), newPolicyReplay(inv))
	return cmd
}

func newPolicyList(inv *cli.Invocation) *cobra.Command {
	run := &policyRun{Invocation: inv, fleets: fleetrepo.New(inv)}
	explain := false
	cmd := &cobra.Command{
		Use:   "list [COMPONENT]",
		Short: "List the danger rules in the order in which they are read",
		Long: `List prints the danger rules in their order: those of a component, in all
versions that clusters get, those of the fleet, and the built-in ones. The
first rule that matches decides. A rule replaces a rule of the same name in a
later scope; the list marks the replaced one.

Exit codes: 0 printed, 2 the repository can't be read.`,
		Example: `  keelson policy list
  keelson policy list coredns
  keelson policy list --explain
  keelson policy list -o json | jq -r '.[] | select(.effect == "hold") | .name'`,
		Args:              cli.Args("[COMPONENT]", 0, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := run.CheckFormat(); err != nil {
				return err
			}
			f, err := run.fleets.LoadFleet(cmd.Context(), false)
			if err != nil {
				return err
			}
			list, err := listRules(f, args)
			if err != nil {
				return err
			}
			return run.Show(list, run.rulesTable(list, explain).String())
		},
	}
	cmd.Flags().BoolVar(&explain, "explain", false, "also what to do instead of what a rule stops or warns of,\nand where the danger is described")
	return cmd
}

func newPolicyTest(inv *cli.Invocation) *cobra.Command {
	run := &policyRun{Invocation: inv, fleets: fleetrepo.New(inv)}
	var files offline
	cmd := &cobra.Command{
		Use:   "test --recorded R --target T --live L",
		Short: "Try out danger rules on files of objects",
		Long: `Test compares files of objects as 'keelson diff' does, and prints which danger
rule fires on which field, and which come close: those whose object and path
match, and whose event or condition does not. It asks neither git nor a
cluster.

Exit codes: 0 printed, 2 a file can't be read or a rule is malformed.`,
		Example: `  keelson policy test --recorded old.yaml --target new.yaml --live live.yaml
  keelson policy test --target new.yaml --live live.yaml --rules rules.yaml`,
		Args:              cli.Args("none", 0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := run.CheckFormat(); err != nil {
				return err
			}
			if !files.isSet() {
				return cli.Usagef("give files with --recorded, --target or --live")
			}
			return run.tryRules(cmd.Context(), files)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	files.add(f)
	return cmd
}

// triedRule is a trial, with the action on the field.
type triedRule struct {
	differ.Trial
	Action string `json:"action,omitempty"`
}

func (run *policyRun) tryRules(ctx context.Context, o offline) error {
	c, err := o.read(ctx)
	if err != nil {
		return err
	}
	plan, err := differ.Compare(ctx, c.schemas, c.states, c.policy)
	if err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	trials, err := differ.Try(ctx, c.schemas, c.states, c.policy)
	if err != nil {
		return fmt.Errorf("try the rules: %w", err)
	}
	type place struct {
		id   differ.ID
		path string
	}
	actions := map[place]string{}
	for _, change := range plan.Changes {
		actions[place{change.ID, ""}] = change.State.String()
		for _, f := range change.Fields {
			actions[place{change.ID, f.Path}] = f.Action.String()
		}
	}
	list := make([]triedRule, len(trials))
	for i, t := range trials {
		list[i] = triedRule{Trial: t, Action: actions[place{t.ID, t.Path}]}
	}
	return run.Show(list, run.trialsTable(list).TextOr("no rule fires, and none comes close\n"))
}

func (run *policyRun) trialsTable(list []triedRule) *cli.Table {
	t := &cli.Table{
		Painter: run.Painter(run.Env.Out), Width: run.Env.Columns(run.Env.Out),
		Columns: []cli.Column{
			{Title: "OBJECT", MinWidth: 10},
			{Title: "FIELD", MinWidth: 10, KeepEnd: true},
			{Title: "EVENT"},
			{Title: "RULE"},
			{Title: "OUTCOME"},
			{Title: "THE FIELD IS"},
		},
	}
	for _, r := range list {
		outcome := cli.Cell{Text: string(r.Outcome)}
		if r.Outcome == differ.OutcomeFires {
			outcome.Style = cli.Yellow
		}
		t.Rows = append(t.Rows, cli.Row{Cells: []cli.Cell{
			{Text: cli.OneLine(r.ID.String())},
			{Text: cli.OneLine(r.Path)},
			{Text: string(r.Event)},
			{Text: cli.OneLine(r.Rule)},
			outcome,
			{Text: r.Action},
		}})
	}
	return t
}

// listedRule is a danger rule, with its origin. A built-in rule may have several paths.
type listedRule struct {
	Name         string               `json:"name"`
	From         string               `json:"from"`
	Match        v1alpha1.ObjectMatch `json:"match"`
	Paths        []string             `json:"paths,omitempty"`
	On           []v1alpha1.Event     `json:"on,omitempty"`
	When         string               `json:"when,omitempty"`
	Message      string               `json:"messageExpression,omitempty"`
	Effect       v1alpha1.Effect      `json:"effect"`
	Scope        v1alpha1.Scope       `json:"scope,omitempty"`
	Because      string               `json:"because"`
	Fix          string               `json:"fix,omitempty"`
	Source       string               `json:"source,omitempty"`
	OverriddenBy string               `json:"overriddenBy,omitempty"`
	// Locked rules come before the rules of components.
	Locked bool `json:"locked,omitempty"`
}

// listRules lists danger rules in the order of their evaluation: locked rules of the fleet, named
// components outside projects, projects, fleet, built-in, named components in projects.
func listRules(f *registry.Fleet, components []string) ([]listedRule, error) {
	builtIn, err := builtInRules(f, components)
	if err != nil {
		return nil, err
	}
	var out []listedRule
	named := map[string]string{} // by rule name: the first scope that has it
	add := func(from string, rules []v1alpha1.DangerRule) {
		list := scope(from, rules, named)
		out = append(out, list...)
		remember(named, list)
	}
	own := func(fenced bool) error {
		var all []listedRule
		for _, component := range components {
			versions := versionsOf(f, component)
			if len(versions) == 0 {
				return fmt.Errorf("no cluster gets a component %q", component)
			}
			if (f.ProjectOf(component) != nil) != fenced {
				continue
			}
			for _, v := range versions { // versions do not override each other
				all = append(all, scope(component+" "+v.Name, v.Spec.Danger, named)...)
			}
		}
		out = append(out, all...)
		remember(named, all)
		return nil
	}
	locked := differ.Locked(f.Spec.Danger)
	add("fleet", f.Spec.Danger[:locked])
	for i := range out {
		out[i].Locked = true
	}
	if err := own(false); err != nil {
		return nil, err
	}
	for _, p := range f.Projects {
		if slices.ContainsFunc(components, p.Has) {
			add("project "+p.Name, p.Spec.Danger)
		}
	}
	add("fleet", f.Spec.Danger[locked:])
	add("built-in", builtIn)
	return out, own(true)
}

// builtInRules returns the rules of the components' profile, or of the fleet's.
func builtInRules(f *registry.Fleet, components []string) ([]v1alpha1.DangerRule, error) {
	scopes := differ.Scopes{FleetProfile: f.Spec.DangerProfile}
	for _, component := range components {
		for _, v := range versionsOf(f, component) {
			scopes.ComponentProfile = cmp.Or(scopes.ComponentProfile, v.Spec.DangerProfile)
		}
	}
	profile, err := scopes.Profile()
	if err != nil {
		return nil, err
	}
	return differ.BuiltInRules(profile)
}

func remember(named map[string]string, rules []listedRule) {
	for _, r := range rules {
		if r.Name != "" && named[r.Name] == "" {
			named[r.Name] = r.From
		}
	}
}

// scope lists the rules of one scope; named maps a rule name to the earlier scope that has it.
func scope(from string, rules []v1alpha1.DangerRule, named map[string]string) []listedRule {
	var out []listedRule
	for _, r := range rules {
		one := listedRule{
			Name: r.Name, From: from, Match: r.Match, On: r.On, When: strings.Join(strings.Fields(r.When), " "),
			Message: strings.Join(strings.Fields(r.MessageExpression), " "), Effect: r.Effect, Scope: r.Scope, Because: r.Because, Fix: r.Fix, Source: r.Source, OverriddenBy: named[r.Name],
		}
		if r.Path != "" {
			one.Paths = []string{r.Path}
		}
		if last := len(out) - 1; last >= 0 && sameButPaths(out[last], one) {
			out[last].Paths = append(out[last].Paths, one.Paths...)
			continue
		}
		out = append(out, one)
	}
	return out
}

// sameButPaths reports whether two entries are one rule with several paths.
func sameButPaths(a, b listedRule) bool {
	same := func(x, y v1alpha1.ObjectMatch) bool {
		return x.Group == y.Group && x.Namespace == y.Namespace && x.Name == y.Name && slices.Equal(x.Kinds, y.Kinds)
	}
	return a.Name == b.Name && a.From == "built-in" && b.From == a.From && a.When == b.When && same(a.Match, b.Match)
}

// versionsOf returns the versions of a component that clusters get.
func versionsOf(f *registry.Fleet, component string) []*registry.Version {
	var out []*registry.Version
	for _, c := range f.Clusters {
		if d := c.Delivery(component); d != nil && d.Version != nil {
			out = append(out, d.Version)
		}
	}
	slices.SortFunc(out, func(x, y *registry.Version) int { return cmp.Compare(x.Name, y.Name) })
	return slices.CompactFunc(out, func(x, y *registry.Version) bool { return x.Name == y.Name })
}

func (run *policyRun) rulesTable(list []listedRule, explain bool) *cli.Table {
	t := &cli.Table{
		Painter: run.Painter(run.Env.Out), Width: run.Env.Columns(run.Env.Out),
		Columns: []cli.Column{{Title: "RULE"}, {Title: "FROM"}, {Title: "EFFECT"}, {Title: "ON", MinWidth: 6}, {Title: "OBJECTS", MinWidth: 10}},
	}
	for _, r := range list {
		effect := string(r.Effect)
		if r.Scope == v1alpha1.ScopeField {
			effect += " field"
		}
		from, notes := r.From, []cli.Cell{{Text: cli.OneLine(r.Because)}}
		if explain && r.Fix != "" {
			notes = append(notes, cli.Cell{Text: cli.OneLine("instead: " + r.Fix)})
		}
		if explain && r.Source != "" {
			notes = append(notes, cli.Cell{Text: cli.OneLine("source " + r.Source)})
		}
		if r.OverriddenBy != "" {
			notes = append(notes, cli.Cell{Text: cli.OneLine("overridden by " + r.OverriddenBy), Style: cli.Yellow})
		}
		if r.Locked {
			notes = append(notes, cli.Cell{Text: "locked: read before the rules of components"})
		}
		for _, path := range r.Paths {
			notes = append(notes, cli.Cell{Text: cli.OneLine("path " + path)})
		}
		if r.When != "" {
			notes = append(notes, cli.Cell{Text: cli.OneLine("when " + r.When)})
		}
		if explain && r.Message != "" {
			notes = append(notes, cli.Cell{Text: cli.OneLine("message " + r.Message)})
		}
		t.Rows = append(t.Rows, cli.Row{Notes: notes, Cells: []cli.Cell{
			{Text: cli.OneLine(r.Name), Style: cli.Bold},
			{Text: cli.OneLine(from)},
			{Text: cli.OneLine(effect)},
			{Text: cli.OneLine(events(r.On))},
			{Text: cli.OneLine(matched(r.Match))},
		}})
	}
	return t
}

func events(on []v1alpha1.Event) string {
	if len(on) == 0 {
		return "any change"
	}
	var out []string
	for _, event := range on {
		out = append(out, string(event))
	}
	return strings.Join(out, ", ")
}

// matched describes the objects that a rule matches.
func matched(m v1alpha1.ObjectMatch) string {
	out := cmp.Or(strings.Join(m.Kinds, ", "), "all")
	if m.Group != "" {
		out += " of " + m.Group
	}
	if m.Namespace != "" || m.Name != "" {
		out += " " + cmp.Or(m.Namespace, "*") + "/" + cmp.Or(m.Name, "*")
	}
	return out
}
