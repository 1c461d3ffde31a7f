package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/cmd/internal/rendering"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

// validateRun is one run of validate.
type validateRun struct {
	*cli.Invocation
	fleets  *fleetrepo.Opener
	renders *rendering.Local
}

func newValidate(inv *cli.Invocation) *cobra.Command {
	run := &validateRun{Invocation: inv, fleets: fleetrepo.New(inv), renders: rendering.New(inv)}
	var (
		caps     rendering.CapabilityFlags
		workTree bool
	)
	cmd := &cobra.Command{
		Use:     "validate",
		GroupID: cli.GroupGit,
		Short:   "Find every mistake in the fleet repository",
		Long: `Validate reads every file of the fleet repository and renders every component
for every cluster that gets it. It prints each mistake with its place:

  FILE:LINE:COLUMN: message (hint)

Validate compares rendered objects with the schemas of Kubernetes, and of the
CRDs that the cluster gets from git. A field of another type is a problem. An
unknown or missing field, and an unknown choice, is a warning, because clusters
have other versions. It also warns of images of a version that differ between
clusters.

Validate reads committed files. With --worktree it reads the files in the
folder of --repo, committed or not; versions still come from tags. It sends no
request to a cluster: charts see the kinds of --kube-version, of
--api-versions, and of the components that they depend on.

--age-key-file, or the keys of sops, decrypt what SOPS encrypted. Without any
key, validate warns of each component that needs one, and does not render it.
If keys are given and none of them fits, that is a problem.

Exit codes: 0 no problems, 1 problems, 2 the repository can't be read.`,
		Example: `  keelson validate
  keelson validate --worktree
  keelson validate --age-key-file ci-key.txt
  keelson validate --repo https://git.example/fleet.git --revision my-branch
  keelson validate -o json | jq -r '.[].at.file'`,
		Args:              cli.Args("none", 0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := run.CheckFormat(); err != nil {
				return err
			}
			repo, f, err := run.fleets.LoadRepo(cmd.Context(), workTree)
			if err != nil {
				return err
			}
			workers, err := run.renders.ForOutput()
			if err != nil {
				return err
			}
			v := &validation{
				fleet: f, cache: renderer.NewCache(workers, rendering.CacheBytes), caps: renderer.NewExtensions(caps.Capabilities()),
				workers: cmp.Or(run.renders.Workers, runtime.GOMAXPROCS(0)), progress: run.NewProgress(),
				keys: rendering.AgeKeys(run.AgeKeyFile), warnings: map[string]bool{}, checker: differ.NewChecker(), ran: map[placed]map[string]*ran{},
			}
			v.unmerged(cmd.Context(), repo)
			err = v.run(cmd.Context())
			v.progress.Clear()
			if err != nil {
				return err
			}
			return run.showValidation(v)
		},
	}
	cmd.Flags().BoolVar(&workTree, "worktree", false, "read the files as they are, committed or not")
	caps.AddFlags(cmd)
	run.renders.AddFlags(cmd)
	return cmd
}

// finding is a problem, with the clusters whose render shows it. A problem found without a render
// has no clusters.
type finding struct {
	At       yamlfile.Position `json:"at"`
	Message  string            `json:"message"`
	Hint     string            `json:"hint,omitempty"`
	Clusters []string          `json:"clusters,omitempty"`
}

func newFinding(p yamlfile.Problem, clusters []string) finding {
	return finding{At: p.At, Message: p.Message, Hint: p.Hint, Clusters: slices.Sorted(slices.Values(clusters))}
}

func (f finding) problem() yamlfile.Problem {
	return yamlfile.Problem{At: f.At, Message: f.Message, Hint: f.Hint}
}

func (f finding) String() string {
	p := f.problem()
	if len(f.Clusters) > 0 {
		p.Message += " (on " + cli.Few(f.Clusters) + ")"
	}
	return p.Error()
}

// validation finds the problems of a fleet.
type validation struct {
	fleet    *registry.Fleet
	cache    *renderer.Cache
	caps     *renderer.Extensions
	keys     renderer.Keys
	checker  *differ.Checker
	ran      map[placed]map[string]*ran // images by container
	workers  int
	progress *cli.Progress

	mu     sync.Mutex
	looked int // finished clusters
	rules  map[*registry.Version]error
	// catalogue is compiled once, and shared by the rules of all versions.
	catalogue differ.Catalogue
	// healthRules are the errors of health rules, by version; nil: correct.
	healthRules map[*registry.Version]error
	broken      map[yamlfile.Problem][]string // clusters by problem
	warnings    map[string]bool
	locked      map[string]bool // encrypted files for which no key was given
	problems    []finding
}

func (v *validation) run(ctx context.Context) error {
	v.broken, v.locked = map[yamlfile.Problem][]string{}, map[string]bool{}
	v.rules, v.healthRules = map[*registry.Version]error{}, map[*registry.Version]error{}
	known := slices.ContainsFunc(v.fleet.Problems, func(p yamlfile.Problem) bool { return p.At.File == "fleet.yaml" })
	if _, err := differ.NewRules(differ.Scopes{Fleet: v.fleet.Spec.Danger, FleetProfile: v.fleet.Spec.DangerProfile}); err != nil && !known {
		v.broken[yamlfile.Problem{At: yamlfile.Position{File: "fleet.yaml"}, Message: err.Error()}] = fleetrepo.ClusterNames(v.fleet)
	}
	v.rollouts()
	v.probes()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(v.workers)
	for i, c := range v.fleet.Clusters {
		g.Go(func() error {
			if err := v.cluster(ctx, c, i%v.workers); err != nil {
				return err
			}
			v.showProgress()
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err //nolint:wrapcheck // of our own packages
	}
	v.differing()
	for _, p := range v.fleet.Problems {
		v.problems = append(v.problems, newFinding(p, nil))
	}
	for p, clusters := range v.broken {
		if slices.Contains(v.fleet.Problems, p) {
			continue
		}
		v.problems = append(v.problems, newFinding(p, clusters))
	}
	slices.SortFunc(v.problems, func(x, y finding) int { return x.problem().Compare(y.problem()) })
	return nil
}

// unmerged warns about versions whose tagged commits are not on the branch: a review of the branch
// has not covered them.
func (v *validation) unmerged(ctx context.Context, repo *registry.Repo) {
	if v.fleet.Spec.PromotableTags == v1alpha1.PromotableAll {
		return
	}
	asked := map[yamlfile.Position]bool{}
	for _, c := range v.fleet.Clusters {
		for _, d := range c.Deliveries {
			if d.Version == nil || d.Version.Commit == "" || asked[d.VersionAt] {
				continue
			}
			asked[d.VersionAt] = true
			merged, err := repo.Git().Merged(ctx, v.fleet.Revision, d.Component+"/"+d.VersionName)
			switch {
			case err != nil: // other versions would fail the same way: commits are missing
				v.warn([]string{fmt.Sprintf("whether versions are merged can't be told: %v", err)})
				return
			case !merged:
				v.warn([]string{fmt.Sprintf("%s: %s %s is not merged: the commit of its tag is not in the past of %.12s, so no review of the branch has seen it",
					d.VersionAt, d.Component, d.VersionName, v.fleet.Revision)})
			}
		}
	}
}

// cluster renders the deliveries of a cluster. It skips those that the registry blocks, whose
// problems are known, and ignores broken dependencies, which are reported themselves. Workers start
// at different deliveries, so that they don't wait for each other's renders.
func (v *validation) cluster(ctx context.Context, c *registry.Cluster, neighbour int) error {
	t := renderer.NewTargets(v.cache, c, v.caps)
	first := neighbour * len(c.Deliveries) / v.workers
	wanted := wishes{}
	var made []rendered
	for i := range c.Deliveries {
		d := c.Deliveries[(first+i)%len(c.Deliveries)]
		if d.Blocked() != nil {
			continue
		}
		v.danger(d)
		v.health(d)
		if d.Absent {
			continue
		}
		target, err := t.Render(ctx, d)
		var (
			failed     *renderer.Error
			dependency *renderer.DependencyError
		)
		switch {
		case err == nil:
			v.warn(target.WarningsFor(d.Values))
			wanted.add(d.Component, target)
			v.fenced(d, target)
			made = append(made, rendered{d, target})
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &dependency):
		case errors.Is(err, renderer.ErrNoKey) && errors.As(err, &failed):
			v.undecrypted(failed, c.Name)
		case errors.As(err, &failed) && !failed.Transient:
			v.add(yamlfile.Problem{At: failed.At, Message: failed.Message}, c.Name)
		default:
			return fmt.Errorf("render %s for %s: %w", d.Component, c.Name, err)
		}
	}
	for _, p := range wanted.conflicts() {
		v.add(p, c.Name)
	}
	v.fitting(made)
	for _, r := range made {
		v.images(c, r)
	}
	return nil
}

// rendered is a delivery of a cluster with its target.
type rendered struct {
	delivery *registry.Delivery
	target   *renderer.Target
}

// fitting finds fields that the schemas of their kinds do not accept. It uses the CRDs among all
// targets of the cluster.
func (v *validation) fitting(all []rendered) {
	targets := make([]*renderer.Target, len(all))
	for i, r := range all {
		targets[i] = r.target
	}
	checker := v.checker.Cluster(targets)
	for _, r := range all {
		found, err := checker.Misfits(r.target)
		if err != nil {
			v.add(yamlfile.Problem{At: r.delivery.VersionAt, Message: err.Error()}, r.delivery.Cluster)
			continue
		}
		for _, m := range found {
			if p := m.Blame(r.delivery.Values); m.Warning {
				v.warn([]string{p.Error()})
			} else {
				v.add(p, r.delivery.Cluster)
			}
		}
	}
}

// fenced finds objects, including hooks, that the component's project forbids.
func (v *validation) fenced(d *registry.Delivery, target *renderer.Target) {
	fence := applier.LimitsOf(v.fleet, d.Component)
	for _, o := range slices.Concat(target.Objects, target.Hooks) {
		id, _ := differ.Identify(o.Content)
		if why := fence.Refuses(id); why != "" {
			v.add(yamlfile.Problem{At: o.Source, Message: fmt.Sprintf("%s: %s", id, why)}, d.Cluster)
		}
	}
}

// wishes lists for each object of a cluster the components that want it, and where.
type wishes map[differ.ID][]wish

type wish struct {
	component string
	at        yamlfile.Position
}

func (w wishes) add(component string, t *renderer.Target) {
	for _, o := range t.Objects {
		id, _ := differ.Identify(o.Content)
		w[id] = append(w[id], wish{component, o.Source})
	}
}

// conflicts returns the objects that several components want: one component would wait forever.
func (w wishes) conflicts() yamlfile.Problems {
	var out yamlfile.Problems
	for id, all := range w {
		if len(all) < 2 {
			continue
		}
		slices.SortFunc(all, func(x, y wish) int { return cmp.Compare(x.component, y.component) })
		out = append(out, yamlfile.Problem{
			At:      all[1].at,
			Message: fmt.Sprintf("%s: components %s and %s both want it, the first at %s", id, all[0].component, all[1].component, all[0].at),
			Hint:    "leave it out of one of them",
		})
	}
	return out
}

// showProgress shows the progress if there is a terminal.
func (v *validation) showProgress() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.looked++
	if v.progress.OnTerminal() {
		v.progress.Print(fmt.Sprintf("rendered %d of %d clusters", v.looked, len(v.fleet.Clusters)))
	}
}

// danger compiles the danger rules of a component, which checks paths and conditions. Problems that
// the registry found are already problems of the delivery.
func (v *validation) danger(d *registry.Delivery) {
	if len(d.Version.Spec.Danger) == 0 && d.Version.Spec.DangerProfile == "" {
		return
	}
	v.mu.Lock()
	err, known := v.rules[d.Version]
	v.mu.Unlock()
	if !known { // concurrent compilations have the same result
		_, err = v.catalogue.NewRules(applier.ScopesOf(v.fleet, d))
		v.mu.Lock()
		v.rules[d.Version] = err
		v.mu.Unlock()
	}
	if err == nil {
		return
	}
	at := yamlfile.Position{File: "components/" + d.Component + "/component.yaml"}
	if d.VersionName != v1alpha1.VersionHead {
		at.Revision = d.Component + "/" + d.VersionName
	}
	v.add(yamlfile.Problem{At: at, Message: err.Error()}, d.Cluster)
}

// health compiles the health rules of a component.
func (v *validation) health(d *registry.Delivery) {
	if len(d.Version.Spec.Health) == 0 {
		return
	}
	v.mu.Lock()
	err, known := v.healthRules[d.Version]
	v.mu.Unlock()
	if !known { // concurrent compilations have the same result
		_, err = health.NewRules(d.Version.Spec.Health, nil)
		v.mu.Lock()
		v.healthRules[d.Version] = err
		v.mu.Unlock()
	}
	if wrong, ok := errors.AsType[*health.RuleError](err); ok {
		v.add(yamlfile.Problem{At: d.Version.HealthAt(wrong.Rule, wrong.Field), Message: err.Error()}, d.Cluster)
	}
}

// rollouts warns about stages and freezes without clusters, and checks the conditions of checks.
func (v *validation) rollouts() {
	conditions := rollout.NewConditions()
	for _, p := range v.fleet.Pipelines {
		for _, s := range p.Stages {
			v.stage(conditions, p, s)
		}
	}
	for _, z := range v.fleet.Freezes {
		if len(z.Problems) == 0 && !slices.ContainsFunc(v.fleet.Clusters, z.Concerns) {
			v.warn([]string{fmt.Sprintf("%s: it is for no cluster", z.At())})
		}
	}
}

// stage compiles the conditions of a stage's checks, and evaluates them on its clusters.
func (v *validation) stage(conditions rollout.Conditions, p *registry.Pipeline, s *registry.Stage) {
	var in []*registry.Cluster
	for _, c := range v.fleet.Clusters {
		if !c.Unread && p.StageOf(c.Spec.Labels) == s {
			in = append(in, c)
		}
	}
	if len(in) == 0 {
		v.warn([]string{fmt.Sprintf("%s: stage %s is for no cluster", p.StageAt(s), s.Spec.Name)})
	}
	for i, check := range s.Spec.Before {
		v.check(conditions, &check, p.CheckAt(s, false, i), in)
	}
	for i, check := range s.Spec.After {
		v.check(conditions, &check, p.CheckAt(s, true, i), in)
	}
}

// check validates one check.
func (v *validation) check(conditions rollout.Conditions, is *v1alpha1.Check, at yamlfile.Position, clusters []*registry.Cluster) {
	if is.Probe != nil {
		v.probed(is.Probe.Name, at, clusters)
	}
	v.condition(conditions, is.CEL, at, clusters)
}

// condition evaluates a condition with a healthy delivery. A condition without a result then will
// hardly have one later.
func (v *validation) condition(conditions rollout.Conditions, text string, at yamlfile.Position, clusters []*registry.Cluster) {
	if text == "" {
		return
	}
	condition, err := conditions.Compile(text)
	if err != nil {
		v.broken[yamlfile.Problem{At: at, Message: err.Error()}] = nil
		return
	}
	well := rollout.DeliveryFacts{Version: "v1.0.0", Sync: string(v1alpha1.SyncSynced), Health: string(v1alpha1.HealthHealthy), Message: "all well"}
	for _, c := range clusters {
		if _, err := condition.Holds(c, well); err != nil {
			v.warn([]string{fmt.Sprintf("%s: on %s it has no answer: %v", at, c.Name, err)})
		}
	}
}

// undecrypted reports a file that no key fits. Without any key, as in most CI, it only warns, so
// that everything else is validated. With keys it is a problem.
func (v *validation) undecrypted(err *renderer.Error, cluster string) {
	if ids, failed := v.keys.Identities(); failed != nil || len(ids) > 0 {
		v.add(yamlfile.Problem{At: err.At, Message: err.Message}, cluster)
		return
	}
	v.warn([]string{err.At.String() + ": " + err.Message + "; what needs it was not rendered"})
	v.mu.Lock()
	defer v.mu.Unlock()
	v.locked[err.At.File] = true
}

func (v *validation) add(p yamlfile.Problem, cluster string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.broken[p] = append(v.broken[p], cluster)
}

func (v *validation) warn(warnings []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, w := range warnings {
		v.warnings[w] = true
	}
}

// summary counts the validated objects and the problems.
func (v *validation) summary() string {
	components, deliveries := map[string]bool{}, 0
	for _, c := range v.fleet.Clusters {
		for _, d := range c.Deliveries {
			components[d.Component] = true
			deliveries++
		}
	}
	found := "no problems"
	if n := len(v.problems); n > 0 {
		found = cli.Plural(n, "problem", "problems")
	}
	if n := len(v.locked); n > 0 {
		found += ", " + cli.Plural(n, "encrypted file", "encrypted files") + " without a key"
	}
	return fmt.Sprintf("%s × %s: %s, %s, %s",
		cli.Plural(len(components), "component", "components"),
		cli.Plural(len(v.fleet.Clusters), "cluster", "clusters"),
		cli.Plural(deliveries, "delivery", "deliveries"),
		cli.Plural(int(v.cache.Stats().Misses), "distinct render", "distinct renders"), found)
}

func (run *validateRun) showValidation(v *validation) error {
	run.WarnAll(v.warnings)
	if run.Output != cli.FormatText {
		if v.problems == nil {
			v.problems = []finding{}
		}
		if err := run.Encode(v.problems); err != nil {
			return err
		}
	} else {
		paint := run.Painter(run.Env.Out)
		var b strings.Builder
		for _, p := range v.problems {
			place, rest, _ := strings.Cut(cli.Clean(p.String()), ": ")
			b.WriteString(paint.Paint(cli.Bold, place) + ": " + rest + "\n")
		}
		b.WriteString(paint.Paint(cli.OutcomeStyle(len(v.problems) == 0), v.summary()) + "\n")
		if err := run.Write([]byte(b.String())); err != nil {
			return err
		}
	}
	if len(v.problems) > 0 {
		return cli.ErrFound
	}
	return nil
}
