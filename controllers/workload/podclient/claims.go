package podclient

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// AddClaims adds the claims of a pod as volumes, one for each template; name returns the name of a
// template's claim. They replace volumes with the same name.
func AddClaims(pod *corev1.PodSpec, templates []corev1.PersistentVolumeClaim, name func(*corev1.PersistentVolumeClaim) string) {
	var volumes []corev1.Volume
	named := map[string]bool{}
	for i := range templates {
		t := &templates[i]
		named[t.Name] = true
		volumes = append(volumes, corev1.Volume{Name: t.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name(t)},
		}})
	}
	for _, v := range pod.Volumes {
		if !named[v.Name] {
			volumes = append(volumes, v)
		}
	}
	pod.Volumes = volumes
}

// ClaimSize returns the size that a claim or a template of one asks for.
func ClaimSize(c *corev1.PersistentVolumeClaim) *resource.Quantity {
	q := c.Spec.Resources.Requests[corev1.ResourceStorage]
	return &q
}

// SameClaimKind reports whether a claim has the class and the modes of its template. A template without a
// class stands for the default class of the cluster, which may change.
func SameClaimKind(t, c *corev1.PersistentVolumeClaim) bool {
	mode := func(c *corev1.PersistentVolumeClaim) corev1.PersistentVolumeMode {
		if c.Spec.VolumeMode == nil {
			return corev1.PersistentVolumeFilesystem
		}
		return *c.Spec.VolumeMode
	}
	class := t.Spec.StorageClassName == nil || equality.Semantic.DeepEqual(t.Spec.StorageClassName, c.Spec.StorageClassName)
	return class && mode(t) == mode(c) && equality.Semantic.DeepEqual(t.Spec.AccessModes, c.Spec.AccessModes)
}
