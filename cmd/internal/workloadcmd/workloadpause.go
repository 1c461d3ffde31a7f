package workloadcmd

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
)

func newWorkloadPause(inv *cli.Invocation, o *workloadOptions) *cobra.Command {
	run := &workloadRun{Invocation: inv, clusters: connection.New(inv)}
	var force bool
	cmd := &cobra.Command{
		Use:   "pause NAME",
		Short: "Leave every pod at its revision, until resume",
		Long: `Pause sets spec.updateStrategy.rollingUpdate.paused, or spec.paused of a
Deployment: pods stay at their revision. Scaling goes on, and so does the
replacement of what fails. A Deployment with the annotation
workloads.keelson.io/update-strategy is paused in that annotation. StatefulSets and
DaemonSets of Kubernetes have no such field.

What Keelson delivers it refuses to pause: say it in git, or hold the component
still there ('keelson pause CLUSTER COMPONENT').

Exit codes: 0 it is paused, 2 it can't be.`,
		Example: `  keelson workload pause web -n shop
  keelson workload pause daemon/agent -n kube-system --force`,
		Args:              cli.Args("NAME", 1, 1),
		ValidArgsFunction: run.completeWorkloads(o),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.pauseWorkload(cmd.Context(), args[0], o, pausing{paused: true, force: force})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also what Keelson delivers")
	return cmd
}

func newWorkloadResume(inv *cli.Invocation, o *workloadOptions) *cobra.Command {
	run := &workloadRun{Invocation: inv, clusters: connection.New(inv)}
	var force bool
	cmd := &cobra.Command{
		Use:   "resume NAME",
		Short: "Let an update go on that pause stopped",
		Long: `Resume takes spec.updateStrategy.rollingUpdate.paused away, or spec.paused of a
Deployment, or paused in its annotation workloads.keelson.io/update-strategy: pods come
to the newest revision, up to the partition.

What Keelson delivers it refuses to resume, as pause does.

Exit codes: 0 it is not paused, 2 it can't be so.`,
		Example: `  keelson workload resume web -n shop
  keelson workload resume cloneset/web -n shop -o json`,
		Args:              cli.Args("NAME", 1, 1),
		ValidArgsFunction: run.completeWorkloads(o),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.pauseWorkload(cmd.Context(), args[0], o, pausing{force: force})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also what Keelson delivers")
	return cmd
}

type pausing struct{ paused, force bool }

// pausedWorkload is the output of pause and resume.
type pausedWorkload struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Paused    bool   `json:"paused"`
	Changed   bool   `json:"changed"`
}

func (run *workloadRun) pauseWorkload(ctx context.Context, name string, o *workloadOptions, p pausing) error {
	w, err := run.openWorkloads(o)
	if err != nil {
		return err
	}
	return w.change(ctx, name, o.kind, func(found *workloadObject) error {
		if found.pauseField() == "" {
			return cli.Usagef("%s has no field that pauses its update: with spec.updateStrategy.type OnDelete its pods stay until they are deleted%s", found.title(), found.partitionHint())
		}
		if found.paused == p.paused {
			return w.showPaused(found, p, false)
		}
		verb := map[bool]string{true: "paused", false: "resumed"}[p.paused]
		if err := found.refuse(verb, "set "+found.pauseField()+" there", p.force); err != nil {
			return err
		}
		if err := w.setPaused(ctx, found, p.paused); err != nil {
			return err
		}
		return w.showPaused(found, p, true)
	})
}

// setPaused sets or removes paused. It fails with a conflict if the workload has changed since it
// was read.
func (w *workloads) setPaused(ctx context.Context, found *workloadObject, paused bool) error {
	var value any // null removes the field
	if paused {
		value = true
	}
	metadata, spec := map[string]any{"resourceVersion": found.GetResourceVersion()}, map[string]any{"paused": value}
	switch {
	case found.divided:
		annotations, err := found.pauseUpdates(paused)
		if err != nil {
			return err
		}
		metadata["annotations"], spec = annotations, map[string]any{}
	case !found.kind.native():
		spec = map[string]any{"updateStrategy": map[string]any{"rollingUpdate": spec}}
	}
	data, err := json.Marshal(map[string]any{"metadata": metadata, "spec": spec})
	if err != nil {
		return fmt.Errorf("%s: %w", found.title(), err)
	}
	err = w.client.Patch(ctx, found.Object, client.RawPatch(types.MergePatchType, data), client.FieldOwner(v1alpha1.WorkloadManager))
	if err != nil {
		return fmt.Errorf("change %s: %w", found.title(), err)
	}
	return nil
}

func (w *workloads) showPaused(found *workloadObject, p pausing, changed bool) error {
	state := map[bool]string{true: "paused", false: "not paused"}[p.paused]
	text := found.title() + " is " + state + "\n"
	if !changed {
		text = found.title() + " is " + state + " already\n"
	}
	if changed {
		w.warnDelivered(found)
	}
	return w.Show(pausedWorkload{Kind: found.kind.Kind, Namespace: found.GetNamespace(), Name: found.GetName(), Paused: p.paused, Changed: changed}, text)
}
