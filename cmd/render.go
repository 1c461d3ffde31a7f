package cmd

import (
	"bytes"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

type renderOptions struct {
	caps                        capabilityFlags
	live, workTree, showSecrets bool
}

func newRender(a *app) *cobra.Command {
	var o renderOptions
	cmd := &cobra.Command{
		Use:     "render CLUSTER [COMPONENT]",
		GroupID: cli.GroupGit,
		Short:   "Print the objects that a cluster should have",
		Long: `Render prints the target objects of a component on a cluster, or of all its
components, as YAML, each below a comment that names its template.

It asks no cluster, so charts see the kinds of --kube-version, --api-versions,
and of the components that they depend on. With --live they see what the
cluster serves. The data of Secrets is masked, and so is what SOPS encrypted in
meta-config wherever a chart puts it, so that it can't be applied, unless
--show-secrets is given.

With -o json or yaml the output is one List.

Exit codes: 0 rendered, 2 it can't be.`,
		Example: `  keelson render prod-hz-01
  keelson render prod-hz-01 coredns --revision my-branch
  keelson render prod-hz-01 coredns --kube-version v1.34.0
  keelson render prod-hz-01 grafana --age-key-file ~/keys/prod.txt
  keelson render prod-hz-01 coredns --live | kubectl diff -f -`,
		Args:              cli.Args("CLUSTER [COMPONENT]", 1, 2),
		ValidArgsFunction: a.completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.CheckFormat(); err != nil {
				return err
			}
			if o.live && o.caps.isSet() {
				return cli.Usagef("--live asks the cluster: --kube-version and --api-versions contradict it")
			}
			if o.showSecrets {
				a.Env.Redactor.Lift()
			}
			rendered, err := a.render(cmd.Context(), o, args[0], args[1:])
			if err != nil {
				return err
			}
			return a.showTargets(rendered, o.showSecrets)
		},
	}
	cmd.Flags().BoolVar(&o.live, "live", false, "ask the cluster what it serves")
	o.caps.add(cmd)
	a.renderFlags(cmd)
	cmd.Flags().BoolVar(&o.workTree, "worktree", false, "read the files as they are, committed or not")
	cmd.Flags().BoolVar(&o.showSecrets, "show-secrets", false, "print the data of Secrets, and what SOPS encrypted")
	return cmd
}

// render renders components of a cluster. If one fails, it returns none.
func (a *app) render(ctx context.Context, o renderOptions, cluster string, components []string) ([]renderedDelivery, error) {
	f, err := a.loadFleet(ctx, o.workTree)
	if err != nil {
		return nil, err
	}
	c, err := findCluster(f, cluster)
	if err != nil {
		return nil, err
	}
	deliveries, err := findDeliveries(c, components)
	if err != nil {
		return nil, err
	}
	served := o.caps.capabilities()
	if o.live {
		live, err := a.connect(ctx, c, nil)
		if err != nil {
			return nil, err
		}
		if served, err = live.Capabilities(ctx); err != nil {
			return nil, err
		}
	}
	workers, err := a.veiled()
	if err != nil {
		return nil, err
	}
	t := renderer.NewTargets(workers, c, renderer.NewExtensions(served))
	var (
		rendered []renderedDelivery
		failed   []error
	)
	for _, d := range deliveries {
		if d.Absent {
			a.Warn("%s is absent on %s: nothing of it is wanted there", d.Component, cluster)
			continue
		}
		target, err := t.Render(ctx, d)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		rendered = append(rendered, renderedDelivery{d, target})
	}
	return rendered, errors.Join(failed...)
}

// renderedDelivery is a delivery with its rendered target.
type renderedDelivery struct {
	*registry.Delivery
	*renderer.Target
}

func (a *app) showTargets(rendered []renderedDelivery, showSecrets bool) error {
	warnings := map[string]bool{}
	var objects []*renderer.Object
	for _, t := range rendered {
		for _, w := range t.WarningsFor(t.Values) {
			warnings[w] = true
		}
		for _, list := range [][]*renderer.Object{t.Objects, t.Hooks} {
			for _, o := range list {
				shown := *o
				if !showSecrets {
					shown.Content, _ = a.Env.Redactor.Mask(cli.MaskSecret(o.Content)).(map[string]any)
				}
				objects = append(objects, &shown)
			}
		}
	}
	a.WarnAll(warnings)
	if a.Output != cli.FormatText {
		items := make([]any, len(objects))
		for i, o := range objects {
			items[i] = o.Content
		}
		return a.Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	}
	var b bytes.Buffer
	if err := renderer.WriteYAML(&b, &renderer.Target{Objects: objects}); err != nil {
		return err
	}
	return a.Write(b.Bytes())
}
