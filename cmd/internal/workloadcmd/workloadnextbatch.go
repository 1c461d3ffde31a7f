package workloadcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

func newWorkloadNextBatch(inv *cli.Invocation, o *workloadOptions) *cobra.Command {
	run := &workloadRun{Invocation: inv, clusters: connection.New(inv)}
	var all bool
	cmd := &cobra.Command{
		Use:   "next-batch NAME",
		Short: "Let the next batch of an update begin",
		Long: `Next-batch releases the next batch of a workload whose update is divided by
spec.updateStrategy.rollingUpdate.batches, or of a Deployment by batches in the
annotation workloads.keelson.io/update-strategy. The update waits for that: 'keelson
workload status' says so. The release is an annotation that names the update and the
batch. It is for this update alone: an update that comes later, to the same
revision too, waits again.

With --all it releases all batches of the revision, also before the current one
is complete. Each still waits for the one before, for its interval, and for
maxFailed.

Exit codes: 0 it is released, 2 there is nothing to release, or it can't be.`,
		Example: `  keelson workload next-batch web -n shop
  keelson workload next-batch asts/db -n shop --all`,
		Args:              cli.Args("NAME", 1, 1),
		ValidArgsFunction: run.completeWorkloads(o),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.nextBatch(cmd.Context(), args[0], o, all)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all batches of the revision, each after the one before")
	return cmd
}

// releasedBatch is the output of next-batch.
type releasedBatch struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Revision  string `json:"revision"`
	// Batch is the one that the workload is in, and Released the last one that may begin.
	Batch    string `json:"batch"`
	Released int32  `json:"released"`
	All      bool   `json:"all"`
}

func (run *workloadRun) nextBatch(ctx context.Context, name string, o *workloadOptions, all bool) error {
	w, err := run.openWorkloads(o)
	if err != nil {
		return err
	}
	return w.change(ctx, name, o.kind, func(found *workloadObject) error {
		if err := found.releasable(all); err != nil {
			return err
		}
		out := releasedBatch{
			Kind: found.kind.Kind, Namespace: found.GetNamespace(), Name: found.GetName(), Revision: found.batch.Revision,
			Batch: found.batch.Batch, Released: found.batch.Number + 1, All: all,
		}
		text := fmt.Sprintf("%s: batch %d of revision %s is released\n", found.title(), out.Released, out.Revision)
		if all {
			out.Released = math.MaxInt32
			text = fmt.Sprintf("%s: all batches of revision %s are released\n", found.title(), out.Revision)
		}
		if err := w.release(ctx, found, out.Released); err != nil {
			return err
		}
		return w.Show(out, text)
	})
}

// releasable returns an error if there is no batch to release.
func (s *workloadObject) releasable(all bool) error {
	is := s.batch
	switch {
	case s.batches == nil:
		return cli.Usagef("the update of %s is not divided: it has no %s", s.title(), s.batchesField())
	case is == nil:
		return cli.Usagef("%s has no update in batches: all its pods have the same revision, or its controller has not seen the batches yet; 'keelson workload status %s' shows both", s.title(), s.argument())
	case is.Reason == v1beta1.BatchDone:
		return cli.Usagef("the update of %s is done: batch %s", s.title(), is.Batch)
	case s.batches.Auto:
		return cli.Usagef("the batches of %s begin by themselves (auto): batch %s: %s", s.title(), is.Batch, is.Message)
	case all:
		return nil
	case is.Reason != v1beta1.BatchApproval:
		return cli.Usagef("%s does not wait for a release: batch %s: %s (--all releases what comes later)", s.title(), is.Batch, is.Message)
	}
	return nil
}

// release annotates a workload. It fails with a conflict if the workload has changed since it was read.
func (w *workloads) release(ctx context.Context, found *workloadObject, upTo int32) error {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": found.GetResourceVersion(),
		"annotations":     map[string]any{v1beta1.AnnotationNextBatch: batch.Release(found.batch, upTo)},
	}})
	if err != nil {
		return fmt.Errorf("%s: %w", found.title(), err)
	}
	if err := w.client.Patch(ctx, found.Object, client.RawPatch(types.MergePatchType, data), client.FieldOwner(v1alpha1.WorkloadManager)); err != nil {
		return fmt.Errorf("annotate %s: %w", found.title(), err)
	}
	return nil
}
