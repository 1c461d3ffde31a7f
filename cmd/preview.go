package cmd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/cmd/internal/rendering"
	"github.com/keelson-io/keelson/controllers/preview"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

const (
	// clusterTakes is the assumed time that a cluster needs for a change.
	clusterTakes = time.Minute
	// differenceBytes bounds the memory of a preview's differences, in bytes.
	differenceBytes = 1 << 30
)

type previewOptions struct {
	caps         rendering.CapabilityFlags
	workTree     bool
	clusterTakes time.Duration
}

// previewRun is one run of preview.
type previewRun struct {
	*cli.Invocation
	fleets  *fleetrepo.Opener
	renders *rendering.Local
}

func newPreview(inv *cli.Invocation) *cobra.Command {
	run := &previewRun{Invocation: inv, fleets: fleetrepo.New(inv), renders: rendering.New(inv)}
	var o previewOptions
	cmd := &cobra.Command{
		Use:     "preview BASE [HEAD]",
		GroupID: cli.GroupGit,
		Short:   "Show what merging a change would do to all clusters",
		Long: `Preview renders the fleet at two revisions and prints the changes on the
clusters from BASE to HEAD. HEAD is the current branch by default. Changes that
are the same on many clusters are printed once. Mistakes, and held or denied
changes, come first.

BASE is used as it is. To see only what a branch changes, name the commit where
it began (git merge-base main my-branch).

Preview sends no request to a cluster. It assumes that each cluster has what
BASE makes of it. 'keelson diff' shows changes by people, webhooks and
autoscalers. Charts see the kinds of --kube-version, of --api-versions, and of
the components that they depend on. --age-key-file, or the keys of sops,
decrypt what SOPS encrypted. Without a key, preview only says that a component
changes.

For components with pipelines or freezes, preview estimates when clusters get
the change, if it began now and nothing failed: the stages with their clusters,
and the earliest end.

  -o json      everything, a contract: groups with their clusters, and objects
               in the form of 'keelson diff -o json'
  -o markdown  a comment for a pull request, at most 64 KiB

Exit codes: 0 nothing changes, 1 something does, 2 HEAD has a mistake that BASE
has not, or can't be read.`,
		Example: `  keelson preview main my-branch
  keelson preview "$(git merge-base main HEAD)" -o markdown
  keelson preview HEAD --worktree
  keelson preview v2026.11 main -o json | jq -r '.groups[] | "\(.component) \(.clusters | length)"'`,
		Args:              cli.Args("BASE [HEAD]", 1, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := run.CheckFormat(cli.FormatMarkdown); err != nil {
				return err
			}
			if o.clusterTakes < 0 {
				return cli.Usagef("--cluster-takes %s: it is at least nothing", o.clusterTakes)
			}
			if len(args) > 1 {
				if o.workTree || run.Revision != "" {
					return cli.Usagef("HEAD is given: --worktree and --revision contradict it")
				}
				run.Revision = args[1]
			}
			p, err := run.preview(cmd.Context(), o, args[0])
			if err != nil {
				return err
			}
			return run.showPreview(p)
		},
	}
	cmd.Flags().BoolVar(&o.workTree, "worktree", false, "take for HEAD the files as they are, committed or not")
	cmd.Flags().DurationVar(&o.clusterTakes, "cluster-takes", clusterTakes, "how long a cluster is taken to need for a change, in the estimate")
	o.caps.AddFlags(cmd)
	run.renders.AddFlags(cmd)
	return cmd
}

func (run *previewRun) preview(ctx context.Context, o previewOptions, base string) (*preview.Preview, error) {
	before, after, err := run.loadBoth(ctx, base, o.workTree)
	if err != nil {
		return nil, err
	}
	p, err := newPreviewer(run.renders, o)
	if err != nil {
		return nil, err
	}
	progress := run.NewProgress()
	defer progress.Clear()
	return p.compare(ctx, before, after, func(done, all int) {
		if progress.OnTerminal() || done == all {
			progress.Print(fmt.Sprintf("compared %d of %s", done, cli.Plural(all, "cluster", "clusters")))
		}
	})
}

// previewer makes previews with a shared render cache.
type previewer struct {
	options preview.Options
	cache   *renderer.Cache
	caps    *renderer.Extensions
}

func newPreviewer(renders *rendering.Local, o previewOptions) (*previewer, error) {
	workers, err := renders.ForOutput()
	if err != nil {
		return nil, err
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return &previewer{
		options: preview.Options{
			MaskKey: key, Bytes: differenceBytes, Now: renders.Env.Now(), ClusterTakes: o.clusterTakes,
			Workers: cmp.Or(renders.Workers, runtime.GOMAXPROCS(0)),
		},
		cache: renderer.NewCache(workers, rendering.CacheBytes), caps: renderer.NewExtensions(o.caps.Capabilities()),
	}, nil
}

// compare previews the change between two fleets; looked reports the progress in clusters.
func (p *previewer) compare(ctx context.Context, before, after *registry.Fleet, looked func(done, all int)) (*preview.Preview, error) {
	options := p.options
	options.Base, options.Head, options.Looked = before, after, looked
	options.Render = func(c *registry.Cluster) preview.Render { return renderer.NewTargets(p.cache, c, p.caps).Render }
	return preview.Make(ctx, options)
}

// loadBoth reads the fleet at two revisions. They share what is the same in both.
func (run *previewRun) loadBoth(ctx context.Context, base string, workTree bool) (before, after *registry.Fleet, err error) {
	repo, after, err := run.fleets.LoadRepo(ctx, workTree)
	if err != nil {
		return nil, nil, err
	}
	if workTree { // such a repo reads the work tree alone, not BASE
		if repo, err = run.fleets.OpenRepo(ctx); err != nil {
			return nil, nil, err
		}
	}
	commit, err := repo.Git().Resolve(base)
	if err != nil {
		return nil, nil, fmt.Errorf("BASE: %w", err)
	}
	before, err = repo.LoadCommit(ctx, commit)
	return before, after, err
}

func (run *previewRun) showPreview(p *preview.Preview) error {
	var err error
	switch run.Output {
	case cli.FormatJSON, cli.FormatYAML:
		err = run.Encode(p)
	case cli.FormatMarkdown:
		err = run.Write([]byte(p.Markdown()))
	default:
		err = run.showPreviewText(p)
	}
	switch {
	case err != nil:
		return err
	case p.Broken():
		return errors.New("the change has mistakes: what they are about would stay as it is")
	case p.Changes():
		return cli.ErrFound
	}
	return nil
}

func (run *previewRun) showPreviewText(p *preview.Preview) error {
	const room = 60 // columns for the names of clusters
	paint := run.Painter(run.Env.Out)
	var b bytes.Buffer
	for _, one := range p.Problems {
		line := one.Error()
		if len(one.Clusters) > 0 {
			line += " (on " + cli.Few(one.Clusters) + ")"
		}
		if one.Before {
			line += " (as before)"
		}
		b.WriteString(paint.Paint(cli.Red, cli.Clean(line)) + "\n")
	}
	for i := range p.Policy {
		b.WriteString(paint.Paint(cli.Yellow, "policy: "+cli.OneLine(p.Policy[i].Text(room))) + "\n")
	}
	for _, l := range p.Left {
		b.WriteString(cli.OneLine(fmt.Sprintf("%s leaves git on %s, where its objects stay: %s", l.Component,
			cli.Plural(len(l.Clusters), "cluster", "clusters"), cli.Few(l.Clusters))) + "\n")
	}
	if n := len(p.Joined); n > 0 {
		b.WriteString(cli.OneLine(cli.Plural(n, "new cluster", "new clusters")+": "+cli.Few(p.Joined)) + "\n")
	}
	if n := len(p.Gone); n > 0 {
		b.WriteString(cli.OneLine(cli.Plural(n, "cluster leaves git", "clusters leave git")+", and nothing there is touched: "+cli.Few(p.Gone)) + "\n")
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	for i := range p.Groups {
		g := &p.Groups[i]
		b.WriteString(paint.Paint(cli.Bold, cli.OneLine(g.Title()+": "+g.Summary())) + "\n")
		b.WriteString(cli.OneLine("on "+g.On(room)) + "\n\n")
		if g.Unknown != "" {
			b.WriteString(paint.Paint(cli.Yellow, cli.OneLine("! "+g.Unknown)) + "\n\n")
		}
		if err := g.Plan.WriteText(&b, bool(paint)); err != nil {
			return err
		}
	}
	estimateText(&b, paint, p.Estimate)
	b.WriteString(paint.Paint(cli.OutcomeStyle(!p.Changes()), p.Summary()) + "\n")
	return run.Write(b.Bytes())
}

func estimateText(b *bytes.Buffer, paint cli.Painter, e *preview.Estimate) {
	if e == nil || len(e.Rollouts) == 0 {
		return
	}
	b.WriteString(cli.OneLine(e.Assumed()) + ":\n")
	for i := range e.Rollouts {
		r := &e.Rollouts[i]
		b.WriteString(paint.Paint(cli.Bold, cli.OneLine(r.Title())) + ": " + cli.OneLine(r.Ending()) + "\n")
		for j := range r.Stages {
			b.WriteString("  " + cli.OneLine(r.Stages[j].String()) + "\n")
		}
	}
	b.WriteString("\n")
}
