package differ_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// at returns an object with one value.
func at(gvk schema.GroupVersionKind, path string, v any) object {
	o := object{"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind, "metadata": object{
		"name": "o", "labels": object{v1alpha1.LabelComponent: component}, "uid": "u",
	}}
	names := strings.Split(path[1:], ".")
	parent := o
	for _, name := range names[:len(names)-1] {
		child := object{}
		parent[name], parent = child, child
	}
	parent[names[len(names)-1]] = v
	return o
}

// changed returns the plan for an object of which git changes one value. With approve, git approves
// the change.
func changed(t *testing.T, gvk schema.GroupVersionKind, path string, dry *differ.DryRun, approve bool) differ.Change {
	t.Helper()
	rules, err := differ.NewRules(differ.Scopes{})
	if err != nil {
		t.Fatal(err)
	}
	live := at(gvk, path, "a")
	live["metadata"].(object)["managedFields"] = list{}
	state := differ.State{
		ID:         differ.ID{Group: gvk.Group, Kind: gvk.Kind, Name: "o"},
		OwnersRead: true, Recorded: at(gvk, path, "a"), Live: live, Target: &renderer.Object{Content: at(gvk, path, "b")}, DryRun: dry,
	}
	policy := differ.Policy{Component: component, Rules: rules}
	plan, err := differ.Compare(t.Context(), nil, []differ.State{state}, policy)
	if err != nil {
		t.Fatal(err)
	}
	if approve {
		policy.Approved = map[string][]string{state.ID.String(): {plan.Changes[0].Hash}}
		if plan, err = differ.Compare(t.Context(), nil, []differ.State{state}, policy); err != nil {
			t.Fatal(err)
		}
	}
	return plan.Changes[0]
}

// Fields that an API server never changes are held, and an approval replaces the object. A field of
// the same name in another group is not immutable.
func TestImmutableFields(t *testing.T) {
	t.Parallel()
	cases := []struct {
		apiVersion string
		kinds      string
		paths      string
	}{
		{"apps/v1", "Deployment DaemonSet ReplicaSet", ".spec.selector .spec.selector.matchLabels.app"},
		{"apps/v1", "StatefulSet", ".spec.selector .spec.serviceName .spec.volumeClaimTemplates .spec.podManagementPolicy"},
		{"batch/v1", "Job", ".spec.selector .spec.completionMode .spec.managedBy"},
		{"v1", "PersistentVolumeClaim", ".spec.accessModes .spec.storageClassName .spec.volumeMode .spec.volumeName"},
		{"v1", "PersistentVolume", ".spec.volumeMode"},
		{"v1", "Secret", ".type"},
		{"discovery.k8s.io/v1", "EndpointSlice", ".addressType"},
		{"networking.k8s.io/v1", "IngressClass", ".spec.controller"},
		{"node.k8s.io/v1", "RuntimeClass", ".handler"},
		{"rbac.authorization.k8s.io/v1", "RoleBinding ClusterRoleBinding", ".roleRef .roleRef.name"},
		{"scheduling.k8s.io/v1", "PriorityClass", ".value .preemptionPolicy"},
		{"storage.k8s.io/v1", "StorageClass", ".provisioner .parameters .parameters.type .reclaimPolicy .volumeBindingMode"},
		{"storage.k8s.io/v1", "CSIDriver", ".spec.attachRequired .spec.volumeLifecycleModes"},
		{"storage.k8s.io/v1", "VolumeAttachment", ".spec .spec.nodeName"},
		{"apiextensions.k8s.io/v1", "CustomResourceDefinition", ".spec.group .spec.scope"},
		{"apps.kruise.io/v1alpha1", "CloneSet", ".spec.selector"},
		{"apps.kruise.io/v1beta1", "StatefulSet", ".spec.selector .spec.serviceName .spec.podManagementPolicy"},
	}
	for _, c := range cases {
		for kind := range strings.SplitSeq(c.kinds, " ") {
			for path := range strings.SplitSeq(c.paths, " ") {
				gvk := schema.FromAPIVersionAndKind(c.apiVersion, kind)
				t.Run(kind+path, func(t *testing.T) {
					t.Parallel()
					if got := changed(t, gvk, path, nil, false); got.State != differ.StateHeld || got.Op != differ.OpNone {
						t.Errorf("it is %s, %s", got.Op, got.State)
					}
					// A rule holds the deletion of an object with data, too: the approval covers both.
					got := changed(t, gvk, path, nil, true)
					if got.Op != differ.OpReplace || got.State != differ.StateChanged {
						t.Errorf("approved, it is %s, %s: %s", got.Op, got.State, got.Because)
					}
					gvk.Group, gvk.Version = "example.com", "v9"
					if got := changed(t, gvk, path, nil, true); got.Op != differ.OpUpdate {
						t.Errorf("in another group it is %s, %s: %s", got.Op, got.State, got.Because)
					}
				})
			}
		}
	}
}

// Some fields can be changed sometimes. The object is replaced only if the API server refuses the
// change of such a field.
func TestFieldsThatMayBeImmutable(t *testing.T) {
	t.Parallel()
	cases := []struct {
		apiVersion string
		kind       string
		paths      string
	}{
		{"batch/v1", "Job", ".spec.template .spec.completions .spec.podFailurePolicy .spec.backoffLimitPerIndex"},
		{"v1", "ConfigMap", ".immutable .data .binaryData"},
		{"v1", "Secret", ".immutable .data .stringData"},
		{"v1", "Pod", ".spec .spec.nodeName"},
	}
	for _, c := range cases {
		for path := range strings.SplitSeq(c.paths, " ") {
			gvk := schema.FromAPIVersionAndKind(c.apiVersion, c.kind)
			refused := &differ.DryRun{Refused: []differ.Cause{{Field: path[1:], Type: "FieldValueInvalid", Message: "field is immutable"}}}
			if path == ".spec.nodeName" {
				refused.Refused[0].Field = "spec"
			}
			t.Run(c.kind+path, func(t *testing.T) {
				t.Parallel()
				if got := changed(t, gvk, path, nil, false); got.Op != differ.OpUpdate {
					t.Errorf("without a dry run, it is %s, %s: %s %s", got.Op, got.State, got.Rule, got.Because)
				}
				if got := changed(t, gvk, path, refused, false); got.Rule != "immutable" || got.State != differ.StateHeld {
					t.Errorf("refused, it is %s, %s: %s %s", got.Op, got.State, got.Rule, got.Because)
				}
				if got := changed(t, gvk, path, refused, true); got.Op != differ.OpReplace {
					t.Errorf("refused and approved, it is %s, %s: %s %s", got.Op, got.State, got.Rule, got.Because)
				}
				gvk.Group, gvk.Version = "example.com", "v9"
				if got := changed(t, gvk, path, refused, true); got.Rule != "refused" || got.Op != differ.OpNone {
					t.Errorf("in another group, refused and approved, it is %s, %s: %s %s", got.Op, got.State, got.Rule, got.Because)
				}
			})
		}
	}
}
