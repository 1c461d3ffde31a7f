package probe

import (
	"context"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Store keeps the results of probes in the hub. It is safe for concurrent use.
type Store struct {
	client   client.Client
	redactor *redact.Redactor
	// serve makes the hub serve the kind.
	serve func(context.Context) error
	// events returns the recorder of Kubernetes Events; nil while there is none.
	events func() record.EventRecorder

	mu     sync.Mutex
	served bool
	// never means that there was no result of any probe when this process first asked.
	never *bool
}

// StoreOptions are the settings of a [Store]; all are required.
type StoreOptions struct {
	Hub      *rest.Config
	Redactor *redact.Redactor
	// Serve makes the hub serve ProbeResults.
	Serve func(context.Context) error
	// Events returns the recorder of Kubernetes Events; it may return nil.
	Events func() record.EventRecorder
}

// NewStore prepares a store; it makes no call.
func NewStore(o StoreOptions) (*Store, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	m := meta.NewDefaultRESTMapper(nil) // discovery lags behind a CRD
	m.Add(v1alpha1.GroupVersion.WithKind("ProbeResult"), meta.RESTScopeNamespace)
	c, err := client.New(o.Hub, client.Options{Scheme: scheme, Mapper: m})
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return &Store{client: c, redactor: o.Redactor, serve: o.Serve, events: o.Events}, nil
}

// Of returns the results of a fleet's probes on one cluster, by the names of the probes. Without
// probes, and without results at the first call of this process, it costs one read.
func (s *Store) Of(ctx context.Context, f *registry.Fleet, cluster string) (map[string]v1alpha1.ProbeResultStatus, error) {
	if len(f.Probes) == 0 {
		if never, err := s.hadNone(ctx); never || err != nil {
			return nil, err
		}
	}
	return s.list(ctx, f, "", client.MatchingLabels{v1alpha1.LabelCluster: cluster})
}

// On returns the results of one of a fleet's probes, by cluster.
func (s *Store) On(ctx context.Context, f *registry.Fleet, probe string) (map[string]v1alpha1.ProbeResultStatus, error) {
	return s.list(ctx, f, probe, client.MatchingLabels{v1alpha1.LabelProbe: probe})
}

func (s *Store) hadNone(ctx context.Context) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.never == nil {
		var some v1alpha1.ProbeResultList
		err := s.client.List(ctx, &some, client.InNamespace(v1alpha1.Namespace), client.Limit(1))
		if err != nil && !apierrors.IsNotFound(err) { // the kind may never have been served
			return false, fmt.Errorf("list ProbeResults: %w", err)
		}
		never := len(some.Items) == 0
		s.never = &never
	}
	return *s.never, nil
}

// list returns results by the name of the probe, or by cluster if probe is given.
func (s *Store) list(ctx context.Context, f *registry.Fleet, probe string, of client.ListOption) (map[string]v1alpha1.ProbeResultStatus, error) {
	var list v1alpha1.ProbeResultList
	err := s.client.List(ctx, &list, client.InNamespace(v1alpha1.Namespace), of)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list ProbeResults: %w", err)
	}
	out := map[string]v1alpha1.ProbeResultStatus{}
	for i := range list.Items {
		r := &list.Items[i]
		switch {
		case r.Annotations[v1alpha1.AnnotationFleet] != f.Spec.Name: // several fleets may share a hub
		case probe != "":
			out[r.Status.Cluster] = r.Status
		default:
			out[r.Labels[v1alpha1.LabelProbe]] = r.Status
		}
	}
	return out, nil
}

// Write stores a result, and records a Kubernetes Event if its outcome has changed. It fails if
// another fleet has the name.
func (s *Store) Write(ctx context.Context, f *registry.Fleet, is v1alpha1.ProbeResultStatus) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	is.Message = s.redactor.Text(is.Message)
	r := &v1alpha1.ProbeResult{ObjectMeta: metav1.ObjectMeta{
		Name: is.Cluster + "." + is.Probe, Namespace: v1alpha1.Namespace,
		Labels:      map[string]string{v1alpha1.LabelCluster: is.Cluster, v1alpha1.LabelProbe: is.Probe},
		Annotations: map[string]string{v1alpha1.AnnotationFleet: f.Spec.Name},
	}}
	err := s.client.Get(ctx, client.ObjectKeyFromObject(r), r)
	switch {
	case apierrors.IsNotFound(err):
		err = s.client.Create(ctx, r)
	case err == nil && r.Annotations[v1alpha1.AnnotationFleet] != f.Spec.Name:
		return fmt.Errorf("the hub has a ProbeResult %s of another fleet, %s", r.Name, r.Annotations[v1alpha1.AnnotationFleet])
	}
	if err != nil {
		return fmt.Errorf("write ProbeResult %s: %w", r.Name, err)
	}
	was := r.Status.Outcome
	r.Status = is
	if err := s.client.Status().Update(ctx, r); err != nil { // with its resourceVersion
		return fmt.Errorf("write ProbeResult %s: %w", r.Name, err)
	}
	if recorder := s.events(); recorder != nil && was != is.Outcome {
		switch is.Outcome {
		case v1alpha1.ProbePassed:
			recorder.Eventf(r, corev1.EventTypeNormal, "ProbePassed", "probe %s passes on %s", is.Probe, is.Cluster)
		case v1alpha1.ProbeFailed:
			recorder.Eventf(r, corev1.EventTypeWarning, "ProbeFailed", "probe %s fails on %s: %s", is.Probe, is.Cluster, cut(is.Message))
		}
	}
	return nil
}

// cut shortens a message for a Kubernetes Event.
func cut(text string) string {
	const most = 900
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// Delete removes the result of a probe that left no objects behind.
func (s *Store) Delete(ctx context.Context, cluster, probe string) error {
	r := &v1alpha1.ProbeResult{ObjectMeta: metav1.ObjectMeta{Name: cluster + "." + probe, Namespace: v1alpha1.Namespace}}
	if err := s.client.Delete(ctx, r); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete ProbeResult %s: %w", r.Name, err)
	}
	return nil
}

// Retract removes the results of a cluster that is no longer in git.
func (s *Store) Retract(ctx context.Context, f *registry.Fleet, cluster string) error {
	known, err := s.Of(ctx, f, cluster)
	if err != nil {
		return err
	}
	for name := range known {
		if err := s.Delete(ctx, cluster, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) ready(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.served {
		return nil
	}
	if err := s.serve(ctx); err != nil {
		return fmt.Errorf("the hub can't hold ProbeResults, see keelson rbac --hub: %w", err)
	}
	s.served = true
	return nil
}
