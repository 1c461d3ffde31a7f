package cmd

import (
	"context"
	"errors"
	"fmt"
	"net/mail"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/controllers/promotion"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/edit"
	"github.com/keelson-io/keelson/registry/gitrepo"
)

// pushOptions set the author, the login and the signing key of pushed commits.
type pushOptions struct {
	credentials, signingKey, author string
}

func (o *pushOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.credentials, "push-credentials", "", "`FILE` of logins for pushes alone, as --git-credentials has them for\nreading; it is read again for each push")
	f.StringVar(&o.signingKey, "push-signing-key", "", "`FILE` of an SSH key that signs the commits")
	f.StringVar(&o.author, "push-author", "Keelson <keelson@localhost>", "`NAME <EMAIL>` of the author of the commits")
}

func (o *pushOptions) promoter(inv *cli.Invocation, repo *registry.Repo, requests forge.Proposer) (*promotion.Promoter, error) {
	by, err := mail.ParseAddress(o.author)
	if err != nil || strings.ContainsAny(by.Name+by.Address, "<>\n\x00") {
		return nil, cli.Usagef("--push-author takes NAME <EMAIL>, and not %q", o.author)
	}
	options := promotion.Options{
		Repo: repo, Revision: inv.Revision, Credentials: o.credentials, Author: by.Name, Email: by.Address, Now: inv.Env.Now,
		Requests: requests, Redact: inv.Env.Redactor.Text,
	}
	if o.signingKey != "" {
		options.Sign = gitrepo.SignWith(o.signingKey)
	}
	return promotion.New(options), nil
}

type promoteOptions struct {
	dry   bool
	push  pushOptions
	forge forgeOptions
}

// promoteRun is one run of promote.
type promoteRun struct {
	*cli.Invocation
	fleets   *fleetrepo.Opener
	clusters connection.Connector
}

func newPromote(inv *cli.Invocation) *cobra.Command {
	run := &promoteRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	var o promoteOptions
	cmd := &cobra.Command{
		Use:     "promote [COMPONENT…]",
		GroupID: cli.GroupGit,
		Short:   "Commit the versions that stages of pipelines are promoted to",
		Long: `Promote moves versions on in the files of the fleet repository. It does so for
the stages of a pipeline that set promotion. The first stage follows the newest
tags. Each later stage follows the versions that have passed the stage before
it: all clusters released, healthy, baked. The progress of the components is
read from the hub (--kubeconfig and --context).

Each promotion is a commit that changes one line: the version of the clusters
of one stage. Promote never sets a version back, and never promotes a version
again that was removed from the file; it promotes a later one. It does not
promote a component while its rollout is in progress, paused or failed, or
where a freeze holds a cluster.

If --repo is a URL, promote pushes the commits to its branch with the login of
--push-credentials. If another push comes first, promote starts again. If
--repo is a folder, promote changes the files in its work tree; commit them
yourself. 'keelson controller --promote' does the same continuously.

A stage with by: pullRequest gets its commit on a branch keelson/promote/…, and
a pull request on the --forge. The next version updates both. If a person
closes the pull request, its version is not proposed again. If the version can
no longer be promoted to the stage, promote closes the pull request. It keeps
commits of other authors on that branch.

Exit codes: 0 done, or nothing to do; 2 it can't be done, or the state is
unknown.`,
		Example: `  keelson promote --dry-run
  keelson promote coredns --repo https://git.example/fleet.git \
    --push-credentials writer.yaml
  keelson promote --repo https://git.example/fleet.git --push-credentials writer.yaml \
    --forge gitea --forge-url https://git.example --forge-repository platform/fleet \
    --forge-token-file forge-token
  keelson promote -o json && git commit -am "promote versions" && git push`,
		Args:              cli.Args("", 0, -1),
		ValidArgsFunction: run.fleets.Complete(func(f *registry.Fleet, args []string) []string { return fleetrepo.Without(f.Promoted(), args) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.promote(cmd.Context(), args, o)
		},
	}
	cmd.Flags().BoolVar(&o.dry, "dry-run", false, "say what would be committed, and change nothing")
	o.push.add(cmd.Flags())
	o.forge.add(cmd.Flags(), "open pull requests on")
	return cmd
}

// promoteTries bounds how often promotions are planned, if pushes of other clients interfere.
const promoteTries = 5

// promotePause is the pause before a new plan.
const promotePause = time.Second / 2

func (run *promoteRun) promote(ctx context.Context, components []string, o promoteOptions) error {
	if err := run.checkPromoteOnce(o); err != nil {
		return err
	}
	requests, err := o.forge.open(run.Invocation, nil, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	run.fleets.Delivers = true
	repo, fleet, err := run.fleets.LoadRepo(ctx, false)
	if err != nil {
		return err
	}
	p, err := o.push.promoter(run.Invocation, repo, requests)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		plan, err := run.planPromotions(ctx, p, fleet, components)
		if err != nil {
			return err
		}
		switch {
		case o.dry:
			return run.showPromotions(plan, "would be committed")
		case !run.fleets.Remote():
			return run.promoteHere(plan)
		}
		// Pull requests come first, as in the controller.
		err = errors.Join(p.Propose(ctx, &plan), p.Push(ctx, &plan))
		again := errors.Is(err, gitrepo.ErrMoved) || errors.Is(err, promotion.ErrSoon)
		if !again || try == promoteTries {
			return errors.Join(run.showPromotions(plan, "pushed to "+plan.Branch), err)
		}
		run.Log.Debug("another push came, or the forge has not seen a branch yet; trying again", "error", err)
		if err := cli.Sleep(ctx, promotePause); err != nil {
			return err
		}
		if err := repo.Git().Fetch(ctx); err != nil {
			return err
		}
		if fleet, err = repo.Load(ctx, run.Revision); err != nil {
			return err
		}
	}
}

// checkPromoteOnce rejects options with which promotion is impossible.
func (run *promoteRun) checkPromoteOnce(o promoteOptions) error {
	switch {
	case run.fleets.Remote() && !o.dry && o.push.credentials == "":
		return cli.Usagef("promote pushes to %s: give --push-credentials FILE with a login that may, or --dry-run", fleetrepo.ShownURL(run.Repo))
	case !run.fleets.Remote() && o.forge.kind != "":
		return cli.Usagef("--forge opens pull requests from branches that were pushed, and %s is a folder: give --repo URL", run.Repo)
	}
	return errors.Join(run.CheckFormat(), o.forge.check())
}

// planPromotions plans the promotions of the named components, or of all.
func (run *promoteRun) planPromotions(ctx context.Context, p *promotion.Promoter, f *registry.Fleet, components []string) (promotion.Plan, error) {
	promoted := f.Promoted()
	for _, name := range components {
		if !slices.Contains(promoted, name) {
			return promotion.Plan{}, fleetrepo.Unknown(fmt.Sprintf("no stage of a pipeline promotes a component %q", name), name, "components that are promoted", promoted)
		}
	}
	if len(components) == 0 {
		components = promoted
	}
	stand := func(string) (rollout.Progress, error) { return rollout.Progress{}, rollout.ErrUnknown }
	if len(components) > 0 {
		hub, err := run.clusters.HubClient()
		if err != nil {
			return promotion.Plan{}, err
		}
		if stand, err = standsIn(ctx, hub, f); err != nil {
			return promotion.Plan{}, err
		}
	}
	plan, err := p.Plan(ctx, f, components, stand)
	if err != nil {
		return plan, err
	}
	return plan, p.Ask(ctx, f, &plan)
}

// standsIn returns a function that reads a component's progress from the hub.
func standsIn(ctx context.Context, hub client.Client, f *registry.Fleet) (func(string) (rollout.Progress, error), error) {
	var list v1alpha1.RolloutList
	switch err := hub.List(ctx, &list, client.InNamespace(v1alpha1.Namespace)); {
	case connection.ServesNone(err):
		return nil, errNoRollouts
	case err != nil:
		return nil, fmt.Errorf("read the rollouts in the hub: %w", err)
	}
	return func(component string) (rollout.Progress, error) {
		var r *v1alpha1.Rollout
		if i := slices.IndexFunc(list.Items, func(r v1alpha1.Rollout) bool { return r.Name == component }); i >= 0 {
			r = &list.Items[i]
		}
		var deliveries v1alpha1.DeliveryList
		err := hub.List(ctx, &deliveries, client.InNamespace(v1alpha1.Namespace), client.MatchingLabels{v1alpha1.LabelComponent: component})
		if err != nil {
			return rollout.Progress{}, fmt.Errorf("read the deliveries of %s in the hub: %w", component, err)
		}
		return rollout.ProgressOf(f, component, r, deliveries.Items)
	}, nil
}

// promoteHere changes the files of the work tree.
func (run *promoteRun) promoteHere(plan promotion.Plan) error {
	if run.Revision != "" {
		return cli.Usagef("promote edits the files of a work tree: leave --revision out, or give --dry-run")
	}
	root, err := os.OpenRoot(run.Repo)
	if err != nil {
		return fmt.Errorf("open the work tree: %w", err)
	}
	tree := &fleetrepo.WorkTree{Root: root}
	defer tree.Close()
	var files, what []string
	for _, s := range plan.Steps {
		if s.To == "" {
			continue
		}
		if _, err := tree.Edit(s.At.File, func(data []byte) ([]byte, error) { return promoteFile(data, s) }); err != nil {
			return err
		}
		if file := path.Clean(s.At.File); !slices.Contains(files, file) {
			files = append(files, file)
		}
		what = append(what, fmt.Sprintf("%s to %s in %s", s.Component, s.To, s.Stage))
	}
	if err := run.showPromotions(plan, "written"); err != nil || run.Output != cli.FormatText || len(what) == 0 {
		return err
	}
	names := strings.Join(files, " ")
	fmt.Fprintf(run.Env.Out, "commit it, and push; nothing changes before that:\n  git add %s && git commit -m %s -- %s\n",
		names, fleetrepo.Quoted("promote "+strings.Join(what, ", ")), names)
	return nil
}

// promoteFile returns the new content of a file; a file with the new version stays unchanged.
func promoteFile(data []byte, s promotion.Step) ([]byte, error) {
	if _, _, err := edit.Version(data, s.Component, s.To, s.To); err == nil {
		return data, nil
	}
	after, _, err := edit.Version(data, s.Component, s.From, s.To)
	return after, err
}

// showPromotions prints the steps of a plan.
func (run *promoteRun) showPromotions(plan promotion.Plan, done string) error {
	if run.Output != cli.FormatText {
		if plan.Steps == nil {
			plan.Steps = []promotion.Step{}
		}
		return run.Encode(plan)
	}
	var b strings.Builder
	paint := run.Painter(run.Env.Out)
	count := 0
	for _, s := range plan.Steps {
		where := cli.OneLine(s.Component) + " in " + cli.OneLine(s.Stage)
		if s.To == "" {
			because := "nothing later is there for it"
			if s.Because != "" {
				because = cli.OneLine(s.Because)
			}
			if s.From != "" {
				where += " stays at " + cli.OneLine(s.From)
			}
			if s.Action != "" {
				where += ", " + requested(s, done)
			}
			fmt.Fprintf(&b, "%s: %s\n", where, because)
			continue
		}
		how := done
		switch {
		case s.By == v1alpha1.ByPullRequest:
			how = requested(s, done)
		case s.Commit != "":
			how = fmt.Sprintf("%s as %.12s", done, s.Commit)
		case strings.HasPrefix(done, "pushed"):
			how = "not " + done
		}
		count++
		fmt.Fprintf(&b, "%s: %s → %s, %s: %s\n", paint.Paint(cli.Bold, where), cli.OneLine(s.From), cli.OneLine(s.To), how, cli.OneLine(s.Because))
		fmt.Fprintf(&b, "  %s\n  %s\n  %s\n", s.At, paint.Paint(cli.Red, "-"+cli.Clean(s.Before)), paint.Paint(cli.Green, "+"+cli.Clean(s.After)))
	}
	if len(plan.Steps) == 0 {
		b.WriteString("no stage of a pipeline promotes a component\n")
	} else {
		b.WriteString(cli.Plural(count, "promotion", "promotions") + "\n")
	}
	return run.Write([]byte(b.String()))
}

// requested describes what was done, or would be done, to the pull request of a step.
func requested(s promotion.Step, done string) string {
	what := "pull request"
	if s.PullRequest != "" {
		what += " " + cli.OneLine(s.PullRequest)
	}
	switch {
	case s.Action == "":
		return "waits in " + what
	case strings.HasPrefix(done, "would"):
		return what + " would be " + s.Action.Done()
	}
	return what + " " + s.Action.Done()
}
