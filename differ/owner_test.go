package differ_test

import (
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// Who has set a field decides what becomes of it: what a person did is undone,
// what a controller of the cluster did stays, and what somebody unknown did waits.
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
			why: "What a cluster is made of, and what scales, injects and rolls out.", want: differ.ActionKeep,
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
