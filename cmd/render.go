package cmd

import (
	"bytes"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/cmd/internal/rendering"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

type renderOptions struct {
	caps                        rendering.CapabilityFlags
	live, workTree, showSecrets bool
}

// renderRun is one run of render.
type renderRun struct {
	*cli.Invocation
	fleets   *fleetrepo.Opener
	clusters connection.Connector
	renders  *rendering.Local
}

func newRender(inv *cli.Invocation) *cobra.Command {
	run := &renderRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv), renders: rendering.New(inv)}
	var o renderOptions
	cmd := &cobra.Command{
		Use:     "render CLUSTER [COMPONENT]",
		GroupID: cli.GroupGit,
		Short:   "Print the objects that a cluster should have",
		Long: `Render prints the target objects of a component on a cluster, or of all its
components. The output is YAML; a comment above each object names its template.

Render sends no request to the cluster. Charts see the kinds of --kube-version,
of --api-versions, and of the components that they depend on. With --live they
see the kinds that the cluster serves.

The data of Secrets is masked, and so are values that SOPS encrypted in
meta-config, wherever a chart puts them. Masked output can't be applied; use
--show-secrets to print the values.

With -o json or yaml the output is one List.

Exit codes: 0 rendered, 2 a component can't be rendered.`,
		Example: `  keelson render prod-us-01
  keelson render prod-us-01 coredns --revision my-branch
  keelson render prod-us-01 coredns --kube-version v1.34.0
  keelson render prod-us-01 grafana --age-key-file ~/keys/prod.txt
  keelson render prod-us-01 coredns --live | kubectl diff -f -`,
		Args:              cli.Args("CLUSTER [COMPONENT]", 1, 2),
		ValidArgsFunction: run.fleets.CompleteNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := run.CheckFormat(); err != nil {
				return err
			}
			if o.live && o.caps.IsSet() {
				return cli.Usagef("--live asks the cluster: --kube-version and --api-versions contradict it")
			}
			if o.showSecrets {
				run.Env.Redactor.Lift()
			}
			rendered, err := run.render(cmd.Context(), o, args[0], args[1:])
			if err != nil {
				return err
			}
			return run.showTargets(rendered, o.showSecrets)
		},
	}
	cmd.Flags().BoolVar(&o.live, "live", false, "ask the cluster what it serves")
	o.caps.AddFlags(cmd)
	run.renders.AddFlags(cmd)
	cmd.Flags().BoolVar(&o.workTree, "worktree", false, "read the files as they are, committed or not")
	cmd.Flags().BoolVar(&o.showSecrets, "show-secrets", false, "print the data of Secrets, and what SOPS encrypted")
	return cmd
}

// render renders components of a cluster. If one fails, it returns none.
func (run *renderRun) render(ctx context.Context, o renderOptions, cluster string, components []string) ([]renderedDelivery, error) {
	f, err := run.fleets.LoadFleet(ctx, o.workTree)
	if err != nil {
		return nil, err
	}
	find := fleetrepo.FindClusterOffline
	if o.live {
		find = fleetrepo.FindCluster
	}
	c, err := find(f, cluster)
	if err != nil {
		return nil, err
	}
	deliveries, err := fleetrepo.FindDeliveries(c, components)
	if err != nil {
		return nil, err
	}
	served := o.caps.Capabilities()
	if o.live {
		live, err := run.clusters.Connect(ctx, c, nil)
		if err != nil {
			return nil, err
		}
		if served, err = live.Capabilities(ctx); err != nil {
			return nil, err
		}
	}
	workers, err := run.renders.ForOutput()
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
			run.Warn("%s is absent on %s: nothing of it is wanted there", d.Component, cluster)
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

func (run *renderRun) showTargets(rendered []renderedDelivery, showSecrets bool) error {
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
					shown.Content, _ = run.Env.Redactor.Mask(cli.MaskSecret(o.Content)).(map[string]any)
				}
				objects = append(objects, &shown)
			}
		}
	}
	run.WarnAll(warnings)
	if run.Output != cli.FormatText {
		items := make([]any, len(objects))
		for i, o := range objects {
			items[i] = o.Content
		}
		return run.Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	}
	var b bytes.Buffer
	if err := renderer.WriteYAML(&b, &renderer.Target{Objects: objects}); err != nil {
		return err
	}
	return run.Write(b.Bytes())
}
