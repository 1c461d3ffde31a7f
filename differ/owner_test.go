package differ_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// The owner of a field decides. A person's change is undone, and so is a change under the name of a
// controller that never sets such a field. A change by an unknown manager waits.
func TestManagers(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why      string
		managers []string
		want     differ.Action
	}{
		"Persons": {
			why: "Tools that people use.", want: differ.ActionRestore,
			managers: []string{
				"kubectl", "kubectl-edit", "kubectl-client-side-apply", "k9s", "Lens", "LensPro", "lens", "lens-desktop", "freelens", "freelens-core",
				"openlens", "headlamp", "headlamp-server", "dashboard", "dashboard-api", "kubernetes-dashboard", "kubernetes-dashboard-api",
				"Mozilla", "oc", "octant", "rancher",
			},
		},
		"Controllers": {
			why: "What a cluster is made of, and what scales, injects and rolls out: none of them writes to a ConfigMap of others.", want: differ.ActionRestore,
			managers: []string{
				"kube-controller-manager", "cloud-controller-manager", "kube-scheduler", "kubelet", "kube-apiserver", "horizontal-pod-autoscaler",
				"vpa-recommender", "vpa-updater", "vertical-pod-autoscaler", "vertical-pod-autoscaler-admission", "keda", "keda-operator",
				"cluster-autoscaler", "karpenter", "cainjector", "cert-manager", "cert-manager-cainjector", "kruise-manager",
				"argo-rollouts", "argo-rollouts-controller", "rollouts-controller",
			},
		},
		"Unknown": {
			why: "A name that only begins or ends like a known one, or holds it, is another.", want: differ.ActionHold,
			managers: []string{
				"my-operator", "", "my-kubectl", "k9s2", "ocm", "rancher-agent", "octants", "my-lens", "kubelet2", "my-keda", "vpa", "karpenter-core",
				"cainjectors", "kube-scheduler-2", "kube-apiserver-2", "keelson2", "my-keelson", "kubernetes-dash", "helm", "flux", "argocd-controller",
			},
		},
	}
	configMap := func(v string) object {
		return object{"apiVersion": "v1", "kind": "ConfigMap", "data": object{"a": v}, "metadata": object{
			"name": "c", "labels": object{v1alpha1.LabelComponent: component},
		}}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, manager := range c.managers {
				live := configMap("b")
				live["metadata"].(object)["managedFields"] = list{
					object{"manager": manager, "operation": "Update", "fieldsV1": object{"f:data": object{"f:a": object{}}}},
				}
				plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{
					ID: differ.ID{Kind: "ConfigMap", Name: "c"}, Recorded: configMap("a"), Target: &renderer.Object{Content: configMap("a")}, Live: live,
				}}, differ.Policy{Component: component})
				if err != nil {
					t.Fatal(err)
				}
				if got := plan.Changes[0].Fields[0]; got.Action != c.want {
					t.Errorf("%s What %q has set: %s, want %s", c.why, manager, got.Action, c.want)
				}
			}
		})
	}
}

// A controller keeps the fields that it is known to set, on the kinds on which it sets them, and no
// other field: any client may use its name.
func TestClaims(t *testing.T) {
	t.Parallel()
	const kept, restored, held = differ.ActionKeep, differ.ActionRestore, differ.ActionHold
	cases := []struct {
		why                  string
		manager, subresource string
		apiVersion, kind     string
		path                 []string
		want                 differ.Action
	}{
		{"an autoscaler's way", "kube-controller-manager", "scale", "apps/v1", "Deployment", []string{"spec", "replicas"}, kept},
		{"of any name", "my-scaler", "scale", "apps/v1", "StatefulSet", []string{"spec", "replicas"}, kept},
		{"but a person's", "kubectl", "scale", "apps/v1", "Deployment", []string{"spec", "replicas"}, restored},
		{"no autoscaler takes another way", "kube-controller-manager", "", "apps/v1", "Deployment", []string{"spec", "replicas"}, restored},
		{"another subresource sets no replicas", "kube-controller-manager", "status", "apps/v1", "Deployment", []string{"spec", "replicas"}, restored},
		{"nor does it for an unknown manager", "my-scaler", "status", "apps/v1", "Deployment", []string{"spec", "replicas"}, held},
		{"scale sets nothing else", "kube-controller-manager", "scale", "apps/v1", "Deployment", []string{"spec", "paused"}, restored},
		{"scale sets nothing else for an unknown manager", "my-scaler", "scale", "apps/v1", "Deployment", []string{"spec", "paused"}, held},
		{"revisions", "kube-controller-manager", "", "apps/v1", "Deployment", []string{"metadata", "annotations", "deployment.kubernetes.io/revision"}, kept},
		{"an annotation that only begins like it", "kube-controller-manager", "", "apps/v1", "Deployment", []string{"metadata", "annotations", "deployment.kubernetes.iox/a"}, restored},
		{"a label is no annotation", "kube-controller-manager", "", "apps/v1", "Deployment", []string{"metadata", "labels", "deployment.kubernetes.io/revision"}, restored},
		{"on another kind", "kube-controller-manager", "", "apps/v1", "DaemonSet", []string{"metadata", "annotations", "deployment.kubernetes.io/revision"}, restored},
		{"a claim is bound", "kube-controller-manager", "", "v1", "PersistentVolumeClaim", []string{"spec", "volumeName"}, kept},
		{"of a pod's node", "kube-scheduler", "", "v1", "PersistentVolumeClaim", []string{"metadata", "annotations", "volume.kubernetes.io/selected-node"}, kept},
		{"a claim's class is the user's", "kube-controller-manager", "", "v1", "PersistentVolumeClaim", []string{"spec", "storageClassName"}, restored},
		{"a certificate", "cert-manager-certificates-issuing", "", "v1", "Secret", []string{"data", "tls.crt"}, kept},
		{"another key of it", "cert-manager-certificates-issuing", "", "v1", "Secret", []string{"data", "password"}, restored},
		{"pods that are gone", "kruise-manager", "", "apps.kruise.io/v1alpha1", "CloneSet", []string{"spec", "scaleStrategy", "podsToDelete"}, kept},
		{"shares of the traffic", "rollouts-controller", "", "networking.istio.io/v1", "VirtualService", []string{"spec", "http"}, kept},
		{"hosts are no share", "rollouts-controller", "", "networking.istio.io/v1", "VirtualService", []string{"spec", "hosts"}, restored},
		{"a workload that is rolled out", "argo-rollouts", "", "apps/v1", "Deployment", []string{"spec", "replicas"}, kept},
		{"a canary's weight", "argo-rollouts", "", "networking.k8s.io/v1", "Ingress", []string{"metadata", "annotations", "nginx.ingress.kubernetes.io/canary-weight"}, kept},
	}
	for _, c := range cases {
		t.Run(c.manager+" "+c.subresource+" "+c.kind+" "+strings.Join(c.path, " "), func(t *testing.T) {
			t.Parallel()
			with := func(v any) object {
				o := object{"apiVersion": c.apiVersion, "kind": c.kind, "metadata": object{"name": "c", "namespace": "n", "labels": object{v1alpha1.LabelComponent: component}}}
				in, last := o, len(c.path)-1
				for _, name := range c.path[:last] {
					next, ok := in[name].(object)
					if !ok {
						next = object{}
						in[name] = next
					}
					in = next
				}
				in[c.path[last]] = v
				return o
			}
			was, is := values(c.path)
			fields := object{}
			for _, name := range slices.Backward(c.path) {
				fields = object{"f:" + name: fields}
			}
			live := with(is)
			live["metadata"].(object)["managedFields"] = list{object{"manager": c.manager, "subresource": c.subresource, "operation": "Update", "fieldsV1": fields}}
			target := with(was)
			id, _ := differ.Identify(target)
			plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{{ID: id, Recorded: with(was), Target: &renderer.Object{Content: target}, Live: live}},
				differ.Policy{Component: component})
			if err != nil {
				t.Fatal(err)
			}
			if got := plan.Changes[0].Fields; len(got) != 1 || got[0].Action != c.want {
				t.Errorf("%s: %+v, want one field, and %s", c.why, got, c.want)
			}
		})
	}
}

// values returns two values that a field may have.
func values(path []string) (was, is any) {
	switch path[len(path)-1] {
	case "replicas":
		return int64(2), int64(5)
	case "paused":
		return false, true
	case "podsToDelete":
		return list{"a", "b"}, list{"a"}
	case "http":
		return list{object{"name": "a"}}, list{object{"name": "b"}}
	case "hosts":
		return list{"a"}, list{"b"}
	case "tls.crt", "password":
		return "YQ==", "Yg=="
	}
	return "a", "b"
}
