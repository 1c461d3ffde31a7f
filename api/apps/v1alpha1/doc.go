// Package v1alpha1 holds the Go types of apps.kruise.io/v1alpha1, and how they are
// converted from and to [v1beta1], which is stored. Only what differs from that is
// written here.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1alpha1
