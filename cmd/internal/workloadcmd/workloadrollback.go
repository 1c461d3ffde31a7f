package workloadcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// annotationCause is the annotation that kubectl rollout history shows.
const annotationCause = "kubernetes.io/change-cause"

type workloadRollbackOptions struct {
	*workloadOptions
	to          string
	list, force bool
}

func newWorkloadRollback(inv *cli.Invocation, where *workloadOptions) *cobra.Command {
	run := &workloadRun{Invocation: inv, clusters: connection.New(inv)}
	o := workloadRollbackOptions{workloadOptions: where}
	cmd := &cobra.Command{
		Use:   "rollback NAME",
		Short: "Put the template of an earlier revision back",
		Long: `Rollback copies the pod template of an earlier revision into spec.template. The
default is the newest revision that differs from the current template. --to
names a revision by its number, name or hash, as --list shows them. Claim
templates come back with it where revisions record them. The update
strategy decides how pods follow: none while it is paused, and not beyond the
partition.

It refuses a workload that Keelson delivers. Revert the commit in git, or use
'keelson rollback', which takes a whole component back.

Exit codes: 0 done, or listed, 2 it can't be done.`,
		Example: `  keelson workload rollback web -n shop --list
  keelson workload rollback web -n shop
  keelson workload rollback daemon/agent -n kube-system --to 3`,
		Args:              cli.Args("NAME", 1, 1),
		ValidArgsFunction: run.completeWorkloads(where),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.list && (o.to != "" || o.force) {
				return cli.Usagef("--list only shows the revisions: leave --to and --force out")
			}
			return run.rollbackWorkload(cmd.Context(), args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.to, "to", "", "the `REVISION`: its number, name or hash")
	f.BoolVar(&o.list, "list", false, "show the revisions, and change nothing")
	f.BoolVar(&o.force, "force", false, "also what Keelson delivers")
	_ = cmd.RegisterFlagCompletionFunc("to", run.completeRevisions(where)) // it only fails for a flag that does not exist
	return cmd
}

// rolledBack is the output of rollback.
type rolledBack struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Revision  string   `json:"revision"`
	Number    int64    `json:"number"`
	Images    []string `json:"images"`
	Before    []string `json:"imagesBefore"`
	// Claims: the claim templates came back, too.
	Claims bool `json:"claims,omitempty"`
}

func (run *workloadRun) rollbackWorkload(ctx context.Context, name string, o workloadRollbackOptions) error {
	w, err := run.openWorkloads(o.workloadOptions)
	if err != nil {
		return err
	}
	found, err := w.find(ctx, name, o.kind)
	if err != nil {
		return err
	}
	if o.list {
		return w.listRevisions(ctx, found)
	}
	if err := found.refuse("rolled back", "revert the commit there, see 'keelson rollback' for a whole component", o.force); err != nil {
		return err
	}
	revisions, err := w.revisions(ctx, found)
	if err != nil {
		return err
	}
	to, err := found.earlier(revisions, o.to)
	if err != nil {
		return err
	}
	now, err := found.specRevision()
	if err != nil {
		return err
	}
	images := imagesOf(found.template) // the patch decodes its answer into found
	if err := w.putBack(ctx, found, to); err != nil {
		return err
	}
	w.warnDelivered(found)
	r := rolledBack{
		Kind: found.kind.Kind, Namespace: found.GetNamespace(), Name: found.GetName(), Revision: to.Name, Number: to.Revision,
		Images: asRevision(to).Images, Before: images, Claims: revision.ClaimsDiffer(to, now),
	}
	return run.Show(r, found.rolledBackText(r))
}

func (s *workloadObject) rolledBackText(r rolledBack) string {
	text := fmt.Sprintf("%s has the template of revision %d (%s) again: %s → %s\n", s.title(), r.Number, cli.OneLine(r.Revision),
		cli.OneLine(strings.Join(r.Before, ",")), cli.OneLine(strings.Join(r.Images, ",")))
	if r.Claims {
		text += "and its claim templates\n"
	}
	switch {
	case s.policy == string(v1beta1.CloneSetOnDelete): // every kind calls it so
		text += "its pods stay as they are until you delete them: its update strategy is OnDelete\n"
	case s.paused:
		text += "its pods stay as they are while it is paused: 'keelson workload resume " + s.argument() + "'\n"
	}
	return text + "see 'keelson workload status " + s.argument() + " --watch'\n"
}

func (w *workloads) listRevisions(ctx context.Context, found *workloadObject) error {
	r, err := w.report(ctx, found)
	if err != nil {
		return err
	}
	return w.Show(r.Revisions, w.revisionTable(r.Revisions).TextOr(found.title()+" has no revisions\n"))
}

// earlier returns the revision to go back to; history is sorted from old to new.
func (s *workloadObject) earlier(history []*appsv1.ControllerRevision, to string) (*appsv1.ControllerRevision, error) {
	now, err := s.specRevision()
	if err != nil {
		return nil, err
	}
	see := "see 'keelson workload rollback " + s.argument() + " --list'"
	for _, r := range slices.Backward(history) {
		same := revision.Same(r, now) && !revision.ClaimsDiffer(r, now)
		switch {
		case to == "" && !same:
			return r, nil
		case to != "" && names(r, to) && same:
			return nil, fmt.Errorf("%s has the template of revision %d (%s) already: %s", s.title(), r.Revision, r.Name, see)
		case to != "" && names(r, to):
			return r, nil
		}
	}
	if to == "" {
		return nil, fmt.Errorf("%s has no other revision to go back to: none is kept that differs from its template (spec.revisionHistoryLimit says how many are)", s.title())
	}
	return nil, fmt.Errorf("%s has no revision %q: %s", s.title(), to, see)
}

// specRevision returns the revision that the templates of a workload would have.
func (s *workloadObject) specRevision() (*appsv1.ControllerRevision, error) {
	r, err := revision.New(revision.Owner{Object: s, Kind: s.kind.GroupVersionKind, Claims: s.claims}, s.template, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.title(), err)
	}
	return r, nil
}

// names reports whether a text names a revision: its number, its name or its hash.
func names(r *appsv1.ControllerRevision, text string) bool {
	return text == strconv.FormatInt(r.Revision, 10) || text == r.Name || text == revision.Hash(r.Name)
}

// putBack replaces the template if the spec has not changed since it was read. It tries again after
// a change of the status alone.
func (w *workloads) putBack(ctx context.Context, found *workloadObject, to *appsv1.ControllerRevision) error {
	template, err := rawTemplate(to)
	if err != nil {
		return err
	}
	now, err := found.specRevision()
	if err != nil {
		return err
	}
	change := []map[string]any{{"op": "replace", "path": "/spec/template", "value": template}}
	if claims, known := revision.RecordedClaims(to); revision.ClaimsDiffer(to, now) {
		if !known {
			return fmt.Errorf("%s: revision %d has other claim templates, and records only their hash: change spec.volumeClaimTemplates yourself", found.title(), to.Revision)
		}
		change = append(change, map[string]any{"op": "add", "path": "/spec/volumeClaimTemplates", "value": claims})
	}
	generation := found.GetGeneration()
	for range writeTries {
		var data []byte
		version := map[string]any{"op": "replace", "path": "/metadata/resourceVersion", "value": found.GetResourceVersion()} // makes a concurrent change a conflict
		data, err = json.Marshal(append([]map[string]any{version}, change...))
		if err != nil {
			return fmt.Errorf("%s: %w", found.title(), err)
		}
		err = w.client.Patch(ctx, found.Object, client.RawPatch(types.JSONPatchType, data), client.FieldOwner(v1alpha1.WorkloadManager))
		if err == nil {
			return nil
		}
		err = fmt.Errorf("change %s: %w", found.title(), err)
		if !apierrors.IsConflict(err) {
			return err
		}
		again, ferr := w.find(ctx, found.kind.short[0]+"/"+found.GetName(), "")
		switch {
		case ferr != nil:
			return ferr
		case again.GetUID() != found.GetUID() || again.GetGeneration() != generation:
			return fmt.Errorf("%s: %w", found.title(), errMeanwhile)
		}
		*found = *again
	}
	return err
}

// rawTemplate returns a revision's template, with the fields that this program does not know.
func rawTemplate(r *appsv1.ControllerRevision) (map[string]any, error) {
	var held struct {
		Spec struct {
			Template map[string]any `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &held); err != nil {
		return nil, fmt.Errorf("ControllerRevision %s/%s can't be read: %w", r.Namespace, r.Name, err)
	}
	if len(held.Spec.Template) == 0 {
		return nil, fmt.Errorf("ControllerRevision %s/%s holds no template: take another revision", r.Namespace, r.Name)
	}
	delete(held.Spec.Template, "$patch") // a merge directive, not part of the template
	return held.Spec.Template, nil
}

// completeRevisions completes the revision numbers of the workload on the command line.
func (run *workloadRun) completeRevisions(o *workloadOptions) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		w, ctx, cancel := run.quietWorkloads(cmd, o)
		if w == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer cancel()
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found, err := w.find(ctx, args[0], o.kind)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		history, err := w.revisions(ctx, found)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []cobra.Completion
		for _, r := range slices.Backward(history) {
			out = append(out, cobra.CompletionWithDesc(strconv.FormatInt(r.Revision, 10), strings.Join(asRevision(r).Images, ",")))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
