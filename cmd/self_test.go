package cmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// selfFleet delivers components/keelson, as it is shipped, to its own hub.
func selfFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), kubeconfig: kubeconfig, rename: strings.NewReplacer()}
	for name, content := range map[string]string{
		"fleet.yaml":                 "apiVersion: keelson.io/v1alpha1\nkind: Fleet\nname: self\n",
		"clusters/prod/cluster.yaml": "apiVersion: keelson.io/v1alpha1\nkind: Cluster\nconnection: {hub: true}\n",
		"clusters/prod/keelson.yaml": "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v0.1.0\nvalues: {repo: https://git.example/fleet.git, webhook: {secret: hook}}\n",
	} {
		f.write(name, content)
	}
	f.git("init", "-q", "-b", "main")
	if err := os.CopyFS(filepath.Join(f.dir, "components", "keelson"), os.DirFS("../components/keelson")); err != nil {
		t.Fatal(err)
	}
	f.commit()
	f.tag("keelson/v0.1.0")
	return f
}

// TestShippedComponent: what components/keelson says is complete without a
// cluster, and a fleet that forgets the repository is told so.
func TestShippedComponent(t *testing.T) {
	t.Parallel()
	f := selfFleet(t)
	f.keelson("validate").want(t, 0)
	f.keelson("render", "prod", "keelson").want(t, 0).says(t,
		"readOnlyRootFilesystem: true", "runAsNonRoot: true", "--webhook-listen=:9292", "image: ghcr.io/keelson-io/keelson:v0.1.0",
		"kind: PodDisruptionBudget", "kind: NetworkPolicy", "- port: webhook\n").saysNot(t, "--egress", "- Egress", "- from:")
	f.keelson("render", "prod", "keelson", "-a", "monitoring.coreos.com/v1/ServiceMonitor").want(t, 0).says(t,
		"kind: ServiceMonitor", "interval: 30s").saysNot(t, "--trace-endpoint")
	f.edit("clusters/prod/keelson.yaml", "repo:", "traces: {endpoint: 'http://collector:4318'}, env: [{name: OTEL_TRACES_SAMPLER, value: traceidratio}], repo:")
	f.commit()
	f.keelson("validate").want(t, 0)
	f.keelson("render", "prod", "keelson").want(t, 0).says(t, "--trace-endpoint=http://collector:4318", "value: traceidratio").saysNot(t, "kind: ServiceMonitor")
	f.edit("clusters/prod/keelson.yaml", "repo:", "egress: ['prometheus:9090', '*.chat.example'], networkPolicy: {metricsFrom: [{namespaceSelector: {}}], egress: [{ports: [{port: 443}]}]}, repo:")
	f.commit()
	f.keelson("validate").want(t, 0)
	f.keelson("render", "prod", "keelson").want(t, 0).says(t, "--egress=prometheus:9090,*.chat.example", "- Egress", "- from:\n")
	f.edit("clusters/prod/keelson.yaml", "http://collector", "http://me:secret@collector")
	f.commit()
	f.keelson("validate").want(t, 1).says(t, "traces")
	f.edit("clusters/prod/keelson.yaml", "me:secret@", "")
	f.edit("clusters/prod/keelson.yaml", "repo:", "forge: {kind: gitea, url: 'https://git.example', repository: platform/fleet}, repo:")
	f.commit()
	f.keelson("validate").want(t, 1).says(t, "forge", "secret")
	f.edit("clusters/prod/keelson.yaml", "platform/fleet}", "platform/fleet, secret: robot}")
	f.commit()
	f.keelson("validate").want(t, 0)
	f.keelson("render", "prod", "keelson").want(t, 0).says(t, "--forge=gitea", "--forge-url=https://git.example",
		"--forge-repository=platform/fleet", "--forge-token-file=/etc/keelson/forge/token", "secretName: robot").saysNot(t, "--promote")
	f.edit("clusters/prod/keelson.yaml", "repo:", "promotion: {secret: writer, author: 'Robot <robot@example.com>'}, repo:")
	f.commit()
	f.keelson("validate").want(t, 0)
	f.keelson("render", "prod", "keelson").want(t, 0).says(t, "--promote\n", "--push-credentials=/etc/keelson/push/logins.yaml",
		"--push-author=Robot <robot@example.com>", "secretName: writer")
	f.edit("clusters/prod/keelson.yaml", "repo: https://git.example/fleet.git, ", "")
	f.commit()
	f.keelson("validate").want(t, 1).says(t, "repo")
}

// TestDeliversItself: an administrator applies Keelson once, with the roles that
// keelson rbac prints; from then on its own service account can do all that it has to,
// and is refused nothing: not even to deliver itself.
func TestDeliversItself(t *testing.T) {
	t.Parallel()
	a := newAudited(t)
	f := selfFleet(t)
	f.kubeconfig = a.admin
	shipped := grantedByObjects(t, f.keelson("render", "prod", "keelson", "-o", "json").want(t, 0).out)
	printed := anywhere(granted(t, f.keelson("rbac", "--hub").want(t, 0).out))
	for r := range printed {
		if !shipped[r] {
			t.Errorf("keelson rbac --hub prints %+v, and the chart does not grant it", r)
		}
	}
	for r := range shipped {
		if !printed[r] {
			t.Errorf("the chart grants %+v, and keelson rbac --hub does not print it", r)
		}
	}
	a.grant(f.keelson("rbac", "prod").want(t, 0).out)
	f.keelson("apply", "prod", "--yes", "--no-wait").want(t, 0)

	token, err := a.kubernetes.CoreV1().ServiceAccounts("keelson-system").CreateToken(t.Context(), "keelson",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(a.admin)
	if err != nil {
		t.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	f.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, f.kubeconfig); err != nil {
		t.Fatal(err)
	}
	f.edit("clusters/prod/keelson.yaml", "webhook:", "replicas: 3, webhook:")
	f.commit()
	a.controls(f, 1)
	deployment, err := a.kubernetes.AppsV1().Deployments("keelson-system").Get(t.Context(), "keelson", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := *deployment.Spec.Replicas; got != 3 {
		t.Errorf("the Deployment has %d replicas: Keelson did not deliver itself", got)
	}
	for _, v := range deployment.Spec.Template.Spec.Volumes {
		if v.Secret != nil && v.Secret.SecretName == "hook" && *v.Secret.DefaultMode != 0o400 {
			t.Errorf("the secrets of webhooks have mode %o", *v.Secret.DefaultMode)
		}
	}
	if got := deployment.Spec.Template.Spec.SecurityContext.SeccompProfile.Type; got != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("seccomp profile %s", got)
	}
}

// anywhere are rights without their places.
func anywhere(rights map[right]bool) map[right]bool {
	out := map[right]bool{}
	for r := range rights {
		r.namespace = ""
		out[r] = true
	}
	return out
}

// TestWorkloadComponent: what components/workload-controllers says is complete without a
// cluster, asks for no right by a wildcard, and says no to values that can't be meant.
func TestWorkloadComponent(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, dir: t.TempDir(), kubeconfig: kubeconfig, rename: strings.NewReplacer()}
	const component = "workload-controllers"
	for name, content := range map[string]string{
		"fleet.yaml":                              "apiVersion: keelson.io/v1alpha1\nkind: Fleet\nname: self\n",
		"clusters/prod/cluster.yaml":              "apiVersion: keelson.io/v1alpha1\nkind: Cluster\nconnection: {hub: true}\n",
		"clusters/prod/workload-controllers.yaml": "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v0.1.0\nvalues: {replicas: 1}\n",
	} {
		f.write(name, content)
	}
	f.git("init", "-q", "-b", "main")
	if err := os.CopyFS(filepath.Join(f.dir, "components", component), os.DirFS("../components/"+component)); err != nil {
		t.Fatal(err)
	}
	f.commit()
	f.tag(component + "/v0.1.0")
	f.keelson("validate").want(t, 0)
	f.keelson("render", "prod", component).want(t, 0).says(t,
		"readOnlyRootFilesystem: true", "runAsNonRoot: true", "kind: NetworkPolicy", "- port: webhooks\n", "image: ghcr.io/keelson-io/keelson:v0.1.0", "--webhook-service=keelson-system/workload-controllers",
		"name: clonesets.apps.kruise.io", "name: daemonsets.apps.kruise.io", "failurePolicy: Ignore", "failurePolicy: Fail").
		saysNot(t, "kind: PodDisruptionBudget", "kind: ServiceMonitor", "caBundle", "--count-preparing-update", "--recreate-changed-claims", "--deployments")
	for right := range grantedByObjects(t, f.keelson("render", "prod", component, "-o", "json").want(t, 0).out) {
		if strings.Contains(fmt.Sprintf("%+v", right), "*") {
			t.Errorf("a wildcard: %+v", right)
		}
	}
	f.edit("clusters/prod/workload-controllers.yaml", "replicas: 1", "replicas: 2, cloneSets: {countPreparingUpdate: true, recreateChangedClaims: true}, deployments: {enabled: false}, protection: {kinds: [{group: shop.example, resources: [carts]}]}")
	f.commit()
	f.keelson("render", "prod", component, "-a", "monitoring.coreos.com/v1/ServiceMonitor").want(t, 0).says(t,
		"kind: PodDisruptionBudget", "kind: ServiceMonitor", "shop.example", "--count-preparing-update\n", "--recreate-changed-claims\n", "--deployments=false\n")
	f.edit("clusters/prod/workload-controllers.yaml", "replicas: 2", `webhook: {clientCA: "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"}, replicas: 2`)
	f.commit()
	f.keelson("render", "prod", component).want(t, 0).says(t, "--webhook-client-ca=/etc/keelson/client-ca/ca.crt", "--webhook-client-name=kube-apiserver", "name: workload-controllers-client-ca")
	for before, after := range map[string]string{"shop.example": "'*'", "-----BEGIN CERTIFICATE-----": "a key", "[carts]": "['*']", "replicas: 2": "replicas: 0"} {
		f.edit("clusters/prod/workload-controllers.yaml", before, after)
		f.commit()
		f.keelson("validate").want(t, 1).says(t, "clusters/prod/workload-controllers.yaml")
		f.edit("clusters/prod/workload-controllers.yaml", after, before)
	}
}
