package nodes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
)

// volumes are local volumes, one on each of three nodes. A directory has no size of its own, so no program
// makes it larger: growVolumes does what a storage controller does. The kubelet ends the growth itself.
const volumes = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: grows}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
`

const volume = `---
apiVersion: v1
kind: PersistentVolume
metadata: {name: grows-%[1]d}
spec:
  capacity: {storage: 64Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: grows
  persistentVolumeReclaimPolicy: Retain
  local: {path: %[2]s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [e2e-node-%[1]d]}]}]}}
`

// growVolumes gives each volume of a claim the size that the claim asks for, and changes its pod. Without
// that, the kubelet would see the larger volume at its next look at the pod, about a minute later. It
// returns the number of volumes that it changed.
func (n *test) growVolumes() int {
	n.Helper()
	claims, err := n.Client.CoreV1().PersistentVolumeClaims(n.Namespace).List(n.Context(), metav1.ListOptions{})
	n.Check(err)
	grown := 0
	for _, c := range claims.Items {
		v, err := n.Client.CoreV1().PersistentVolumes().Get(n.Context(), c.Spec.VolumeName, metav1.GetOptions{})
		n.Check(err)
		wants := c.Spec.Resources.Requests[corev1.ResourceStorage]
		if has := v.Spec.Capacity[corev1.ResourceStorage]; has.Cmp(wants) >= 0 {
			continue
		}
		patch := fmt.Sprintf(`{"spec": {"capacity": {"storage": %q}}}`, wants.String())
		_, err = n.Client.CoreV1().PersistentVolumes().Patch(n.Context(), v.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		n.Check(err)
		n.Do("annotate", "--overwrite", "pod", strings.TrimPrefix(c.Name, "data-"), "lab.example/grown="+wants.String())
		grown++
	}
	return grown
}

// A claim grows in place, before its pod is updated in place: the pod keeps its volume, its node and its
// address, and only the container with the new image starts again.
func TestClaimGrows(t *testing.T) {
	n := begin(t)
	const set = "statefulsets.apps.kruise.io/web"
	manifests := volumes
	for i := range 3 {
		folder := filepath.Join(shared.Dir, fmt.Sprint("grows-", i))
		n.Check(os.Mkdir(folder, 0o777)) //nolint:gosec // of containers that run as another user
		manifests += fmt.Sprintf(volume, i, folder)
	}
	n.apply(manifests)
	sized := func(size string) string {
		return strings.NewReplacer("kind: CloneSet", "kind: StatefulSet", "  replicas: 4\n", `  replicas: 3
  serviceName: web
  volumeClaimUpdateStrategy: {type: OnPodRollingUpdate}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {storageClassName: grows, accessModes: [ReadWriteOnce], resources: {requests: {storage: `+size+`}}}
`, "    spec:\n", "    spec:\n      readinessGates: [{conditionType: InPlaceUpdateReady}]\n",
			"volumeMounts: [{", "volumeMounts: [{name: data, mountPath: /data}, {").Replace(web)
	}
	n.apply(sized("64Mi"))
	n.SettledStatefulSet("web", 3, 3)
	before := byName(n.Pods("web"))
	n.listen()
	n.apply(strings.Replace(sized("128Mi"), "IMAGE/web:v1", "IMAGE/web:v2", 1))
	grown := 0
	n.Until(set, "updated, with claims that have grown", func(s workloadtest.Status) bool {
		grown += n.growVolumes()
		return s.UpdatedReplicas == 3 && s.AvailableReplicas == 3 && len(s.VolumeClaims) == 1 && s.VolumeClaims[0].CompatibleReadyReplicas == 3
	})
	if grown != 3 {
		t.Errorf("%d volumes had to grow, not 3", grown)
	}
	n.kept("web", "web:v2", before)
	n.gated(before)
	claims, err := n.Client.CoreV1().PersistentVolumeClaims(n.Namespace).List(t.Context(), metav1.ListOptions{})
	n.Check(err)
	for _, c := range claims.Items {
		if has := c.Status.Capacity[corev1.ResourceStorage]; has.Cmp(resource.MustParse("128Mi")) != 0 {
			t.Errorf("%s has %s", c.Name, has.String())
		}
	}
}
