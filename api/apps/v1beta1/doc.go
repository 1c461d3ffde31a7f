// Package v1beta1 holds the Go types of apps.kruise.io/v1beta1: the workloads that
// keelson workloads runs. The API server stores this version.
//
// The wire format is OpenKruise's, field by field. A cluster can change from one implementation to
// the other, and back, without a change of any object. The Go types are our own.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1beta1
