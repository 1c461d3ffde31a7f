package workloadcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/controllers/workload/inplace"
	"github.com/keelson-io/keelson/controllers/workload/podorder"
	"github.com/keelson-io/keelson/controllers/workload/reload"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/renderer/configversion"
)

type workloadStatusOptions struct {
	*workloadOptions
	watch   bool
	timeout time.Duration
}

func newWorkloadStatus(inv *cli.Invocation, where *workloadOptions) *cobra.Command {
	run := &workloadRun{Invocation: inv, clusters: connection.New(inv)}
	o := workloadStatusOptions{workloadOptions: where}
	cmd := &cobra.Command{
		Use:   "status NAME",
		Short: "Show how far an update is, and what it waits for",
		Long: `Status prints the health of a workload, by the rules that deliveries use, its
numbers and conditions, its revisions, and the pods of each. A workload that
reached its partition is done. A workload that was paused before that is not, and
neither is one whose update in batches waits.

With --watch it prints a line for each change until the workload is done, or
failed.

Exit codes: 0 done, 1 not done, or failed, 2 the workload can't be read.`,
		Example: `  keelson workload status web -n shop
  keelson workload status daemon/agent -n kube-system --watch --timeout 10m
  keelson workload status web -n shop -o json`,
		Args:              cli.Args("NAME", 1, 1),
		ValidArgsFunction: run.completeWorkloads(where),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.watch && run.Output != cli.FormatText:
				return cli.Usagef("--watch prints text, and not %s", run.Output)
			case o.timeout != 0 && !o.watch:
				return cli.Usagef("--timeout is for --watch")
			case o.timeout < 0:
				return cli.Usagef("--timeout takes a time to wait, and not %s", o.timeout)
			}
			return run.workloadStatus(cmd.Context(), args[0], o)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.watch, "watch", "w", false, "go on until it is done, or has failed")
	f.DurationVar(&o.timeout, "timeout", 0, "how long to watch, at most (default: without end)")
	return cmd
}

// workloadPods counts pods; for a DaemonSet it counts nodes.
type workloadPods struct {
	Wanted    int32 `json:"wanted"`
	Total     int32 `json:"total"`
	Ready     int32 `json:"ready"`
	Available int32 `json:"available"`
	Updated   int32 `json:"updated"`
}

type workloadCondition struct {
	Type    string       `json:"type"`
	Status  string       `json:"status"`
	Reason  string       `json:"reason,omitempty"`
	Message string       `json:"message,omitempty"`
	Since   *metav1.Time `json:"since,omitempty"`
}

// workloadReport is the output of status.
type workloadReport struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Component delivers the workload.
	Component string `json:"component,omitempty"`
	// Health is the state of the workload. Message says what it waits for.
	Health  v1alpha1.Health `json:"health"`
	Message string          `json:"message,omitempty"`
	// Revision is the newest one. Before is the last one that all pods had.
	Revision  string `json:"revision,omitempty"`
	Before    string `json:"before,omitempty"`
	Policy    string `json:"policy"`
	Partition string `json:"partition,omitempty"`
	Paused    bool   `json:"paused"`
	// Batch is how far an update in batches is.
	Batch      *v1beta1.BatchStatus `json:"batch,omitempty"`
	Pods       workloadPods         `json:"pods"`
	Conditions []workloadCondition  `json:"conditions"`
	Revisions  []workloadRevision   `json:"revisions"`
}

// workloadRevision is a revision with its pods. A revision that was deleted from the history has no
// number.
type workloadRevision struct {
	Name   string   `json:"name"`
	Number int64    `json:"number,omitempty"`
	Images []string `json:"images,omitempty"`
	// Configuration are the ConfigMaps and Secrets that its pods read, as KIND/NAME.
	Configuration []string      `json:"configuration,omitempty"`
	Cause         string        `json:"cause,omitempty"`
	Pods          []workloadPod `json:"pods"`
}

type workloadPod struct {
	Name  string `json:"name"`
	Node  string `json:"node,omitempty"`
	State string `json:"state"`
}

func (run *workloadRun) workloadStatus(ctx context.Context, name string, o workloadStatusOptions) error {
	w, err := run.openWorkloads(o.workloadOptions)
	if err != nil {
		return err
	}
	found, err := w.find(ctx, name, o.kind)
	if err != nil {
		return err
	}
	if o.watch {
		return w.follow(ctx, found, o.timeout)
	}
	report, err := w.report(ctx, found)
	if err != nil {
		return err
	}
	if err := run.Show(report, w.workloadText(report)); err != nil {
		return err
	}
	if report.Health != v1alpha1.HealthHealthy {
		return cli.ErrFound
	}
	return nil
}

// report reads the revisions and pods of a workload.
func (w *workloads) report(ctx context.Context, found *workloadObject) (*workloadReport, error) {
	h, err := found.health()
	if err != nil {
		return nil, err
	}
	component, _ := found.delivered()
	r := &workloadReport{
		Kind: found.kind.Kind, Namespace: found.GetNamespace(), Name: found.GetName(), Component: component, Health: h.Health, Message: h.Message,
		Revision: found.updated, Before: found.before, Policy: found.policy, Paused: found.paused, Pods: found.pods, Batch: found.batch,
		Conditions: append([]workloadCondition{}, found.conditions...), Revisions: []workloadRevision{},
	}
	if found.partition != nil {
		r.Partition = found.partition.String()
	}
	revisions, err := w.revisions(ctx, found)
	if err != nil {
		return nil, err
	}
	pods, err := w.pods(ctx, found, revisions)
	if err != nil {
		return nil, err
	}
	for _, one := range slices.Backward(revisions) { // newest first
		r.Revisions = append(r.Revisions, asRevision(one))
	}
	if r.Revision == "" && len(revisions) > 0 { // the status of the kind does not name it
		r.Revision = revisions[len(revisions)-1].Name
	}
	label := found.revisionLabel()
	for i := range pods {
		r.add(&pods[i], label, w.podState(&pods[i], found.minReadySeconds))
	}
	return r, nil
}

// add puts a pod under its revision, which a label names.
func (r *workloadReport) add(p *corev1.Pod, label, state string) {
	pod, hash := workloadPod{Name: p.Name, Node: p.Spec.NodeName, State: state}, revision.Hash(p.Labels[label])
	i := slices.IndexFunc(r.Revisions, func(one workloadRevision) bool { return hash != "" && hash == revision.Hash(one.Name) })
	if i < 0 {
		r.Revisions = append(r.Revisions, workloadRevision{Name: p.Labels[label], Pods: []workloadPod{}})
		i = len(r.Revisions) - 1
	}
	r.Revisions[i].Pods = append(r.Revisions[i].Pods, pod)
}

// asRevision returns a revision for the output, without images if its template can't be read.
func asRevision(one *appsv1.ControllerRevision) workloadRevision {
	r := workloadRevision{Name: one.Name, Number: one.Revision, Cause: one.Annotations[annotationCause], Pods: []workloadPod{}}
	if t, err := revision.Template(one); err == nil {
		r.Images, r.Configuration = imagesOf(t), configurationOf(t)
	}
	return r
}

func configurationOf(t *corev1.PodTemplateSpec) []string {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(t)
	if err != nil {
		return nil
	}
	var out []string
	for _, r := range configversion.References(object) {
		out = append(out, r.Kind+"/"+r.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func imagesOf(t *corev1.PodTemplateSpec) (images []string) {
	for i := range t.Spec.Containers {
		images = append(images, t.Spec.Containers[i].Image)
	}
	return images
}

// revisions returns the history of a workload, oldest first.
func (w *workloads) revisions(ctx context.Context, of *workloadObject) ([]*appsv1.ControllerRevision, error) {
	if of.kind.Kind == kindDeployment {
		return w.replicaSets(ctx, of)
	}
	var list appsv1.ControllerRevisionList
	if err := w.client.List(ctx, &list, client.InNamespace(of.GetNamespace())); err != nil {
		return nil, fmt.Errorf("the revisions of %s: %w", of.title(), err)
	}
	var out []*appsv1.ControllerRevision
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], of) {
			out = append(out, &list.Items[i])
		}
	}
	revision.Sort(out)
	return out, nil
}

// pods returns the pods of a workload with these revisions, sorted by name.
func (w *workloads) pods(ctx context.Context, of *workloadObject, revisions []*appsv1.ControllerRevision) ([]corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(of.selector)
	if err != nil {
		return nil, fmt.Errorf("the selector of %s: %w", of.title(), err)
	}
	var list corev1.PodList
	if err := w.client.List(ctx, &list, client.InNamespace(of.GetNamespace()), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, fmt.Errorf("the pods of %s: %w", of.title(), err)
	}
	owners := of.podOwners(revisions)
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		owner := metav1.GetControllerOfNoCopy(&p)
		return owner == nil || !owners[owner.UID]
	})
	slices.SortFunc(pods, func(x, y corev1.Pod) int { return cmp.Compare(x.Name, y.Name) })
	return pods, nil
}

// podState describes the state of a pod in a few words.
func (w *workloads) podState(p *corev1.Pod, minReadySeconds int32) string {
	_, ready := podorder.ReadySince(p)
	switch {
	case p.DeletionTimestamp != nil:
		return "being deleted"
	case !inplace.Open(p) && p.Annotations[v1beta1.AnnotationInPlaceState] != "":
		return "being updated in place"
	case reload.Describe(p) != "":
		return reload.Describe(p)
	case ready && podorder.Available(p, minReadySeconds, w.Env.Now()) && w.Env.Now().Sub(reload.FinishedAt(p)) >= time.Duration(minReadySeconds)*time.Second:
		return "available"
	case ready:
		return "ready, not yet for long enough"
	}
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		if c.State.Waiting != nil && c.State.Waiting.Reason != "" {
			return c.Name + ": " + c.State.Waiting.Reason
		}
	}
	return "not ready (" + cmp.Or(string(p.Status.Phase), "new") + ")"
}

func (w *workloads) workloadText(r *workloadReport) string {
	var b strings.Builder
	paint := w.Painter(w.Env.Out)
	fmt.Fprintf(&b, "%s %s/%s: %s\n", r.Kind, r.Namespace, r.Name, healthText(paint, r.Health, r.Message))
	fmt.Fprintf(&b, "pods: %d wanted, %d there, %d ready, %d available, %d updated\n", r.Pods.Wanted, r.Pods.Total, r.Pods.Ready, r.Pods.Available, r.Pods.Updated)
	fmt.Fprintf(&b, "update: %s\n", cli.OneLine(strings.Join(r.strategy(), ", ")))
	if s := r.Batch; s != nil {
		fmt.Fprintf(&b, "batch: %s since %s: %s\n", cli.OneLine(s.Batch), cli.Timestamp(&s.Since), cli.OneLine(s.Message))
	}
	if r.Component != "" {
		fmt.Fprintf(&b, "delivered by Keelson: component %s\n", cli.OneLine(r.Component))
	}
	if len(r.Conditions) > 0 {
		t := w.NewTable("CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE")
		for _, c := range r.Conditions {
			t.Rows = append(t.Rows, cli.Row{Cells: []cli.Cell{{Text: cli.OneLine(c.Type)}, {Text: cli.OneLine(c.Status)}, {Text: cli.Timestamp(c.Since)}, {Text: cli.OneLine(c.Reason)}, {Text: cli.OneLine(c.Message)}}})
		}
		b.WriteString("\n" + t.String())
	}
	b.WriteString("\n" + w.revisionTable(r.Revisions).TextOr("no revisions\n"))
	t := w.NewTable("POD", "REVISION", "NODE", "STATE")
	for _, one := range r.Revisions {
		for _, p := range one.Pods {
			t.Rows = append(t.Rows, cli.Row{Cells: []cli.Cell{{Text: cli.OneLine(p.Name)}, {Text: cli.OneLine(revision.Hash(one.Name))}, {Text: cli.OneLine(p.Node)}, {Text: cli.OneLine(p.State)}}})
		}
	}
	b.WriteString("\n" + t.TextOr("no pods\n"))
	return b.String()
}

// strategy describes in words how pods get a new revision.
func (r *workloadReport) strategy() []string {
	words := []string{r.Policy}
	if r.Partition != "" {
		words = append(words, "partition "+r.Partition)
	}
	if r.Paused {
		words = append(words, "paused")
	}
	if r.Revision != "" {
		words = append(words, "to revision "+revision.Hash(r.Revision))
	}
	if r.Before != "" && revision.Hash(r.Before) != revision.Hash(r.Revision) {
		words = append(words, "from "+revision.Hash(r.Before))
	}
	return words
}

// revisionTable shows the configuration by which revisions differ, if they do.
func (w *workloads) revisionTable(revisions []workloadRevision) *cli.Table {
	own := ownConfiguration(revisions)
	header := []string{"REVISION", "NAME", "PODS", "IMAGES", "CAUSE"}
	if len(own) > 0 {
		header = slices.Insert(header, 4, "CONFIGURATION")
	}
	t := w.NewTable(header...)
	for _, one := range revisions {
		number := "gone"
		if one.Number > 0 {
			number = strconv.FormatInt(one.Number, 10)
		}
		cells := []cli.Cell{
			{Text: number}, {Text: cli.OneLine(one.Name)}, {Text: strconv.Itoa(len(one.Pods))}, {Text: cli.OneLine(strings.Join(one.Images, ","))}, {Text: cli.OneLine(one.Cause)},
		}
		if len(own) > 0 {
			cells = slices.Insert(cells, 4, cli.Cell{Text: cli.OneLine(strings.Join(own[one.Name], ","))})
		}
		t.Rows = append(t.Rows, cli.Row{Cells: cells})
	}
	return t
}

// ownConfiguration returns the configuration of each revision that not all known revisions have.
func ownConfiguration(revisions []workloadRevision) map[string][]string {
	count, known := map[string]int{}, 0
	for _, one := range revisions {
		if one.Number > 0 {
			known++
		}
		for _, name := range one.Configuration {
			count[name]++
		}
	}
	own := map[string][]string{}
	for _, one := range revisions {
		for _, name := range one.Configuration {
			if count[name] < known {
				own[one.Name] = append(own[one.Name], name)
			}
		}
	}
	return own
}

func healthText(paint cli.Painter, h v1alpha1.Health, message string) string {
	style := map[v1alpha1.Health]cli.Style{v1alpha1.HealthHealthy: cli.Green, v1alpha1.HealthDegraded: cli.Red, v1alpha1.HealthProgressing: cli.Yellow, v1alpha1.HealthUnknown: cli.Yellow}[h]
	text := paint.Paint(style, string(h))
	if message != "" {
		text += ": " + cli.OneLine(message)
	}
	return text
}

// follow prints each change until the workload is done or has failed.
func (w *workloads) follow(ctx context.Context, found *workloadObject, timeout time.Duration) error {
	within := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	f := &followed{workloads: w, uid: string(found.GetUID())}
	for {
		err := f.from(within, found)
		switch {
		case errors.Is(err, errDone):
			return nil
		case errors.Is(err, cli.ErrFound), ctx.Err() != nil:
			return err
		case within.Err() != nil:
			w.Warn("%s is not done after %s: %s", found.title(), timeout, f.last.Message)
			return cli.ErrFound
		case err != nil:
			return err
		}
		if cli.Sleep(within, rewatchPause) != nil {
			continue // the switch above reports the reason
		}
		again, err := w.find(within, found.kind.short[0]+"/"+found.GetName(), "")
		if err != nil && within.Err() == nil {
			return err
		}
		if err == nil {
			found = again
		}
	}
}

// errDone ends a successful watch.
var errDone = errors.New("done")

// followed is a watched workload.
type followed struct {
	*workloads
	uid  string
	last health.Result // as last printed
}

// from prints a workload and its changes until the API server ends the watch. It returns errDone,
// errFound if the workload has failed, or the error of the watch.
func (f *followed) from(ctx context.Context, found *workloadObject) error {
	if err := f.printChange(found); err != nil {
		return err
	}
	events, err := f.client.Watch(ctx, found.kind.list(), &client.ListOptions{
		Namespace: found.GetNamespace(), FieldSelector: fields.OneTermEqualSelector("metadata.name", found.GetName()),
		Raw: &metav1.ListOptions{ResourceVersion: found.GetResourceVersion()},
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", found.title(), err)
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-events.ResultChan():
			if !open || e.Type == watch.Error {
				return nil
			}
			o, ok := e.Object.(client.Object)
			if !ok {
				continue
			}
			if e.Type == watch.Deleted {
				return fmt.Errorf("%s was deleted while it was watched", found.title())
			}
			if err := f.printChange(asWorkload(found.kind, o)); err != nil {
				return err
			}
		}
	}
}

// printChange prints the health if it has changed.
func (f *followed) printChange(found *workloadObject) error {
	if string(found.GetUID()) != f.uid {
		return fmt.Errorf("%s was deleted while it was watched, and another one made", found.title())
	}
	h, err := found.health()
	if err != nil {
		return err
	}
	if h != f.last {
		fmt.Fprintf(f.Env.Out, "%s %s: %s\n", f.Env.Now().UTC().Format(time.RFC3339), found.title(), healthText(f.Painter(f.Env.Out), h.Health, h.Message))
		f.last = h
	}
	switch h.Health {
	case v1alpha1.HealthHealthy:
		return errDone
	case v1alpha1.HealthDegraded:
		return cli.ErrFound
	case v1alpha1.HealthProgressing, v1alpha1.HealthUnknown:
	}
	return nil
}
