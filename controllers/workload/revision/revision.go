// Package revision keeps the history of the template of a workload in ControllerRevisions, as
// Kubernetes and OpenKruise do. ControllerRevisions that they wrote can be read.
package revision

import (
	"bytes"
	"cmp"
	"context"
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

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// Label is on pods and ControllerRevisions. Its value is the hash of the revision. On pods of a
// StatefulSet it is the whole name, as it can be on others that OpenKruise made.
const Label = appsv1.ControllerRevisionHashLabelKey

// changeCause is the annotation that kubectl rollout history shows of a revision.
const changeCause = "kubernetes.io/change-cause"

// Owner is a workload, as the owner of revisions.
type Owner struct {
	metav1.Object
	Kind schema.GroupVersionKind
	// Labels are on the revisions, and select them.
	Labels map[string]string
	// Confirm returns an error if the workload does not exist any more. It is asked before revisions
	// without a controller are adopted: the deletion of a workload whose pods stay leaves such. Without
	// it none are.
	Confirm func(context.Context) error
	// Collisions counts the revisions whose hash was already taken by another revision.
	Collisions *int32
	// Claims are the claim templates; nil means that they are no matter of revisions.
	Claims *ClaimTemplates
}

func (o Owner) collisions() int32 {
	if o.Collisions == nil {
		return 0
	}
	return *o.Collisions
}

// New returns the revision of a template, with a revision number.
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
	if owner.distinguishes() {
		text, err := record(owner.Claims.Templates)
		if err != nil {
			return nil, err
		}
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[v1beta1.AnnotationClaimTemplates] = text
	}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: owner.GetName() + "-" + hash, Namespace: owner.GetNamespace(), Labels: labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.Kind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}, nil
}

// encode returns a strategic merge patch that replaces the template of a workload with this
// template.
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

// hashOf returns a short hash, of characters that form no words.
func hashOf(data []byte, collisions int32) string {
	h := fnv.New32()
	_, _ = h.Write(data) // never fails
	if collisions > 0 {
		_, _ = h.Write([]byte(strconv.Itoa(int(collisions))))
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// Template returns the template of a revision. It returns an error if the data cannot be parsed
// or has no template.
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

// Same reports whether two revisions hold the same template. Their JSON may differ, because
// different programs wrote them.
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

// Sort sorts revisions in place by number, the oldest first. Equal numbers are sorted by
// creation time, then by name.
func Sort(revisions []*appsv1.ControllerRevision) {
	slices.SortFunc(revisions, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
}

// Find returns the latest revision with the same template as another revision; nil if there is
// none.
func Find(sorted []*appsv1.ControllerRevision, as *appsv1.ControllerRevision) *appsv1.ControllerRevision {
	for _, r := range slices.Backward(sorted) {
		if Same(r, as) {
			return r
		}
	}
	return nil
}

// Next returns the number of the next revision; 1 if there is none yet.
func Next(sorted []*appsv1.ControllerRevision) int64 {
	if len(sorted) == 0 {
		return 1
	}
	return sorted[len(sorted)-1].Revision + 1
}

// Expired returns the unneeded revisions beyond a limit, the oldest first. Needed revisions do
// not count towards the limit.
func Expired(sorted []*appsv1.ControllerRevision, limit int, needed func(*appsv1.ControllerRevision) bool) []*appsv1.ControllerRevision {
	var idle []*appsv1.ControllerRevision
	for _, r := range sorted {
		if !needed(r) {
			idle = append(idle, r)
		}
	}
	return idle[:max(len(idle)-max(limit, 0), 0)]
}

// Hash returns the hash in the name of a revision or in a label: the part after the last "-".
// OpenKruise may label pods with the whole name.
func Hash(name string) string { return name[strings.LastIndexByte(name, '-')+1:] }

// LabelLike returns the label of a revision in the form that a pod has: its whole name, or its hash.
func LabelLike(pod metav1.Object, name string) string {
	if is := pod.GetLabels()[Label]; Hash(is) != is {
		return name
	}
	return Hash(name)
}

// Has reports whether a pod has the revision with a name or hash.
func Has(pod metav1.Object, revision string) bool {
	label := pod.GetLabels()[Label]
	return label != "" && revision != "" && Hash(label) == Hash(revision)
}
