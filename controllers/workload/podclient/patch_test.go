package podclient_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/controllers/workload/podclient"
)

// A patch that does not name the pod's UID could change a later pod of the same name: it is not sent.
func TestPatchNamesItsPod(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "1"}}
	for _, patch := range []string{`{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"uid":"2"}}`, `{`} {
		if _, err := (podclient.Client{}).Patch(t.Context(), pod, []byte(patch)); err == nil || !strings.Contains(err.Error(), "does not name UID 1") {
			t.Errorf("%s: %v", patch, err)
		}
	}
}
