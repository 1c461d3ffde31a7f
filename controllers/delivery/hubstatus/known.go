package hubstatus

import (
	"slices"
	"strings"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// known is the part of a Delivery of the hub that is kept, once per component and cluster. Its
// status is never changed in place.
type known struct {
	uid                types.UID
	version            string // its resourceVersion
	cluster, component string
	status             *v1alpha1.DeliveryStatus
}

// knownOf returns the kept parts of Deliveries that were read together, in common allocations. Go
// does not move objects: single ones among the garbage of a start would each keep a page of memory.
func knownOf(read []v1alpha1.Delivery) []known {
	type body struct {
		status v1alpha1.DeliveryStatus
		last   v1alpha1.DiffSummary
		ready  [1]metav1.Condition // nearly always the only condition
	}
	out, bodies := make([]known, len(read)), make([]body, len(read))
	var ids strings.Builder
	for i := range read {
		ids.WriteString(string(read[i].UID) + read[i].ResourceVersion)
	}
	rest := ids.String()
	for i := range read {
		d, b := &read[i], &bodies[i]
		b.status = shared(d.Status)
		b.status.Conditions = append(b.ready[:0], b.status.Conditions...)
		if last := b.status.LastDiff; last != nil {
			b.last = *last
			b.status.LastDiff = &b.last
		}
		out[i] = known{
			status: &b.status, cluster: interned(d.Labels[v1alpha1.LabelCluster]), component: interned(d.Labels[v1alpha1.LabelComponent]),
		}
		out[i].uid, rest = types.UID(rest[:len(d.UID)]), rest[len(d.UID):]
		out[i].version, rest = rest[:len(d.ResourceVersion)], rest[len(d.ResourceVersion):]
	}
	return out
}

// shared returns a status with interned texts: of thousands of statuses in a hub, most are equal.
func shared(s v1alpha1.DeliveryStatus) v1alpha1.DeliveryStatus {
	for _, text := range []*string{&s.Cluster, &s.Component, &s.Version, &s.AppliedVersion, &s.Revision, &s.TargetHash, &s.Message} {
		*text = interned(*text)
	}
	s.Sync, s.Health = interned(s.Sync), interned(s.Health)
	s.Conditions = slices.Clone(s.Conditions)
	for i := range s.Conditions {
		c := &s.Conditions[i]
		c.Type, c.Status, c.Reason, c.Message = interned(c.Type), interned(c.Status), interned(c.Reason), interned(c.Message)
	}
	return s
}

// interned returns the shared copy of a text.
func interned[T ~string](text T) T { return unique.Make(text).Value() }

// delivery returns the known part as an object.
func (k *known) delivery(name string) *v1alpha1.Delivery {
	return &v1alpha1.Delivery{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: v1alpha1.Namespace, UID: k.uid, ResourceVersion: k.version,
			Labels: map[string]string{v1alpha1.LabelCluster: k.cluster, v1alpha1.LabelComponent: k.component},
		},
		Status: *k.status,
	}
}
