package cmd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// explainRun is one run of explain.
type explainRun struct {
	*cli.Invocation
	fleets *fleetrepo.Opener
}

func newExplain(inv *cli.Invocation) *cobra.Command {
	run := &explainRun{Invocation: inv, fleets: fleetrepo.New(inv)}
	var showSecrets, workTree bool
	cmd := &cobra.Command{
		Use:     "explain CLUSTER COMPONENT [PATH]",
		GroupID: cli.GroupGit,
		Short:   "Say where the values of a component come from",
		Long: `Explain prints every value that a component's templates read on a cluster, and
the file and line that set it: the chart's values.yaml, a layer, the cluster's
own file, or images.yaml. Overridden values are below the value that overrides
them.

The version, the images and the pipeline come first, with the stage of the
cluster, and whether a freeze holds it now.

PATH limits the output to one path and the values below it: .resources,
.args[2]. Without PATH the values below .images are left out, because the
images come first.

Values are masked if their key suggests a password, a token or a secret, unless
--show-secrets is given. Values that SOPS encrypted are "(encrypted)"; no key
is needed.

Exit codes: 0 explained, 2 the value can't be explained.`,
		Example: `  keelson explain prod-us-01 coredns
  keelson explain prod-us-01 coredns .resources
  keelson explain prod-us-01 coredns .images -o json`,
		Args: cli.Args("CLUSTER COMPONENT [PATH]", 2, 3),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 2 {
				return run.fleets.Complete(completePaths)(cmd, args, prefix)
			}
			return run.fleets.CompleteNames(1)(cmd, args, prefix)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := run.CheckFormat(); err != nil {
				return err
			}
			f, err := run.fleets.LoadFleet(cmd.Context(), workTree)
			if err != nil {
				return err
			}
			c, err := fleetrepo.FindClusterOffline(f, args[0])
			if err != nil {
				return err
			}
			d, err := fleetrepo.FindDeliveries(c, args[1:2])
			if err != nil {
				return err
			}
			path := ""
			if len(args) > 2 {
				path = args[2]
			}
			e, err := explain(f, d[0], path)
			if err != nil {
				return err
			}
			e.explainWay(f, c, run.Env.Now())
			if !showSecrets {
				e.mask()
			}
			return run.Show(e, e.text(run.Painter(run.Env.Out), run.Env.Columns(run.Env.Out)))
		},
	}
	cmd.Flags().BoolVar(&showSecrets, "show-secrets", false, "print values that may be secret")
	cmd.Flags().BoolVar(&workTree, "worktree", false, "read the files as they are, committed or not")
	return cmd
}

func completePaths(f *registry.Fleet, args []string) []string {
	c := f.Cluster(args[0])
	if c == nil || c.Delivery(args[1]) == nil {
		return nil
	}
	values, err := c.Delivery(args[1]).Explain("")
	if err != nil {
		return nil
	}
	var out []string
	for _, v := range values {
		out = append(out, v.Path)
	}
	return out
}

// explanation is the JSON output of explain.
type explanation struct {
	Cluster   string           `json:"cluster"`
	Component string           `json:"component"`
	Version   explainedVersion `json:"version"`
	// Absent is the place in git that removes the component.
	Absent *yamlfile.Position `json:"absent,omitempty"`
	// Pipeline delivers the component's changes. Stage is the cluster's stage in that pipeline.
	Pipeline *explainedName `json:"pipeline,omitempty"`
	Stage    *explainedName `json:"stage,omitempty"`
	// Frozen is the reason of a freeze that applies now.
	Frozen *explainedName       `json:"frozen,omitempty"`
	Images []explainedImage     `json:"images,omitempty"`
	Values []registry.Explained `json:"values"`
	// Problems block the delivery.
	Problems yamlfile.Problems `json:"problems,omitempty"`
}

type explainedVersion struct {
	Name   string            `json:"name"`
	At     yamlfile.Position `json:"at"`
	Commit string            `json:"commit"`
	Tree   string            `json:"tree"`
}

// explainedName is a word or sentence, with its place in git.
type explainedName struct {
	Is string            `json:"is"`
	At yamlfile.Position `json:"at"`
}

type explainedImage struct {
	Name string            `json:"name"`
	Ref  string            `json:"ref"`
	At   yamlfile.Position `json:"at"`
}

func explain(f *registry.Fleet, d *registry.Delivery, path string) (*explanation, error) {
	if d.Version == nil {
		return nil, d.Blocked()
	}
	e := &explanation{
		Cluster: d.Cluster, Component: d.Component, Problems: d.Problems,
		Version: explainedVersion{Name: d.VersionName, At: d.VersionAt, Commit: cmp.Or(d.Version.Commit, f.Revision), Tree: d.Version.Tree},
	}
	if d.Absent {
		e.Absent = &d.AbsentAt
	}
	keys, err := registry.ParsePath(path)
	if err != nil {
		return nil, &cli.UsageError{Err: err}
	}
	all, err := d.Explain("")
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		if keys, err := registry.ParsePath(v.Path); err == nil && len(keys) == 3 && keys[0] == "images" && keys[2] == "ref" {
			e.Images = append(e.Images, explainedImage{Name: keys[1], Ref: fmt.Sprint(v.Value), At: v.At})
		}
	}
	e.Values = all
	if len(keys) > 0 {
		if e.Values, err = d.Explain(path); err != nil {
			return nil, err
		}
		if len(e.Values) == 0 {
			return nil, fmt.Errorf("%s on %s has no value at %s: without a PATH, explain lists them all",
				d.Component, d.Cluster, registry.FormatPath(keys))
		}
		return e, nil
	}
	e.Values = slices.DeleteFunc(e.Values, func(v registry.Explained) bool { return strings.HasPrefix(v.Path, ".images.") })
	if e.Values == nil {
		e.Values = []registry.Explained{} // so that JSON has a list, not null
	}
	return e, nil
}

// explainWay adds the pipeline, the stage and the freeze of the component.
func (e *explanation) explainWay(f *registry.Fleet, c *registry.Cluster, now time.Time) {
	if p := f.PipelineOf(e.Component); p != nil && p.Name != "" {
		e.Pipeline = &explainedName{p.Name, f.PipelineAt(e.Component)}
		if s := p.StageOf(c.Spec.Labels); s != nil {
			e.Stage = &explainedName{s.Spec.Name, p.StageAt(s)}
		}
	}
	if z, _ := f.FrozenBy(c, e.Component, now); z != nil {
		e.Frozen = &explainedName{z.Spec.Reason, z.At()}
	}
}

// mask hides values that may be secret.
func (e *explanation) mask() {
	names := cli.NewSecretNames()
	for i := range e.Values {
		v := &e.Values[i]
		path, err := registry.ParsePath(v.Path)
		secret := err != nil || names.MatchesAny(path)
		if !v.Encrypted {
			v.Value = names.Mask(v.Value, secret)
		}
		v.Overrides = slices.Clone(v.Overrides)
		for j := range v.Overrides {
			if !v.Overrides[j].Encrypted {
				v.Overrides[j].Value = names.Mask(v.Overrides[j].Value, secret)
			}
		}
	}
}

// text returns the explanation for people. If the width is too small for whole places, places in
// the component's own folder are printed without that folder.
func (e *explanation) text(paint cli.Painter, width int) string {
	tables := e.tables(func(at yamlfile.Position) string { return at.String() })
	note := ""
	for _, t := range tables {
		t.Painter, t.Width = paint, width
		if !t.Fits() && e.Version.Name != v1alpha1.VersionHead {
			note = fmt.Sprintf(", from tag %s/%s where a place has no folder", e.Component, e.Version.Name)
		}
	}
	if note != "" {
		tables = e.tables(e.shortPlace)
	}
	var b strings.Builder
	b.WriteString(paint.Paint(cli.Bold, cli.OneLine(e.Component+" on "+e.Cluster)) + cli.OneLine(note) + "\n")
	for _, t := range tables {
		t.Painter, t.Width = paint, width
		b.WriteString("\n" + t.String())
	}
	for _, p := range e.Problems {
		b.WriteString("\n" + paint.Paint(cli.Red, "blocked: ") + cli.Clean(p.Error()) + "\n")
	}
	return b.String()
}

func (e *explanation) shortPlace(at yamlfile.Position) string {
	if folder := "components/" + e.Component + "/"; at.Revision == e.Component+"/"+e.Version.Name && strings.HasPrefix(at.File, folder) {
		at.File, at.Revision = strings.TrimPrefix(strings.TrimPrefix(at.File, folder), "template/"), ""
	}
	return at.String()
}

// tables returns the table of the version and images, and the table of the values, if any.
func (e *explanation) tables(place func(yamlfile.Position) string) []*cli.Table {
	line := func(what, value string, at yamlfile.Position, look [3]cli.Style) cli.Row {
		return cli.Row{Cells: []cli.Cell{
			{Text: what, Style: look[0]}, {Text: cli.OneLine(value), Style: look[1]}, {Text: cmp.Or(cli.OneLine(place(at)), "?"), Style: look[2]},
		}}
	}
	from := cli.Column{Title: "FROM", MinWidth: 24, KeepEnd: true}
	head := &cli.Table{Columns: []cli.Column{{Title: "WHAT"}, {Title: "IS", MinWidth: 16}, from}}
	head.Rows = append(head.Rows, line("version", e.Version.Name, e.Version.At, [3]cli.Style{}))
	if e.Absent != nil {
		head.Rows = append(head.Rows, line("absent", "true", *e.Absent, [3]cli.Style{}))
	}
	for _, one := range []struct {
		what string
		is   *explainedName
	}{{"pipeline", e.Pipeline}, {"stage", e.Stage}, {"frozen", e.Frozen}} {
		if one.is != nil {
			head.Rows = append(head.Rows, line(one.what, one.is.Is, one.is.At, [3]cli.Style{}))
		}
	}
	for _, i := range e.Images {
		head.Rows = append(head.Rows, line(cli.OneLine("image "+i.Name), i.Ref, i.At, [3]cli.Style{}))
	}
	if len(e.Values) == 0 {
		return []*cli.Table{head}
	}
	values := &cli.Table{Columns: []cli.Column{{Title: "PATH", MinWidth: 16}, {Title: "VALUE", MinWidth: 12}, from}}
	for _, v := range e.Values {
		value := compact(v.Value)
		if v.Deleted {
			value = "(deleted)"
		}
		values.Rows = append(values.Rows, line(cli.OneLine(v.Path), value, v.At, [3]cli.Style{}))
		for _, o := range v.Overrides {
			values.Rows = append(values.Rows, line("  overrides", compact(o.Value), o.At, [3]cli.Style{cli.Dim, cli.Struck, cli.Dim}))
		}
	}
	return []*cli.Table{head, values}
}

// compact writes a value as JSON on one line. A string has no quotes if it can't be mistaken for
// another value.
func compact(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return cli.OneLine(fmt.Sprint(v))
	}
	if s, ok := v.(string); ok && s != "" && s == cli.OneLine(s) && !json.Valid([]byte(s)) {
		return s
	}
	return cli.OneLine(string(data))
}
