// Package v1alpha1 holds the Go types of apps.kruise.io/v1alpha1, and their conversion from and to
// [v1beta1], the stored version. It defines only the types that differ.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1alpha1
