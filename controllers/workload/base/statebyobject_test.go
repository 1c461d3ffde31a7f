package base_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/controllers/workload/base"
)

// What a look leaves is there for the next, and not for a workload that comes under the
// name of another.
func TestKept(t *testing.T) {
	t.Parallel()
	k := base.NewStateByObject(func() *string { return new(string) })
	of := func(name, uid string) *string {
		return k.Of(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)}})
	}
	*of("web", "1"), *of("api", "2") = "web's", "api's"
	if *of("web", "1") != "web's" || *of("api", "2") != "api's" {
		t.Error("what was left isn't there")
	}
	if *of("web", "3") != "" {
		t.Error("it is another one's")
	}
	*of("web", "3") = "its own"
	k.Forget(types.NamespacedName{Namespace: "shop", Name: "web"})
	if *of("web", "3") != "" || *of("api", "2") != "api's" {
		t.Error("one was forgotten, and not the other")
	}
}
