// Package workloadcmd is the command workload, which shows and steers one workload: a CloneSet,
// StatefulSet or DaemonSet of apps.kruise.io, or a Deployment, StatefulSet or DaemonSet of Kubernetes.
package workloadcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/controllers/workload/revision"
	"github.com/keelson-io/keelson/differ"
)

// workloadRun is one run of workload.
type workloadRun struct {
	*cli.Invocation
	clusters connection.Connector
}

// New returns the command workload, with its subcommands.
func New(inv *cli.Invocation) *cobra.Command {
	run := &workloadRun{Invocation: inv, clusters: connection.New(inv)}
	o := &workloadOptions{}
	cmd := &cobra.Command{
		Use:     "workload",
		GroupID: cli.GroupCluster,
		Short:   "Show and steer one workload: a CloneSet, Deployment, …",
		Long: `Workload does what 'kubectl rollout' does, for Deployments, StatefulSets and
DaemonSets of Kubernetes, and for CloneSets, StatefulSets and DaemonSets of
apps.kruise.io. It works with 'keelson workloads' and with OpenKruise. The
cluster is the one of --kubeconfig and --context.

NAME is the name of a workload, or KIND/NAME where several kinds have a workload
of this name: cloneset/NAME, deployment/NAME, sts/NAME and ds/NAME for a
StatefulSet and a DaemonSet of Kubernetes, asts/NAME and daemon/NAME for those
of apps.kruise.io.

For workloads that Keelson delivers, git is the source of truth: pause, resume
and rollback are refused unless --force is given. next-batch is not: it only
releases what git wants.`,
		Example: `  keelson workload status web -n shop --watch
  keelson workload status deployment/api -n shop
  keelson workload pause cloneset/web -n shop
  keelson workload rollback daemon/agent -n kube-system --to 3`,
		Args: cli.Args("status", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	f.StringVarP(&o.namespace, "namespace", "n", "", "`NAMESPACE` of the workload (default: the context's)")
	f.StringVar(&o.kind, "kind", "", "`KIND` of it, as CloneSet or deployment (default: the\none that has the name)")
	cmd.AddCommand(newWorkloadStatus(inv, o), newWorkloadPause(inv, o), newWorkloadResume(inv, o), newWorkloadRollback(inv, o), newWorkloadNextBatch(inv, o))
	// These calls only fail for flags that do not exist.
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kindNames(workloadKinds()), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("namespace", run.completeNamespaces)
	return cmd
}

// workloadOptions select a workload.
type workloadOptions struct{ namespace, kind string }

// workloadKind is a kind that the commands support.
type workloadKind struct {
	schema.GroupVersionKind
	short []string // names that kubectl accepts; no other kind has the first one
	empty func() client.Object
	list  func() client.ObjectList
}

// workloadKinds returns all supported kinds.
func workloadKinds() []workloadKind {
	kruise, apps := v1beta1.GroupVersion.WithKind, appsv1.SchemeGroupVersion.WithKind
	return []workloadKind{
		{
			kruise("CloneSet"),
			[]string{"cloneset", "clonesets", "clone"},
			func() client.Object { return &v1beta1.CloneSet{} }, func() client.ObjectList { return &v1beta1.CloneSetList{} },
		},
		{
			kruise("DaemonSet"),
			[]string{"daemon", "daemonset", "daemonsets", "ads"},
			func() client.Object { return &v1beta1.DaemonSet{} }, func() client.ObjectList { return &v1beta1.DaemonSetList{} },
		},
		{
			apps("Deployment"),
			[]string{"deployment", "deployments", "deploy"},
			func() client.Object { return &appsv1.Deployment{} }, func() client.ObjectList { return &appsv1.DeploymentList{} },
		},
		{
			kruise("StatefulSet"),
			[]string{"asts", "statefulset", "statefulsets"},
			func() client.Object { return &v1beta1.StatefulSet{} }, func() client.ObjectList { return &v1beta1.StatefulSetList{} },
		},
		{
			apps("StatefulSet"),
			[]string{"sts", "statefulset", "statefulsets"},
			func() client.Object { return &appsv1.StatefulSet{} }, func() client.ObjectList { return &appsv1.StatefulSetList{} },
		},
		{
			apps("DaemonSet"),
			[]string{"ds", "daemonset", "daemonsets"},
			func() client.Object { return &appsv1.DaemonSet{} }, func() client.ObjectList { return &appsv1.DaemonSetList{} },
		},
	}
}

// native reports whether Kubernetes itself has the kind.
func (k workloadKind) native() bool { return k.Group == appsv1.GroupName }

// kindNames returns the names of kinds, each once.
func kindNames(of []workloadKind) (names []string) {
	for _, k := range of {
		if !slices.Contains(names, k.Kind) {
			names = append(names, k.Kind)
		}
	}
	return names
}

// kindsNamed returns the kinds that a text such as daemonset or daemonset.apps can mean; "": all.
func kindsNamed(text string) ([]workloadKind, error) {
	bare, group, qualified := strings.Cut(strings.ToLower(text), ".")
	kinds := slices.DeleteFunc(workloadKinds(), func(k workloadKind) bool {
		return text != "" && !slices.Contains(k.short, bare) || qualified && k.Group != group
	})
	if len(kinds) == 0 {
		return nil, cli.Usagef("%q is no kind of workload: give %s", text, strings.Join(kindNames(workloadKinds()), ", "))
	}
	return kinds, nil
}

// workloadName parses NAME or KIND/NAME, together with --kind.
func workloadName(given, kind string) (name string, kinds []workloadKind, err error) {
	prefix, name, has := strings.Cut(given, "/")
	if !has {
		prefix, name = "", given
	}
	if has && (prefix == "" || name == "") || name == "" {
		return "", nil, cli.Usagef("%q names no workload: give NAME, or KIND/NAME as cloneset/web", given)
	}
	named, err := kindsNamed(prefix)
	if err != nil {
		return "", nil, err
	}
	chosen, err := kindsNamed(kind)
	if err != nil {
		return "", nil, err
	}
	for _, k := range named {
		if slices.ContainsFunc(chosen, func(o workloadKind) bool { return o.GroupVersionKind == k.GroupVersionKind }) {
			kinds = append(kinds, k)
		}
	}
	if len(kinds) == 0 {
		return "", nil, cli.Usagef("%s is a %s, and --kind says %s", given, named[0].Kind, chosen[0].Kind)
	}
	return name, kinds, nil
}

// workloadObject is a workload as it was read.
type workloadObject struct {
	client.Object
	kind     workloadKind
	template *corev1.PodTemplateSpec
	// claims are the claim templates that revisions may record; nil: those of its kind record none.
	claims   *revision.ClaimTemplates
	selector *metav1.LabelSelector
	// The fields of the spec that all kinds have:
	partition       *v1beta1.IntOrString
	paused          bool
	divided         bool // a Deployment with [v1beta1.AnnotationUpdateStrategy]
	policy          string
	minReadySeconds int32
	updated, before string // names of revisions
	batches         *v1beta1.UpdateBatches
	batch           *v1beta1.BatchStatus
	pods            workloadPods
	conditions      []workloadCondition
}

// workloads reads and writes workloads in one cluster and namespace.
type workloads struct {
	*cli.Invocation
	client    client.WithWatch
	namespace string
}

func (run *workloadRun) openWorkloads(o *workloadOptions) (*workloads, error) {
	if err := run.CheckFormat(); err != nil {
		return nil, err
	}
	source := run.clusters.Source()
	namespace, err := source.Namespace()
	if err != nil {
		return nil, err
	}
	config, err := source.Hub()
	if err != nil {
		return nil, err
	}
	config.WarningHandler = run.clusters.Warnings()
	run.Log.Debug("connecting to the cluster", "server", config.Host)
	ctrl.SetLogger(logr.FromSlogHandler(run.Log.Handler())) // without a logger, the library complains on stderr
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register the workloads: %w", err)
		}
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	return &workloads{Invocation: run.Invocation, client: c, namespace: cmp.Or(o.namespace, namespace)}, nil
}

// noWorkloads returns the error for a cluster that does not serve the kinds.
func noWorkloads(kinds []workloadKind) error {
	hint := "--kubeconfig and --context may name another cluster"
	if !slices.ContainsFunc(kinds, workloadKind.native) {
		hint = "either their CRDs are not installed (components/workload-controllers has them), or " + strings.Replace(hint, "may name", "name", 1)
	}
	return fmt.Errorf("the cluster serves no %ss: %s", strings.Join(kindNames(kinds), "s or "), hint)
}

// find reads the workload that NAME or KIND/NAME means.
func (w *workloads) find(ctx context.Context, given, kind string) (*workloadObject, error) {
	name, kinds, err := workloadName(given, kind)
	if err != nil {
		return nil, err
	}
	var found []*workloadObject
	served := false
	for _, k := range kinds {
		o := k.empty()
		err := w.client.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: name}, o)
		switch {
		case connection.ServesNone(err):
			continue
		case apierrors.IsNotFound(err):
			served = true
			continue
		case err != nil:
			return nil, fmt.Errorf("read %s %s/%s: %w", k.Kind, w.namespace, name, err)
		}
		found = append(found, asWorkload(k, o))
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		var names []string
		for _, f := range found {
			names = append(names, f.kind.short[0]+"/"+name)
		}
		return nil, cli.Usagef("namespace %s has several workloads %s: say %s", w.namespace, name, strings.Join(names, " or "))
	case !served:
		return nil, noWorkloads(kinds)
	}
	return nil, w.none(ctx, name, kinds)
}

// change finds a workload and changes it, again if a controller changed it meanwhile.
func (w *workloads) change(ctx context.Context, name, kind string, change func(*workloadObject) error) error {
	var err error
	for range writeTries {
		var found *workloadObject
		if found, err = w.find(ctx, name, kind); err != nil {
			return err
		}
		if err = change(found); !apierrors.IsConflict(err) {
			return err
		}
	}
	return err
}

// none returns an error that lists the existing workloads.
func (w *workloads) none(ctx context.Context, name string, kinds []workloadKind) error {
	var known []string
	for _, k := range kinds {
		names, err := w.names(ctx, k)
		if err != nil && !connection.ServesNone(err) {
			return err
		}
		known = append(known, names...)
	}
	what := "workload"
	if titles := kindNames(kinds); len(titles) == 1 {
		what = titles[0]
	}
	return fmt.Errorf("namespace %s has no %s %q: %s (-n names another namespace)", w.namespace, what, name, fleetrepo.Choice("there", known))
}

// names returns the workloads of a kind, as KIND/NAME.
func (w *workloads) names(ctx context.Context, k workloadKind) ([]string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(k.GroupVersion().WithKind(k.Kind + "List"))
	if err := w.client.List(ctx, list, client.InNamespace(w.namespace)); err != nil {
		return nil, fmt.Errorf("list the %ss in namespace %s: %w", k.Kind, w.namespace, err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, k.short[0]+"/"+list.Items[i].Name)
	}
	return names, nil
}

// asWorkload reads the fields that all kinds have.
func asWorkload(kind workloadKind, o client.Object) *workloadObject {
	w := &workloadObject{Object: o, kind: kind, conditions: conditionsOf(o)}
	o.GetObjectKind().SetGroupVersionKind(kind.GroupVersionKind)
	switch o := o.(type) {
	case *v1beta1.CloneSet:
		w.ofCloneSet(o)
	case *v1beta1.DaemonSet:
		w.ofDaemonSet(o)
	case *v1beta1.StatefulSet:
		w.ofAdvancedStatefulSet(o)
	case *appsv1.Deployment:
		w.ofDeployment(o)
	case *appsv1.StatefulSet:
		w.ofStatefulSet(o)
	case *appsv1.DaemonSet:
		w.ofNativeDaemonSet(o)
	}
	return w
}

// conditionsOf returns the conditions of a workload. Each kind has its own type for them, and all
// write the same fields.
func conditionsOf(o client.Object) []workloadCondition {
	var held struct {
		Status struct{ Conditions []metav1.Condition }
	}
	data, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(data, &held)
	}
	if err != nil {
		return nil // it was read from JSON, so it never fails
	}
	var out []workloadCondition
	for i := range held.Status.Conditions {
		c := &held.Status.Conditions[i]
		out = append(out, workloadCondition{c.Type, string(c.Status), c.Reason, c.Message, &c.LastTransitionTime})
	}
	return out
}

func (s *workloadObject) ofCloneSet(o *v1beta1.CloneSet) {
	s.claims = &revision.ClaimTemplates{Templates: o.Spec.VolumeClaimTemplates, Distinguish: true}
	s.template, s.selector, s.minReadySeconds = &o.Spec.Template, o.Spec.Selector, o.Spec.MinReadySeconds
	s.policy = string(v1beta1.PodUpdateRecreate)
	if u := o.Spec.UpdateStrategy.RollingUpdate; u != nil {
		s.partition, s.paused, s.policy, s.batches = u.Partition, u.Paused, cmp.Or(string(u.PodUpdatePolicy), s.policy), u.Batches
	}
	if o.Spec.UpdateStrategy.Type == v1beta1.CloneSetOnDelete {
		s.policy = string(v1beta1.CloneSetOnDelete)
	}
	is := &o.Status
	s.updated, s.before, s.batch = is.UpdateRevision, is.CurrentRevision, is.Batches
	s.pods = workloadPods{Wanted: wanted(o.Spec.Replicas), Total: is.Replicas, Ready: is.ReadyReplicas, Available: is.AvailableReplicas, Updated: is.UpdatedReplicas}
}

func (s *workloadObject) ofDaemonSet(o *v1beta1.DaemonSet) {
	s.template, s.selector, s.minReadySeconds = &o.Spec.Template, o.Spec.Selector, o.Spec.MinReadySeconds
	s.policy = string(v1beta1.DaemonSetStandard)
	if u := o.Spec.UpdateStrategy.RollingUpdate; u != nil {
		s.partition, s.paused, s.policy, s.batches = u.Partition, u.Paused != nil && *u.Paused, cmp.Or(string(u.Type), s.policy), u.Batches
	}
	if o.Spec.UpdateStrategy.Type == v1beta1.DaemonSetOnDelete {
		s.policy = string(v1beta1.DaemonSetOnDelete)
	}
	is := &o.Status
	s.updated, s.batch = is.UpdateRevision, is.Batches
	s.pods = workloadPods{
		Wanted: is.DesiredNumberScheduled, Total: is.CurrentNumberScheduled, Ready: is.NumberReady, Available: is.NumberAvailable, Updated: is.UpdatedNumberScheduled,
	}
}

func (s *workloadObject) ofAdvancedStatefulSet(o *v1beta1.StatefulSet) {
	s.template, s.selector = &o.Spec.Template, o.Spec.Selector
	s.policy = string(v1beta1.PodUpdateRecreate)
	if u := o.Spec.UpdateStrategy.RollingUpdate; u != nil {
		s.paused, s.policy, s.batches = u.Paused, cmp.Or(string(u.PodUpdatePolicy), s.policy), u.Batches
		if u.Partition != nil {
			s.partition = new(intstr.FromInt32(*u.Partition))
		}
		if u.MinReadySeconds != nil {
			s.minReadySeconds = *u.MinReadySeconds
		}
	}
	if o.Spec.UpdateStrategy.Type == v1beta1.StatefulSetOnDelete {
		s.policy = string(v1beta1.StatefulSetOnDelete)
	}
	is := &o.Status
	s.updated, s.before, s.batch = is.UpdateRevision, is.CurrentRevision, is.Batches
	s.pods = workloadPods{Wanted: wanted(o.Spec.Replicas), Total: is.Replicas, Ready: is.ReadyReplicas, Available: is.AvailableReplicas, Updated: is.UpdatedReplicas}
}

// title returns, for example, "CloneSet shop/web".
func (s *workloadObject) title() string {
	return s.kind.Kind + " " + s.GetNamespace() + "/" + s.GetName()
}

// argument returns, for example, "cloneset/web -n shop", for a command line.
func (s *workloadObject) argument() string {
	return s.kind.short[0] + "/" + s.GetName() + " -n " + s.GetNamespace()
}

// health returns the health by Keelson's built-in rules.
func (s *workloadObject) health() (health.Result, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s.Object)
	if err != nil {
		return health.Result{}, fmt.Errorf("%s: %w", s.title(), err)
	}
	id := differ.ID{Group: s.kind.Group, Kind: s.kind.Kind, Namespace: s.GetNamespace(), Name: s.GetName()}
	return health.Rules{}.Of(id, content), nil
}

// delivered reports whether Keelson delivers the workload, and for which component. The component
// is "" if the label is missing.
func (s *workloadObject) delivered() (component string, is bool) {
	component = s.GetLabels()[v1alpha1.LabelComponent]
	return component, component != "" || slices.ContainsFunc(s.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == v1alpha1.FieldManager && e.Operation == metav1.ManagedFieldsOperationApply
	})
}

// refuse returns an error for a manual change of a delivered workload, unless force is set.
func (s *workloadObject) refuse(verb, instead string, force bool) error {
	component, is := s.delivered()
	if !is || force {
		return nil
	}
	of := "a component"
	if component != "" {
		of = "component " + component
	}
	return fmt.Errorf("%s is not to be %s: Keelson delivers it as part of %s, and git is the source of truth: what git sets is set back as drift, and what it does not set stays behind unseen; "+
		"%s, or hold the component still with 'keelson pause CLUSTER %s' in git, or say --force", s.title(), verb, of, instead, cmp.Or(component, "COMPONENT"))
}

// warnDelivered warns about what happens to a forced change.
func (w *workloads) warnDelivered(found *workloadObject) {
	if _, is := found.delivered(); is {
		w.Warn("%s is delivered by Keelson, and git does not have this change: what git sets is set back, and the rest stays until it is undone by hand", found.title())
	}
}

// completeWorkloads completes NAME. It completes KIND/NAME if both kinds have the name, or if the
// prefix has a slash.
func (run *workloadRun) completeWorkloads(o *workloadOptions) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		kinds, err := kindsNamed(o.kind)
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		w, ctx, cancel := run.quietWorkloads(cmd, o)
		if w == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer cancel()
		return w.completions(ctx, kinds, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// completions returns the completions of a prefix. It leaves out kinds that can't be read.
func (w *workloads) completions(ctx context.Context, kinds []workloadKind, prefix string) []string {
	having := map[string][]string{}
	for _, k := range kinds {
		all, _ := w.names(ctx, k)
		for _, full := range all {
			_, name, _ := strings.Cut(full, "/")
			having[name] = append(having[name], full)
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(having)) {
		if len(having[name]) > 1 || strings.Contains(prefix, "/") {
			out = append(out, having[name]...)
		} else {
			out = append(out, name)
		}
	}
	return slices.DeleteFunc(out, func(c string) bool { return !strings.HasPrefix(c, prefix) })
}

// quietWorkloads connects for a completion, with a short timeout; nil on any error.
func (run *workloadRun) quietWorkloads(cmd *cobra.Command, o *workloadOptions) (*workloads, context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(cmd.Context(), cmp.Or(run.Env.Completion, fleetrepo.CompletionTimeout))
	err := run.Configure(cmd)
	if err == nil {
		var w *workloads
		if w, err = run.openWorkloads(o); err == nil {
			return w, ctx, cancel
		}
	}
	cancel()
	return nil, nil, nil
}

func (run *workloadRun) completeNamespaces(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	w, ctx, cancel := run.quietWorkloads(cmd, &workloadOptions{})
	if w == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer cancel()
	var list corev1.NamespaceList
	if w.client.List(ctx, &list) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []cobra.Completion
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// errMeanwhile ends a change that was planned for an older spec of the workload.
var errMeanwhile = errors.New("its spec was changed meanwhile: look at it, and try again")

// writeTries bounds how often a write is tried after a conflict with a controller.
const writeTries = 5

// rewatchPause is the pause before a watch that ended begins again.
const rewatchPause = time.Second
