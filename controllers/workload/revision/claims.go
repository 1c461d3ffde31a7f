package revision

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

const (
	// longestRecord is the most bytes of claim templates that a revision records. Of longer ones it
	// records a hash.
	longestRecord = 64 << 10
	hashPrefix    = "sha256:"
	// unknownClaims takes the place of a record that is not kept up to date any more.
	unknownClaims = "unknown"
)

// ClaimTemplates are the volume claim templates of a workload, as a part of its revisions.
type ClaimTemplates struct {
	Templates []corev1.PersistentVolumeClaim
	// Distinguish makes a revision with other claim templates another revision. Each revision records
	// its own in an annotation; a revision without a record can have any. If Distinguish is false, a
	// revision is its pod template alone, and earlier records become void.
	Distinguish bool
}

func (o Owner) distinguishes() bool { return o.Claims != nil && o.Claims.Distinguish }

// record returns the text that records claim templates.
func record(templates []corev1.PersistentVolumeClaim) (string, error) {
	kept := make([]corev1.PersistentVolumeClaim, len(templates))
	for i := range templates {
		t := &templates[i]
		kept[i] = corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: t.Name, Labels: t.Labels, Annotations: t.Annotations, Finalizers: t.Finalizers}, Spec: t.Spec,
		}
	}
	data, err := json.Marshal(kept)
	if err != nil {
		return "", fmt.Errorf("the claim templates of a revision: %w", err)
	}
	if len(data) > longestRecord {
		return hashClaims(kept), nil
	}
	return string(data), nil
}

// RecordedClaims returns the claim templates that a revision records. It returns false if they are not
// known: there is no record, only a hash, or a text that is no record.
func RecordedClaims(r *appsv1.ControllerRevision) ([]corev1.PersistentVolumeClaim, bool) {
	text := r.Annotations[v1beta1.AnnotationClaimTemplates]
	if text == "" || text == "null" || len(text) > longestRecord {
		return nil, false
	}
	var templates []corev1.PersistentVolumeClaim
	if err := json.Unmarshal([]byte(text), &templates); err != nil {
		return nil, false
	}
	names := map[string]bool{}
	for i := range templates {
		if name := templates[i].Name; name == "" || names[name] {
			return nil, false
		}
		names[templates[i].Name] = true
	}
	return templates, true
}

// recordedHash returns the hash of the claim templates that a revision records; "" if they are not known.
func recordedHash(r *appsv1.ControllerRevision) string {
	text := r.Annotations[v1beta1.AnnotationClaimTemplates]
	if sum, is := strings.CutPrefix(text, hashPrefix); is {
		if raw, err := hex.DecodeString(sum); err == nil && len(raw) == sha256.Size {
			return text
		}
		return ""
	}
	if templates, known := RecordedClaims(r); known {
		return hashClaims(templates)
	}
	return ""
}

// hashClaims returns a hash of what makes claim templates others: their names and specs. The order of
// templates and access modes, labels, annotations, and the form of a quantity do not count.
func hashClaims(templates []corev1.PersistentVolumeClaim) string {
	type identity struct {
		Name string
		Spec corev1.PersistentVolumeClaimSpec
	}
	all := make([]identity, len(templates))
	for i := range templates {
		spec := templates[i].Spec.DeepCopy()
		if spec.VolumeMode == nil {
			spec.VolumeMode = new(corev1.PersistentVolumeFilesystem)
		}
		slices.Sort(spec.AccessModes)
		for _, quantities := range []corev1.ResourceList{spec.Resources.Requests, spec.Resources.Limits} {
			for name, q := range quantities {
				quantities[name] = *resource.NewQuantity(q.Value(), resource.BinarySI)
			}
		}
		all[i] = identity{templates[i].Name, *spec}
	}
	slices.SortStableFunc(all, func(a, b identity) int { return strings.Compare(a.Name, b.Name) })
	data, _ := json.Marshal(all) // it could be read from JSON, so it can be written
	sum := sha256.Sum256(data)
	return hashPrefix + hex.EncodeToString(sum[:])
}

// ClaimsDiffer reports whether two revisions record different claim templates. It returns false if those
// of one are not known.
func ClaimsDiffer(a, b *appsv1.ControllerRevision) bool {
	if a.Annotations[v1beta1.AnnotationClaimTemplates] == b.Annotations[v1beta1.AnnotationClaimTemplates] {
		return false
	}
	ha, hb := recordedHash(a), recordedHash(b)
	return ha != "" && hb != "" && ha != hb
}

func records(r *appsv1.ControllerRevision) bool {
	_, has := r.Annotations[v1beta1.AnnotationClaimTemplates]
	return has
}

// find returns the latest revision that holds what a new one would hold; nil if there is none. If claim
// templates are told apart, a revision that records the same ones comes first. Otherwise the latest
// revision with the same pod template counts if its claim templates are not known.
func (o Owner) find(sorted []*appsv1.ControllerRevision, made *appsv1.ControllerRevision) *appsv1.ControllerRevision {
	if !o.distinguishes() {
		return Find(sorted, made)
	}
	var latest *appsv1.ControllerRevision
	for _, r := range slices.Backward(sorted) {
		switch {
		case !Same(r, made):
		case !ClaimsDiffer(r, made) && recordedHash(r) != "":
			return r
		case latest == nil:
			latest = r
		}
	}
	if latest != nil && recordedHash(latest) == "" {
		return latest
	}
	return nil
}

// nameByClaims returns a revision with another name, made from the claim templates, too. Another
// revision with the same pod template has the usual name.
func (o Owner) nameByClaims(r *appsv1.ControllerRevision) *appsv1.ControllerRevision {
	named := r.DeepCopy()
	hash := hashOf(slices.Concat(r.Data.Raw, []byte(recordedHash(r))), o.collisions())
	named.Name, named.Labels[Label] = o.GetName()+"-"+hash, hash
	return named
}

// writeRecords brings the records of claim templates up to date. The update revision gets the record of
// made, as the last one. A revision with the same pod template whose claim templates are not known gets it,
// too: its pods have not been out of date until now, and the next change is one for them as well.
func (s Store) writeRecords(ctx context.Context, h *History, owner Owner, made *appsv1.ControllerRevision) error {
	if owner.Claims == nil {
		return nil
	}
	first := recordedHash(h.Updated) == "" // later, only void and broken records are replaced
	for i, r := range h.Revisions {
		is := r.Annotations[v1beta1.AnnotationClaimTemplates]
		want := is
		switch {
		case !owner.Claims.Distinguish:
			if records(r) {
				want = unknownClaims
			}
		case r == h.Updated, (first || records(r)) && recordedHash(r) == "" && Same(r, h.Updated):
			want = made.Annotations[v1beta1.AnnotationClaimTemplates]
		}
		if want == is {
			continue
		}
		again := r.DeepCopy()
		if again.Annotations == nil {
			again.Annotations = map[string]string{}
		}
		again.Annotations[v1beta1.AnnotationClaimTemplates] = want
		written, err := s.API.AppsV1().ControllerRevisions(r.Namespace).Update(ctx, again, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("the claim templates of ControllerRevision %s/%s: %w", r.Namespace, r.Name, err)
		}
		if h.Revisions[i] = written; r == h.Updated {
			h.Updated = written
		}
	}
	return nil
}

// Equal returns the hashes of the other revisions that hold what the update revision holds, so that
// their pods are up to date. There are such only where revisions have recorded claim templates.
func (h History) Equal(distinguish bool) map[string]bool {
	out := map[string]bool{}
	for _, r := range h.Revisions {
		if r.Name != h.Updated.Name && (records(r) || records(h.Updated)) && Same(r, h.Updated) && (!distinguish || !ClaimsDiffer(r, h.Updated)) {
			out[Hash(r.Name)] = true
		}
	}
	return out
}

// Version returns a text that changes with each change of the history.
func (h History) Version() string {
	var out strings.Builder
	for _, r := range h.Revisions {
		out.WriteString(r.Name + "@" + r.ResourceVersion + " ")
	}
	return out.String()
}
