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
	caps         capabilityFlags
	workTree     bool
	clusterTakes time.Duration
}

func newPreview(a *app) *cobra.Command {
	var o previewOptions
	cmd := &cobra.Command{
		Use:     "preview BASE [HEAD]",
		GroupID: groupGit,
		Short:   "Show what merging a change would do to all clusters",
		Long: `Preview renders the fleet at two revisions, and shows what changes on the
clusters from BASE to HEAD, by default the branch that is checked out. What is the
same on many clusters is shown once. On top stands what is broken, held or denied.

BASE is taken as it is: to see what a branch changes, and not what came to main
since, name the commit that it began at (git merge-base main my-branch).

It asks no cluster. Each is taken for what BASE makes of it: what a cluster's
people changed, or its webhooks and autoscalers, 'keelson diff' tells. Charts see
the kinds of --kube-version, --api-versions, and of the components that they
depend on. What SOPS encrypted is decrypted with --age-key-file, or the keys of
sops; without a key, that a component changes is told, and not how.

Where components go through pipelines, or freezes are for them, it estimates when
the change would be where, if it began now and nothing failed: stages with their
clusters, and the earliest end.

  -o json      everything, a contract: groups with their clusters, and the objects
               as 'keelson diff -o json' writes them
  -o markdown  for a comment on a pull request, at most 64 KiB

Exit codes: 0 nothing changes, 1 something does, 2 HEAD has a mistake that BASE
has not, or can't be read.`,
		Example: `  keelson preview main my-branch
  keelson preview "$(git merge-base main HEAD)" -o markdown
  keelson preview HEAD --worktree
  keelson preview v2026.11 main -o json | jq -r '.groups[] | "\(.component) \(.clusters | length)"'`,
		Args:              args("BASE [HEAD]", 1, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := oneOf("-o", a.output, outputText, outputJSON, outputYAML, outputMarkdown); err != nil {
				return err
			}
			if o.clusterTakes < 0 {
				return usagef("--cluster-takes %s: it is at least nothing", o.clusterTakes)
			}
			if len(args) > 1 {
				if o.workTree || a.revision != "" {
					return usagef("HEAD is given: --worktree and --revision contradict it")
				}
				a.revision = args[1]
			}
			p, err := a.preview(cmd.Context(), o, args[0])
			if err != nil {
				return err
			}
			return a.showPreview(p)
		},
	}
	cmd.Flags().BoolVar(&o.workTree, "worktree", false, "take for HEAD the files as they are, committed or not")
	cmd.Flags().DurationVar(&o.clusterTakes, "cluster-takes", clusterTakes, "how long a cluster is taken to need for a change, in the estimate")
	o.caps.add(cmd)
	a.renderFlags(cmd)
	return cmd
}

func (a *app) preview(ctx context.Context, o previewOptions, base string) (*preview.Preview, error) {
	before, after, err := a.loadBoth(ctx, base, o.workTree)
	if err != nil {
		return nil, err
	}
	p, err := a.newPreviewer(o)
	if err != nil {
		return nil, err
	}
	progress := newProgress(a)
	defer progress.clear()
	return p.compare(ctx, before, after, func(done, all int) {
		if progress.columns > 0 || done == all {
			progress.print(fmt.Sprintf("compared %d of %s", done, plural(all, "cluster", "clusters")))
		}
	})
}

// previewer makes previews with a shared render cache.
type previewer struct {
	options preview.Options
	cache   *renderer.Cache
	caps    *renderer.Extensions
}

func (a *app) newPreviewer(o previewOptions) (*previewer, error) {
	workers, err := a.veiled()
	if err != nil {
		return nil, err
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return &previewer{
		options: preview.Options{
			MaskKey: key, Bytes: differenceBytes, Now: a.env.Now(), ClusterTakes: o.clusterTakes,
			Workers: cmp.Or(a.rendering.workers, runtime.GOMAXPROCS(0)),
		},
		cache: renderer.NewCache(workers, renderCacheBytes), caps: renderer.NewExtensions(o.caps.capabilities()),
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
func (a *app) loadBoth(ctx context.Context, base string, workTree bool) (before, after *registry.Fleet, err error) {
	repo, after, err := a.loadRepo(ctx, workTree)
	if err != nil {
		return nil, nil, err
	}
	if workTree { // such a repo reads the work tree alone, not BASE
		if repo, err = a.openRepo(ctx); err != nil {
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

func (a *app) showPreview(p *preview.Preview) error {
	var err error
	switch a.output {
	case outputJSON, outputYAML:
		err = a.encode(p)
	case outputMarkdown:
		err = a.write([]byte(p.Markdown()))
	default:
		err = a.showPreviewText(p)
	}
	switch {
	case err != nil:
		return err
	case p.Broken():
		return errors.New("the change has mistakes: what they are about would stay as it is")
	case p.Changes():
		return errFound
	}
	return nil
}

func (a *app) showPreviewText(p *preview.Preview) error {
	const room = 60 // columns for the names of clusters
	paint := a.colored(a.env.Out)
	var b bytes.Buffer
	for _, one := range p.Problems {
		line := one.Error()
		if len(one.Clusters) > 0 {
			line += " (on " + few(one.Clusters) + ")"
		}
		if one.Before {
			line += " (as before)"
		}
		b.WriteString(paint.paint(red, clean(line)) + "\n")
	}
	for i := range p.Policy {
		b.WriteString(paint.paint(yellow, "policy: "+oneLine(p.Policy[i].Text(room))) + "\n")
	}
	for _, l := range p.Left {
		b.WriteString(oneLine(fmt.Sprintf("%s leaves git on %s, where its objects stay: %s", l.Component,
			plural(len(l.Clusters), "cluster", "clusters"), few(l.Clusters))) + "\n")
	}
	if n := len(p.Joined); n > 0 {
		b.WriteString(oneLine(plural(n, "new cluster", "new clusters")+": "+few(p.Joined)) + "\n")
	}
	if n := len(p.Gone); n > 0 {
		b.WriteString(oneLine(plural(n, "cluster leaves git", "clusters leave git")+", and nothing there is touched: "+few(p.Gone)) + "\n")
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	for i := range p.Groups {
		g := &p.Groups[i]
		b.WriteString(paint.paint(bold, oneLine(g.Title()+": "+g.Summary())) + "\n")
		b.WriteString(oneLine("on "+g.On(room)) + "\n\n")
		if g.Unknown != "" {
			b.WriteString(paint.paint(yellow, oneLine("! "+g.Unknown)) + "\n\n")
		}
		if err := g.Plan.WriteText(&b, bool(paint)); err != nil {
			return err
		}
	}
	estimateText(&b, paint, p.Estimate)
	b.WriteString(paint.paint(verdict(!p.Changes()), p.Summary()) + "\n")
	return a.write(b.Bytes())
}

func estimateText(b *bytes.Buffer, paint painter, e *preview.Estimate) {
	if e == nil || len(e.Rollouts) == 0 {
		return
	}
	b.WriteString(oneLine(e.Assumed()) + ":\n")
	for i := range e.Rollouts {
		r := &e.Rollouts[i]
		b.WriteString(paint.paint(bold, oneLine(r.Title())) + ": " + oneLine(r.Ending()) + "\n")
		for j := range r.Stages {
			b.WriteString("  " + oneLine(r.Stages[j].String()) + "\n")
		}
	}
	b.WriteString("\n")
}
