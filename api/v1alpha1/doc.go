// Package v1alpha1 holds the Go types of keelson.io/v1alpha1: the files that
// users write in a fleet repository, and the custom resources in which the hub
// shows status.
//
// The files are flat and take their names from their paths
// (clusters/NAME/cluster.yaml), so a name can't disagree with its place; see
// docs/decisions/001-flat-files.md. Custom resources are ordinary Kubernetes
// objects and hold status only: what should run is read from git.
//
// +kubebuilder:object:generate=true
// +groupName=keelson.io
package v1alpha1
