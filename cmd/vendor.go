package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/registry/chartsource"
)

// vendorTimeout bounds the work for one component; it leaves time for a large chart and a slow
// connection.
const vendorTimeout = 10 * time.Minute

type vendorOptions struct {
	wanted                        chartsource.Wanted
	plainHTTP                     []string
	check, upgrade, packed, force bool
}

// vendorRun is one run of vendor.
type vendorRun struct {
	*cli.Invocation
	fleets *fleetrepo.Opener
}

func newVendor(inv *cli.Invocation) *cobra.Command {
	run := &vendorRun{Invocation: inv, fleets: fleetrepo.New(inv)}
	var o vendorOptions
	cmd := &cobra.Command{
		Use:     "vendor [COMPONENT...]",
		GroupID: cli.GroupGit,
		Short:   "Keep the charts of others in git, pinned by digest",
		Long: `Vendor copies a chart of another project into components/COMPONENT/template/,
with the charts that it depends on. It writes chart.yaml beside it: the source
of the chart, its version, and its digest. Deliveries use the files in git and
download nothing. Commit the files, and tag the version.

  vendor COMPONENT --chart …     adds or replaces the chart
  vendor COMPONENT --version …   changes the version
  vendor --upgrade [COMPONENT…]  changes to the newest version that chart.yaml allows
  vendor [COMPONENT…]            makes template/ match chart.yaml
  vendor --check [COMPONENT…]    changes nothing, and lists differences

Vendor does not overwrite files that were changed by hand. It refuses a version
that was published again with other content. --force permits both. With
--packed it keeps the .tgz. Without, git has the single files, so that a pull
request shows what an upgrade changes.

Credentials are those of helm registry login, docker login and helm repo add.
Each is sent only to its own host.

Exit codes: 0 done, 1 with --check: files differ, 2 it can't be done, or the
source can't be read.`,
		Example: `  keelson vendor coredns --chart oci://registry.example/charts/coredns --version 1.45.0
  keelson vendor coredns --chart coredns --chart-repo https://charts.example/stable --version ^1.45
  keelson vendor web --chart ../charts/web
  keelson vendor --upgrade coredns
  keelson vendor --check -o json`,
		Args:              cli.Args("COMPONENT...", 0, -1),
		ValidArgsFunction: run.completeVendored,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := run.CheckFormat(); err != nil {
				return err
			}
			if err := o.validate(args); err != nil {
				return err
			}
			return run.vendor(cmd.Context(), o, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.wanted.Chart, "chart", "", "the `CHART`: oci://HOST/PATH/NAME, a .tgz or a folder,\nor with --chart-repo its name")
	f.StringVar(&o.wanted.Repository, "chart-repo", "", "`URL` of the chart repository")
	f.StringVar(&o.wanted.Version, "version", "", "`VERSION` of the chart, or a range as ^1.45\n(default the newest)")
	f.BoolVar(&o.upgrade, "upgrade", false, "move to the newest version that chart.yaml allows")
	f.BoolVar(&o.check, "check", false, "change nothing, and tell what differs")
	f.BoolVar(&o.packed, "packed", false, "keep the .tgz instead of its files")
	f.BoolVar(&o.force, "force", false, "overwrite local changes, and take what was\npublished again")
	f.StringSliceVar(&o.plainHTTP, "plain-http", nil, "`HOST:PORT`s to talk to without TLS")
	for _, name := range []string{"chart-repo", "version", "plain-http"} {
		// Only fails for a flag that does not exist.
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

func (o *vendorOptions) validate(components []string) error {
	brings := o.wanted.Chart != "" || o.wanted.Version != ""
	switch {
	case o.wanted.Repository != "" && o.wanted.Chart == "":
		return cli.Usagef("--chart-repo needs the chart's name with --chart")
	case brings && len(components) != 1:
		return cli.Usagef("--chart and --version are for one component: name it")
	case brings && o.check, o.upgrade && o.check:
		return cli.Usagef("--check changes nothing: leave --chart, --version and --upgrade out")
	case brings && o.upgrade:
		return cli.Usagef("--upgrade takes the newest version that chart.yaml allows: leave --chart and --version out")
	case o.packed && o.wanted.Chart == "":
		return cli.Usagef("--packed is decided with --chart; chart.yaml remembers it")
	}
	return nil
}

// vendored is the result for one component.
type vendored struct {
	Component string `json:"component"`
	Chart     string `json:"chart,omitempty"`
	Version   string `json:"version,omitempty"`
	// Was is the version before, if it was another.
	Was    string `json:"was,omitempty"`
	URL    string `json:"url,omitempty"`
	Digest string `json:"digest,omitempty"`
	// State is "pinned" (template/ matches chart.yaml, nothing was changed), "written", "differs"
	// (and was not changed) or "failed".
	State       string                   `json:"state"`
	Differences []chartsource.Difference `json:"differences,omitempty"`
	Warnings    []string                 `json:"warnings,omitempty"`
	Error       string                   `json:"error,omitempty"`

	err error
}

// The states of [vendored].
const (
	vendorPinned  = "pinned"
	vendorWritten = "written"
	vendorDiffers = "differs"
	vendorFailed  = "failed"
)

func (run *vendorRun) vendor(ctx context.Context, o vendorOptions, components []string) (err error) {
	if run.Revision != "" {
		return cli.Usagef("vendor works on the files in the work tree: leave --revision out")
	}
	tree, err := chartsource.OpenTree(run.Repo)
	if err != nil {
		return fmt.Errorf("vendor needs a work tree, in the folder of --repo: %w", err)
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	if len(components) == 0 {
		if components, err = tree.Components(); err != nil {
			return err
		}
	}
	p := run.NewProgress()
	client, err := chartsource.New(chartsource.Options{
		RegistryConfigs: registryConfigs(), RepositoryConfig: cmp.Or(os.Getenv("HELM_REPOSITORY_CONFIG"), helmConfig("repositories.yaml")),
		PlainHTTP: o.plainHTTP, UserAgent: "keelson/" + cmp.Or(run.Env.Version, "dev"), Root: run.Repo,
		Progress: func(what string) { p.Print(what) },
	})
	if err != nil {
		return err
	}
	v := &vendoring{options: o, tree: tree, client: client}
	list := []*vendored{}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(components))) {
		list = append(list, v.component(ctx, name))
		if ctx.Err() != nil {
			break
		}
	}
	p.Clear()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return run.showVendored(list)
}

// registryConfigs returns the files with registry credentials that helm and docker use.
func registryConfigs() []string {
	files := []string{cmp.Or(os.Getenv("HELM_REGISTRY_CONFIG"), helmConfig(filepath.Join("registry", "config.json")))}
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		files = append(files, filepath.Join(dir, "config.json"))
	} else if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".docker", "config.json"))
	}
	return slices.DeleteFunc(files, func(f string) bool { return f == "" })
}

// helmConfig returns the path of a file of helm's settings, "" if no folder for settings is known.
func helmConfig(name string) string {
	if dir := os.Getenv("HELM_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, name)
	}
	dir, err := os.UserConfigDir()
	if home, homeErr := os.UserHomeDir(); runtime.GOOS == "darwin" && homeErr == nil {
		dir, err = filepath.Join(home, "Library", "Preferences"), nil
	}
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "helm", name)
}

// vendoring works on the components of one work tree.
type vendoring struct {
	options vendorOptions
	tree    *chartsource.Tree
	client  *chartsource.Client
}

func (v *vendoring) component(ctx context.Context, name string) *vendored {
	ctx, cancel := context.WithTimeout(ctx, vendorTimeout)
	defer cancel()
	out := &vendored{Component: name}
	if err := v.one(ctx, out); err != nil {
		out.State, out.err, out.Error = vendorFailed, err, err.Error()
	}
	return out
}

func (v *vendoring) one(ctx context.Context, out *vendored) error {
	c, err := v.tree.Component(out.Component)
	if err != nil {
		return err
	}
	if c.Source == nil && v.options.wanted.Chart == "" {
		return fmt.Errorf("components/%s has no chart.yaml: its chart is its own, or comes with --chart", c.Name)
	}
	if c.Source != nil {
		out.describe(c.Source.Name, c.Source.Version, c.Source.URL, c.Source.Digest)
		if v.ownFiles(c, out) {
			return nil
		}
	}
	chart, err := v.chart(ctx, c)
	if err != nil {
		return err
	}
	out.describe(chart.Source.Name, chart.Source.Version, chart.Source.URL, chart.Source.Digest)
	out.Warnings = chart.Warnings
	if c.Source != nil && c.Source.Version != chart.Source.Version {
		out.Was = c.Source.Version
	}
	packed := v.options.packed || v.options.wanted.Chart == "" && c.Packed()
	out.Differences = c.Compare(chart, packed)
	switch {
	case len(out.Differences) == 0:
		out.State = vendorPinned
		return nil
	case v.options.check:
		out.State = vendorDiffers
		return nil
	}
	if err := v.mayWrite(ctx, c, chart); err != nil {
		return err
	}
	if packed {
		if err := chart.CanPack(); err != nil {
			return err
		}
	}
	if err := v.tree.Write(c, chart, packed); err != nil {
		return err
	}
	out.State, out.Differences = vendorWritten, nil
	return v.addWarnings(out)
}

func (out *vendored) describe(chart, version, url, digest string) {
	out.Chart, out.Version, out.URL, out.Digest = chart, version, url, digest
}

// ownFiles checks a chart from a disk against the sums in chart.yaml: its path is of no use on
// other machines.
func (v *vendoring) ownFiles(c *chartsource.Component, out *vendored) bool {
	if !strings.HasPrefix(c.Source.URL, "file:") || v.options.wanted != (chartsource.Wanted{}) {
		return false
	}
	out.State = vendorPinned
	if len(c.Files) == 0 || c.Touched() {
		out.State = vendorDiffers
		out.Differences = []chartsource.Difference{{File: "template/", State: "changed"}}
		if !v.options.check {
			out.State, out.err = vendorFailed, fmt.Errorf("template/ is not as it was brought from a disk (%s): bring it again with --chart", c.Source.URL)
			out.Error = out.err.Error()
		}
	}
	return true
}

// chart reads the requested chart.
func (v *vendoring) chart(ctx context.Context, c *chartsource.Component) (*chartsource.Chart, error) {
	want := v.options.wanted
	if want.Chart == "" && want.Version == "" && !v.options.upgrade {
		return v.client.Fetch(ctx, *c.Source)
	}
	if want.Chart == "" {
		if strings.HasPrefix(c.Source.URL, "file:") {
			return nil, fmt.Errorf("the chart is from a disk (%s), where there are no versions: bring another with --chart", c.Source.URL)
		}
		want = chartsource.From(*c.Source)
		want.Version = cmp.Or(v.options.wanted.Version, c.Source.Constraint)
	}
	return v.client.Resolve(ctx, want)
}

// mayWrite returns an error with the reason if template/ must not be replaced.
func (v *vendoring) mayWrite(ctx context.Context, c *chartsource.Component, chart *chartsource.Chart) error {
	if v.options.force {
		return nil
	}
	was, is := c.Source, chart.Source
	if was != nil && was.URL == is.URL && was.Name == is.Name && was.Version == is.Version && was.Digest != is.Digest && was.Digest != "" {
		return fmt.Errorf("%w: %s %s was %s, and is %s now; --force takes it",
			chartsource.ErrMoved, is.Name, is.Version, was.Digest, is.Digest)
	}
	if !c.Touched() {
		return nil
	}
	return fmt.Errorf("template/ holds what keelson vendor did not write there: %s; --force overwrites it", v.touched(ctx, c))
}

// touched names the files that were changed by hand.
func (v *vendoring) touched(ctx context.Context, c *chartsource.Component) string {
	var names []string
	if c.Source == nil {
		for _, f := range c.Files {
			names = append(names, path.Join("template", f.Name))
		}
		return cli.Few(names)
	}
	chart, err := v.client.Fetch(ctx, *c.Source)
	if err != nil {
		return "its sums are not those in chart.yaml (which files differ is not known: " + err.Error() + ")"
	}
	for _, d := range c.Compare(chart, c.Packed()) {
		names = append(names, d.File+" ("+d.State+")")
	}
	return cli.Few(names)
}

// addWarnings adds warnings about causes that keep a written chart from being delivered.
func (v *vendoring) addWarnings(out *vendored) error {
	c, err := v.tree.Component(out.Component)
	if err != nil {
		return err
	}
	ignored, err := v.tree.Ignored(c)
	if err != nil {
		return err
	}
	if len(ignored) > 0 {
		out.Warnings = append(out.Warnings, "a .gitignore keeps files of the chart out of git: "+cli.Few(ignored)+"; add them with git add -f")
	}
	if !v.tree.HasSpec(out.Component) {
		out.Warnings = append(out.Warnings, fmt.Sprintf("components/%s/component.yaml is missing: it says into which namespace the chart goes", out.Component))
	}
	return nil
}

func (run *vendorRun) showVendored(list []*vendored) error {
	failed, differs := 0, 0
	for _, v := range list {
		switch v.State {
		case vendorFailed:
			failed++
		case vendorDiffers:
			differs++
		}
	}
	if failed == 1 && len(list) == 1 && run.Output == cli.FormatText {
		return fmt.Errorf("component %s: %w", list[0].Component, list[0].err)
	}
	if err := run.Show(list, run.vendoredText(list)); err != nil {
		return err
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%s of %d failed", cli.Plural(failed, "component", "components"), len(list))
	case differs > 0:
		return cli.ErrFound
	}
	return nil
}

func (run *vendorRun) vendoredText(list []*vendored) string {
	t := &cli.Table{
		Columns: []cli.Column{{Title: "COMPONENT"}, {Title: "CHART"}, {Title: "VERSION"}, {Title: "STATE"}, {Title: "FROM", MinWidth: 24, KeepEnd: true}},
		Painter: run.Painter(run.Env.Out), Width: run.Env.Columns(run.Env.Out),
	}
	looks := map[string]cli.Style{vendorPinned: cli.Green, vendorWritten: cli.Green, vendorDiffers: cli.Yellow, vendorFailed: cli.Red}
	for _, v := range list {
		version := cli.OneLine(v.Version)
		if v.Was != "" {
			version = cli.OneLine(v.Was + " → " + v.Version)
		}
		r := cli.Row{Cells: []cli.Cell{
			{Text: cli.OneLine(v.Component)}, {Text: cli.OneLine(v.Chart)}, {Text: version}, {Text: v.State, Style: looks[v.State]}, {Text: cli.OneLine(v.URL)},
		}}
		if v.err != nil {
			r.Notes = append(r.Notes, cli.Cell{Text: cli.OneLine(v.Error), Style: cli.Red})
		}
		for _, d := range v.Differences {
			r.Notes = append(r.Notes, cli.Cell{Text: cli.OneLine(d.State + " " + path.Join("components", v.Component, d.File)), Style: cli.Yellow})
		}
		for _, w := range v.Warnings {
			r.Notes = append(r.Notes, cli.Cell{Text: cli.OneLine("warning: " + w), Style: cli.Yellow})
		}
		t.Rows = append(t.Rows, r)
	}
	return t.TextOr("no component has a chart.yaml: bring a chart with --chart\n")
}

// completeVendored completes components that have a chart.yaml; with --chart, all components.
func (run *vendorRun) completeVendored(cmd *cobra.Command, taken []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	if run.Configure(cmd) != nil {
		return nil, nothing
	}
	tree, err := chartsource.OpenTree(run.Repo)
	if err != nil {
		return nil, nothing
	}
	defer func() { _ = tree.Close() }() // nothing was written
	var names []string
	if chart, err := cmd.Flags().GetString("chart"); err == nil && chart != "" {
		names, err = tree.Folders()
		if err != nil {
			return nil, nothing
		}
	} else if names, err = tree.Components(); err != nil {
		return nil, nothing
	}
	return fleetrepo.Without(names, taken), nothing
}
