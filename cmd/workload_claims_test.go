package cmd_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/revision"
)

// A way back brings the claim templates of its revision, too. Without them, pods that are replaced would
// have the old program with the new volume. A revision that differs only in its claims is one to go back to.
func TestWorkloadRollbackClaims(t *testing.T) {
	s := newShop(t)
	sized := func(size string) []corev1.PersistentVolumeClaim {
		c := corev1.PersistentVolumeClaim{}
		c.Name = "data"
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
		return []corev1.PersistentVolumeClaim{c}
	}
	set := cloneSet(s.namespace)
	set.Spec.VolumeClaimTemplates = sized("2Gi")
	s.create(set)
	revisions := func(claims []corev1.PersistentVolumeClaim, number int64, name string) {
		t.Helper()
		r, err := revision.New(revision.Owner{
			Object: set, Kind: v1beta1.GroupVersion.WithKind("CloneSet"), Claims: &revision.ClaimTemplates{Templates: claims, Distinguish: true},
		}, &set.Spec.Template, number)
		if err != nil {
			t.Fatal(err)
		}
		r.Name = name
		s.create(r)
	}
	revisions(sized("1Gi"), 1, "web-one")
	revisions(sized("2Gi"), 2, "web-two")
	s.keelson("rollback", "web", "--to", "2").want(t, 2).says(t, "has the template of revision 2 (web-two) already")
	s.keelson("rollback", "web").want(t, 0).says(t, "has the template of revision 1 (web-one) again", "and its claim templates")
	spec := s.get().Spec
	if size := spec.VolumeClaimTemplates[0].Spec.Resources.Requests[corev1.ResourceStorage]; size.String() != "1Gi" || spec.Template.Spec.Containers[0].Image != "web:v1" {
		t.Errorf("after it there is %+v", spec)
	}
}
