// Package revision keeps the history of a workload's template in ControllerRevisions,
// as Kubernetes' own workloads and OpenKruise do: what they left is understood.
package revision

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
)

// Label is on pods and ControllerRevisions: the hash of the revision, without the name
// of the workload. OpenKruise could be told to have the name there, too.
const Label = appsv1.ControllerRevisionHashLabelKey

// changeCause is what kubectl rollout history shows of a revision.
const changeCause = "kubernetes.io/change-cause"

// Owner is a workload.
type Owner struct {
	metav1.Object
	Kind schema.GroupVersionKind
	// Labels are on the revisions, by which they are found.
	Labels map[string]string
	// Collisions counts the revisions whose hashes were the same as another's.
	Collisions *int32
}

func (o Owner) collisions() int32 {
	if o.Collisions == nil {
		return 0
	}
	return *o.Collisions
}

// New returns the revision that a template is, with a number.
func New(owner Owner, template *corev1.PodTemplateSpec, number int64) (*appsv1.ControllerRevision, error) {
	data, err := encode(template)
	if err != nil {
		return nil, err
	}
	hash := hashOf(data, owner.collisions())
	labels := maps.Clone(owner.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[Label] = hash
	var annotations map[string]string
	if cause := owner.GetAnnotations()[changeCause]; cause != "" {
		annotations = map[string]string{changeCause: cause}
	}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: owner.GetName() + "-" + hash, Namespace: owner.GetNamespace(), Labels: labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.Kind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}, nil
}

// encode makes of a template the strategic merge patch that brings it about.
func encode(template *corev1.PodTemplateSpec) ([]byte, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template)
	if err != nil {
		return nil, fmt.Errorf("the template of a revision: %w", err)
	}
	content["$patch"] = "replace"
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": content}})
	if err != nil {
		return nil, fmt.Errorf("the template of a revision: %w", err)
	}
	return data, nil
}

// hashOf is short, and made of characters that spell no word.
func hashOf(data []byte, collisions int32) string {
	h := fnv.New32()
	_, _ = h.Write(data) // never fails
	if collisions > 0 {
		_, _ = h.Write([]byte(strconv.Itoa(int(collisions))))
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// Template is what a revision holds.
func Template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	var held struct {
		Spec struct {
			Template *corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &held); err != nil {
		return nil, fmt.Errorf("ControllerRevision %s/%s: %w", r.Namespace, r.Name, err)
	}
	if held.Spec.Template == nil {
		return nil, fmt.Errorf("ControllerRevision %s/%s holds no template", r.Namespace, r.Name)
	}
	return held.Spec.Template, nil
}

// Same reports whether two revisions hold the same template, whoever wrote them: the
// JSON may have other fields in another order.
func Same(a, b *appsv1.ControllerRevision) bool {
	if bytes.Equal(a.Data.Raw, b.Data.Raw) {
		return true
	}
	ta, err := Template(a)
	if err != nil {
		return false
	}
	tb, err := Template(b)
	return err == nil && equality.Semantic.DeepEqual(ta, tb)
}

// Sort puts the oldest first. Two that were given one number come by their age, then by
// name.
func Sort(revisions []*appsv1.ControllerRevision) {
	slices.SortFunc(revisions, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
}

// Find returns the youngest of the revisions that is the same as one; nil: none is.
func Find(sorted []*appsv1.ControllerRevision, as *appsv1.ControllerRevision) *appsv1.ControllerRevision {
	for _, r := range slices.Backward(sorted) {
		if Same(r, as) {
			return r
		}
	}
	return nil
}

// Next is the number of the revision that comes after those.
func Next(sorted []*appsv1.ControllerRevision) int64 {
	if len(sorted) == 0 {
		return 1
	}
	return sorted[len(sorted)-1].Revision + 1
}

// Expired are those revisions beyond a limit that nobody needs, the oldest first.
func Expired(sorted []*appsv1.ControllerRevision, limit int, needed func(*appsv1.ControllerRevision) bool) []*appsv1.ControllerRevision {
	var idle []*appsv1.ControllerRevision
	for _, r := range sorted {
		if !needed(r) {
			idle = append(idle, r)
		}
	}
	return idle[:max(len(idle)-max(limit, 0), 0)]
}

// Hash is that of a revision by its name, or by a label: what comes after the last "-".
// Pods that OpenKruise labelled with the whole name are recognized by it.
func Hash(name string) string { return name[strings.LastIndexByte(name, '-')+1:] }

// Has reports whether a pod has the revision of a name or hash.
func Has(pod metav1.Object, revision string) bool {
	label := pod.GetLabels()[Label]
	return label != "" && revision != "" && Hash(label) == Hash(revision)
}
