// Package deletion is the gate of all deletions: every DELETE that Keelson sends to a cluster passes
// through it.
//
// An object of a component is deleted for three reasons: it left the target (prune), no update can
// change it (replacement), or a hook needs its name or is over. The danger rules judge each of them
// in the same way, and an approval in git is bound to the same hash. The judgement gives a [Permit].
package deletion

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// Permit is the permission to delete one object. The zero Permit permits nothing.
type Permit struct {
	id differ.ID
	// The object must still have uid, version, or both.
	uid     types.UID
	version string
}

// UID returns the UID of the object that may be deleted; empty: the permit permits nothing.
func (p Permit) UID() types.UID { return p.uid }

// OfChange returns the permission that a plan gives to delete or replace an object. Any other
// change permits nothing.
func OfChange(c *differ.Change) Permit {
	if c.Op != differ.OpDelete && c.Op != differ.OpReplace || c.State == differ.StateHeld || c.State == differ.StateDenied {
		return Permit{id: c.ID}
	}
	return Permit{id: c.ID, uid: (&unstructured.Unstructured{Object: c.Live}).GetUID()}
}

// OfState returns the permission that a judged deletion gives to delete an object in one state only;
// false: none.
func OfState(c *differ.Change, live *unstructured.Unstructured) (Permit, bool) {
	p := OfChange(c)
	if c.Op != differ.OpDelete || p.uid == "" {
		return Permit{id: c.ID}, false
	}
	p.version = live.GetResourceVersion()
	return p, true
}

// OfCheck returns the permission to delete the Job of a check, which Keelson made.
func OfCheck(id differ.ID, uid types.UID) Permit { return Permit{id: id, uid: uid} }

// Send deletes an object of a cluster with a client of its kind.
func Send(ctx context.Context, p Permit, objects dynamic.ResourceInterface, options metav1.DeleteOptions) error {
	return send(ctx, p, options, func(ctx context.Context, name string, options metav1.DeleteOptions) error {
		return objects.Delete(ctx, name, options)
	})
}

// SendRecord deletes a Secret of Keelson's own: a record, or a part of a record. The Secret must
// still have uid, version, or both. It belongs to no component, so no rule applies.
func SendRecord(ctx context.Context, secrets corev1client.SecretInterface, name string, uid types.UID, version string) error {
	own := Permit{id: differ.ID{Kind: "Secret", Namespace: v1alpha1.Namespace, Name: name}, uid: uid, version: version}
	return send(ctx, own, metav1.DeleteOptions{}, secrets.Delete)
}

// send is the only place that sends a DELETE. The request is valid only for the object that the
// permit names by UID or resourceVersion.
func send(ctx context.Context, p Permit, options metav1.DeleteOptions, request func(context.Context, string, metav1.DeleteOptions) error) error {
	if p.uid == "" && p.version == "" {
		return fmt.Errorf("delete %s: the deletion has no permit, which is a defect of Keelson", p.id)
	}
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if p.uid != "" {
		options.Preconditions.UID = &p.uid
	}
	if p.version != "" {
		options.Preconditions.ResourceVersion = &p.version
	}
	return request(ctx, p.id.Name, options)
}
