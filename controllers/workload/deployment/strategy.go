package deployment

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	yamlnode "go.yaml.in/yaml/v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

// Strategy returns the update strategy of a Deployment that has [v1beta1.AnnotationUpdateStrategy], or why it can't be
// followed.
func Strategy(d *appsv1.Deployment) (*v1beta1.DeploymentUpdateStrategy, error) {
	path := field.NewPath("metadata", "annotations").Key(v1beta1.AnnotationUpdateStrategy)
	o := &v1beta1.DeploymentUpdateStrategy{}
	if err := Decode(d.Annotations[v1beta1.AnnotationUpdateStrategy], o); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		return nil, fmt.Errorf("spec.strategy.type: %s: the annotation %s divides updates of type RollingUpdate only", d.Spec.Strategy.Type, v1beta1.AnnotationUpdateStrategy)
	}
	all := batch.Validate(path.Child("batches"), o.Batches, false)
	if o.Partition != nil {
		if _, err := partition(o.Partition, 1); err != nil {
			all = append(all, field.Invalid(path.Child("partition"), o.Partition.String(), err.Error()))
		}
	}
	return o, all.ToAggregate() //nolint:wrapcheck // it names the fields
}

const (
	// maxStrategy is the most bytes of an update strategy. A hundred sizes, each with a comment, are less.
	maxStrategy = 10_000
	// maxRefused is the most bytes of a reason in the status. Errors can repeat what is wrong with them.
	maxRefused = 1000
)

// Decode reads the value of [v1beta1.AnnotationUpdateStrategy] strictly. All who can change a Deployment can write it, so
// it can't take much memory: aliases would make gigabytes of a few kilobytes.
func Decode(text string, into any) error {
	if len(text) > maxStrategy {
		return fmt.Errorf("it has %d bytes, more than %d: shorten it", len(text), maxStrategy)
	}
	var root yamlnode.Node
	if err := yamlnode.Unmarshal([]byte(text), &root); err != nil {
		return err //nolint:wrapcheck // it says that it is of YAML
	}
	if hasAlias(&root) {
		return errors.New("YAML anchors and aliases are not supported: write the values out")
	}
	return yaml.UnmarshalStrict([]byte(text), into) //nolint:wrapcheck // as above
}

// hasAlias reports whether a part of a YAML document stands for another one.
func hasAlias(n *yamlnode.Node) bool {
	return n.Kind == yamlnode.AliasNode || n.Anchor != "" || slices.ContainsFunc(n.Content, hasAlias)
}

// abridged returns a reason without its middle if it is long. With all of it, the API server could refuse the
// write that pauses the Deployment.
func abridged(reason string) string {
	if len(reason) <= maxRefused {
		return reason
	}
	return strings.ToValidUTF8(reason[:maxRefused/2], "") + "…" + strings.ToValidUTF8(reason[len(reason)-maxRefused/2:], "")
}

// partition returns how many of a number of pods stay as they are.
func partition(p *v1beta1.IntOrString, of int) (int, error) {
	if p == nil {
		return 0, nil
	}
	stay, err := intstr.GetScaledValueFromIntOrPercent(p, of, true)
	switch {
	case err != nil:
		return 0, errors.New("it is neither a number of pods nor a percentage")
	case stay < 0:
		return 0, errors.New("a number of pods can't be negative")
	case p.Type == intstr.String && p.StrVal != "100%" && stay >= of && of > 0:
		stay = of - 1
	}
	return min(stay, of), nil
}

// batchesOf returns the batches of an update strategy. Without batches, all pods are one batch, and pods that fail
// do not stop it.
func batchesOf(o *v1beta1.DeploymentUpdateStrategy) *v1beta1.UpdateBatches {
	if o.Batches != nil {
		return o.Batches
	}
	all := intstr.FromString("100%")
	return &v1beta1.UpdateBatches{Sizes: []v1beta1.IntOrString{all}, Auto: true, MaxFailed: &all}
}

// fieldsOf returns the fields of a Deployment that the controller changes.
func fieldsOf(d *appsv1.Deployment) fields {
	f := fields{Paused: d.Spec.Paused, MinReadySeconds: d.Spec.MinReadySeconds, ProgressDeadlineSeconds: d.Spec.ProgressDeadlineSeconds}
	if u := d.Spec.Strategy.RollingUpdate; u != nil {
		f.MaxUnavailable, f.MaxSurge = u.MaxUnavailable, u.MaxSurge
	}
	return f
}

// same reports whether two values of a field are equal.
func same[T any](a, b *T) bool { return fmt.Sprint(value(a)) == fmt.Sprint(value(b)) }

func value[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// equal reports whether all fields are equal.
func equal(a, b fields) bool {
	return a.Paused == b.Paused && a.MinReadySeconds == b.MinReadySeconds && same(a.ProgressDeadlineSeconds, b.ProgressDeadlineSeconds) &&
		same(a.MaxUnavailable, b.MaxUnavailable) && same(a.MaxSurge, b.MaxSurge)
}

// wishes returns the user's fields: those before, and each field that has another value than the
// controller wrote.
func wishes(kept *v1beta1.DeploymentUpdateBefore, live fields) fields {
	is, wrote := kept.Before, kept.Wrote
	if live.Paused != wrote.Paused {
		is.Paused = live.Paused
	}
	if live.MinReadySeconds != wrote.MinReadySeconds {
		is.MinReadySeconds = live.MinReadySeconds
	}
	if !same(live.ProgressDeadlineSeconds, wrote.ProgressDeadlineSeconds) {
		is.ProgressDeadlineSeconds = live.ProgressDeadlineSeconds
	}
	if !same(live.MaxUnavailable, wrote.MaxUnavailable) {
		is.MaxUnavailable = live.MaxUnavailable
	}
	if !same(live.MaxSurge, wrote.MaxSurge) {
		is.MaxSurge = live.MaxSurge
	}
	return is
}

// Before returns what an object keeps of the user's fields; nil: nothing that can be read.
func Before(o metav1.Object) *v1beta1.DeploymentUpdateBefore {
	kept := &v1beta1.DeploymentUpdateBefore{}
	if err := json.Unmarshal([]byte(o.GetAnnotations()[v1beta1.AnnotationUpdateBefore]), kept); err != nil || kept.Token == "" {
		return nil
	}
	return kept
}

// isLost reports whether a Deployment has no copy of the user's fields any more, although Keelson has written its
// status.
func isLost(d *appsv1.Deployment) bool {
	_, has := d.Annotations[v1beta1.AnnotationUpdateStatus]
	return has && Before(d) == nil
}

// recoverKept returns what is kept of the user's fields while a step is under way, or after it was lost. The
// Deployment controller copies it to the newest ReplicaSet. 'kubectl rollout undo' and 'kubectl replace' can take
// it from the Deployment, or put an older one there. Without a step, a copy counts only if it is of the live
// fields: those of an older copy would become the user's.
func recoverKept(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) *v1beta1.DeploymentUpdateBefore {
	kept, moving := Before(d), d.Spec.MinReadySeconds == neverAvailable
	for _, s := range sets {
		if k := Before(s); k != nil && (kept == nil || newer(k.Token, kept.Token)) {
			kept = k
		}
	}
	if !moving {
		if kept != nil && !equal(kept.Wrote, fieldsOf(d)) {
			return nil
		}
		return kept
	}
	if kept == nil { // nothing is left of it but the defaults of the API server
		quarter := intstr.FromString("25%")
		kept = &v1beta1.DeploymentUpdateBefore{
			Before: fields{ProgressDeadlineSeconds: new(int32(600)), MaxUnavailable: &quarter, MaxSurge: &quarter}, Wrote: fieldsOf(d), Token: "0",
		}
	}
	return kept
}

// newer reports whether a token is of a later write.
func newer(token, than string) bool { return number(token) > number(than) }

// number returns the number of a token; 0: it is not one of the controller, which are below half of the range.
func number(token string) int64 {
	n, err := strconv.ParseInt(token, 10, 64)
	if err != nil || n > math.MaxInt64/2 {
		return 0
	}
	return n
}

// Status returns the status of the updates; the zero status: there is none that can be read.
func Status(d *appsv1.Deployment) (s v1beta1.DeploymentUpdateStatus) {
	if json.Unmarshal([]byte(d.Annotations[v1beta1.AnnotationUpdateStatus]), &s) != nil {
		return v1beta1.DeploymentUpdateStatus{}
	}
	return s
}

// template returns a template of pods without the label that a ReplicaSet adds.
func template(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	t = t.DeepCopy()
	delete(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return t
}

// revisionOf names a template of pods. A ReplicaSet has another name, and none before its first pod.
func revisionOf(d *appsv1.Deployment, t *corev1.PodTemplateSpec) string {
	data, err := json.Marshal(template(t))
	if err != nil {
		return d.Name // it was read from JSON, so it never fails
	}
	sum := sha256.Sum256(data)
	return d.Name + "-" + hex.EncodeToString(sum[:5])
}

// byAge orders ReplicaSets as the Deployment controller does when it looks for the newest one.
func byAge(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}
