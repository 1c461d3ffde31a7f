package rollout

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// defaultTimeout is the timeout of a cluster if its stage names none.
const defaultTimeout = time.Hour

// Stages returns the stages of a component's pipeline; nil: the component has no pipeline. Each
// stage has its clusters in their order: clusters on which git wants the component present or
// absent.
//
// A cluster with broken files stays in its stage, if its labels are known. A cluster with unknown
// labels is in the first stage, where its state is unknown: it may belong to any stage, and must
// hold all of them. A broken pipeline is an error, and no cluster may be released.
func Stages(f *registry.Fleet, component string) ([]Stage, error) {
	p := f.PipelineOf(component)
	if p == nil {
		return nil, nil
	}
	if err := p.Problems.Err(); err != nil {
		return nil, err
	}
	in := map[*registry.Stage][]*registry.Cluster{}
	for _, c := range f.Clusters {
		switch {
		case c.Unread:
			in[p.Stages[0]] = append(in[p.Stages[0]], c)
		case c.Delivery(component) != nil: // a delivery without a stage is blocked
			s := p.StageOf(c.Spec.Labels)
			in[s] = append(in[s], c)
		}
	}
	out := make([]Stage, len(p.Stages))
	for i, s := range p.Stages {
		out[i] = stage(s, in[s])
	}
	return out, nil
}

func stage(s *registry.Stage, clusters []*registry.Cluster) Stage {
	spec := &s.Spec
	out := Stage{
		Name: spec.Name, Windows: s.Windows,
		Silence: duration(spec.Silence, 0), Bake: duration(spec.Bake, 0), Timeout: duration(spec.Timeout, defaultTimeout),
		Rollback: spec.OnFailure == v1alpha1.OnFailureRollback,
		Before:   names(spec.Before), After: names(spec.After),
	}
	out.MaxConcurrent = amount(spec.MaxConcurrent, len(clusters), 1)
	out.MaxUnavailable = amount(spec.MaxUnavailable, len(clusters), out.MaxConcurrent)
	slices.SortFunc(clusters, byLabel(spec.Order))
	for _, c := range clusters {
		out.Clusters = append(out.Clusters, c.Name)
	}
	return out
}

func duration(d *metav1.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.Duration
}

// amount resolves a number, or a percentage of all, rounded down. It is at least 1.
func amount(a *intstr.IntOrString, all, otherwise int) int {
	if a == nil {
		return otherwise
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(a, all, false)
	if err != nil {
		return 1 // unreachable: the registry has validated it
	}
	return max(n, 1)
}

func names(checks []v1alpha1.Check) []string {
	var out []string
	for _, c := range checks {
		out = append(out, c.Name)
	}
	return out
}

// byLabel orders clusters by the value of a label, as [v1alpha1.Stage] documents.
func byLabel(label string) func(a, b *registry.Cluster) int {
	rank := func(c *registry.Cluster) (kind, number int, word string) {
		value, ok := c.Spec.Labels[label]
		n, err := strconv.Atoi(value)
		switch {
		case !ok:
			return 2, 0, ""
		case err != nil:
			return 1, 0, value
		}
		return 0, n, ""
	}
	return func(a, b *registry.Cluster) int {
		kindA, numberA, wordA := rank(a)
		kindB, numberB, wordB := rank(b)
		return cmp.Or(
			cmp.Compare(kindA, kindB), cmp.Compare(numberA, numberB), cmp.Compare(wordA, wordB), cmp.Compare(a.Name, b.Name),
		)
	}
}
