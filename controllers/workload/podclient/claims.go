package podclient

import corev1 "k8s.io/api/core/v1"

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
