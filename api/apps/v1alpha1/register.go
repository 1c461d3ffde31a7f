package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every type in this package.
//
//nolint:gochecknoglobals // the conventional name that API machinery expects
var GroupVersion = schema.GroupVersion{Group: "apps.kruise.io", Version: "v1alpha1"}

// AddToScheme registers the workloads.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &CloneSet{}, &CloneSetList{}, &DaemonSet{}, &DaemonSetList{}, &StatefulSet{}, &StatefulSetList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
