package differ_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// benchmarkDeployment has about 60 leaf fields, like that of an add-on.
const benchmarkDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: coredns
  namespace: kube-system
  labels: {keelson.io/component: web, app.kubernetes.io/name: coredns, app.kubernetes.io/version: "1.12.0"}
  annotations: {example.com/owner: platform}
spec:
  replicas: 2
  revisionHistoryLimit: 3
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1, maxSurge: 25%}}
  selector: {matchLabels: {app.kubernetes.io/name: coredns}}
  template:
    metadata:
      labels: {app.kubernetes.io/name: coredns}
      annotations: {checksum/config: 0123456789abcdef}
    spec:
      priorityClassName: system-cluster-critical
      serviceAccountName: coredns
      dnsPolicy: Default
      terminationGracePeriodSeconds: 30
      nodeSelector: {kubernetes.io/os: linux}
      tolerations: [{key: CriticalAddonsOnly, operator: Exists}]
      securityContext: {seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: coredns
        image: registry.k8s.io/coredns/coredns:v1.12.0
        imagePullPolicy: IfNotPresent
        args: [-conf, /etc/coredns/Corefile]
        resources: {limits: {memory: 170Mi, cpu: 1000m}, requests: {cpu: 100m, memory: 70Mi}}
        env:
        - {name: GOMAXPROCS, value: "2"}
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        ports:
        - {containerPort: 53, name: dns, protocol: UDP}
        - {containerPort: 53, name: dns-tcp}
        - {containerPort: 9153, name: metrics}
        volumeMounts: [{name: config, mountPath: /etc/coredns, readOnly: true}, {name: tmp, mountPath: /tmp}]
        livenessProbe: {httpGet: {path: /health, port: 8080, scheme: HTTP}, initialDelaySeconds: 60, timeoutSeconds: 5, failureThreshold: 5}
        readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 10}
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}}
      volumes:
      - {name: config, configMap: {name: coredns, items: [{key: Corefile, path: Corefile}]}}
      - {name: tmp, emptyDir: {}}
`

func benchmarkState(b *testing.B) differ.State {
	target := objects(b, []byte(benchmarkDeployment))[0]
	live := runtime.DeepCopyJSON(target)
	meta := live["metadata"].(map[string]any)
	meta["uid"], meta["resourceVersion"], meta["generation"] = "u", "1", int64(1)
	live["status"] = map[string]any{"replicas": int64(2), "readyReplicas": int64(2)}
	return differ.State{
		ID:       differ.ID{Group: "apps", Kind: "Deployment", Namespace: "kube-system", Name: "coredns"},
		Recorded: runtime.DeepCopyJSON(target), Target: &renderer.Object{Content: target}, Live: live,
	}
}

func benchmarkPolicy(b *testing.B) differ.Policy {
	rules, err := differ.NewRules(differ.Scopes{})
	if err != nil {
		b.Fatal(err)
	}
	return differ.Policy{Component: component, Rules: rules, MaskKey: []byte("key")}
}

// BenchmarkCompareSettled compares an unchanged object, the usual case of a converged fleet. The
// goal is 100 µs and 60 KB.
func BenchmarkCompareSettled(b *testing.B) {
	states, policy, all := []differ.State{benchmarkState(b)}, benchmarkPolicy(b), schemas(b)
	b.ReportAllocs()
	for b.Loop() {
		plan, err := differ.Compare(b.Context(), all, states, policy)
		if err != nil || !plan.Settled() {
			b.Fatal(plan.Summary(), err)
		}
	}
}

// The same if the hashes show that nothing has changed since: the goal is 1 µs.
func BenchmarkCompareUnchanged(b *testing.B) {
	state, policy, all := benchmarkState(b), benchmarkPolicy(b), schemas(b)
	state.Inputs = differ.Inputs{Recorded: "1", Target: "a", Live: "u/1", Policy: policy.Hash(), Schema: "s"}
	state.Settled = state.Inputs
	states := []differ.State{state}
	b.ReportAllocs()
	for b.Loop() {
		plan, err := differ.Compare(b.Context(), all, states, policy)
		if err != nil || !plan.Settled() {
			b.Fatal(plan.Summary(), err)
		}
	}
}

// One field has changed in git.
func BenchmarkCompareChanged(b *testing.B) {
	state, policy, all := benchmarkState(b), benchmarkPolicy(b), schemas(b)
	state.Target.Content["spec"].(map[string]any)["replicas"] = int64(3)
	states := []differ.State{state}
	b.ReportAllocs()
	for b.Loop() {
		plan, err := differ.Compare(b.Context(), all, states, policy)
		if err != nil || plan.Count(differ.OpUpdate) != 1 {
			b.Fatal(plan.Summary(), err)
		}
	}
}

// dangerous is the Deployment of the benchmarks with edits on which as many rules fire as possible.
const dangerous = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, labels: {keelson.io/component: web}}
spec:
  replicas: 0
  paused: true
  minReadySeconds: 0
  strategy: {type: Recreate}
  selector: {matchLabels: {other: label}}
  template:
    metadata: {labels: {other: label}, annotations: {container.apparmor.security.beta.kubernetes.io/coredns: unconfined}}
    spec:
      hostNetwork: true
      hostPID: true
      hostIPC: true
      shareProcessNamespace: true
      hostUsers: true
      serviceAccountName: default
      automountServiceAccountToken: true
      dnsPolicy: ClusterFirst
      priorityClassName: ""
      nodeSelector: {kubernetes.io/os: linux, no/node: "true"}
      terminationGracePeriodSeconds: 0
      securityContext: {runAsUser: 0, runAsNonRoot: false, seccompProfile: {type: Unconfined}, sysctls: [{name: kernel.msgmax, value: "1"}]}
      containers:
      - name: coredns
        image: elsewhere.example/coredns
        imagePullPolicy: Never
        securityContext:
          {privileged: true, allowPrivilegeEscalation: true, readOnlyRootFilesystem: false, procMount: Unmasked, capabilities: {add: [ALL]}}
        resources: {limits: {memory: 10Mi}}
        ports: [{containerPort: 53, hostPort: 53, name: dns}]
        env: [{name: PASSWORD, value: secret}]
        volumeMounts: [{name: host, mountPath: /host}]
      volumes:
      - {name: host, hostPath: {path: /}}
`

// As many rules as possible fire on one object: the goal is 2 ms. rules is the number that fire.
func BenchmarkCompareDangerous(b *testing.B) {
	state, policy, all := benchmarkState(b), benchmarkPolicy(b), schemas(b)
	state.Target = &renderer.Object{Content: objects(b, []byte(dangerous))[0]}
	state.OwnersRead = true
	policy.OwnersByRecord, policy.AnyComponent = true, true
	states := []differ.State{state}
	rules := 0
	b.ReportAllocs()
	for b.Loop() {
		plan, err := differ.Compare(b.Context(), all, states, policy)
		if err != nil || plan.Count(differ.OpUpdate) > 0 {
			b.Fatal(plan.Summary(), err)
		}
		fired := map[string]bool{}
		for _, w := range plan.Changes[0].Warnings {
			fired[w.Rule] = true
		}
		for _, f := range plan.Changes[0].Fields {
			fired[f.Rule] = f.Rule != ""
		}
		rules = len(fired)
	}
	b.ReportMetric(float64(rules), "rules")
}

// Time is linear in the number of leaf fields: ns/leaf stays the same. This includes the worst
// case, in which every field differs.
func BenchmarkCompareLeaves(b *testing.B) {
	for _, changed := range []bool{false, true} {
		for _, leaves := range []int{10, 100, 1000, 10_000} {
			name := fmt.Sprintf("settled=%v/leaves=%d", !changed, leaves)
			b.Run(name, func(b *testing.B) { benchmarkLeaves(b, leaves, changed) })
		}
	}
}

func benchmarkLeaves(b *testing.B, leaves int, changed bool) {
	policy, all := benchmarkPolicy(b), schemas(b)
	widget := func(v string) map[string]any {
		keyed := make([]any, 0, leaves/2)
		for i := range leaves / 2 {
			keyed = append(keyed, map[string]any{"id": fmt.Sprint("item", i), "v": v})
		}
		return map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"name": "w", "namespace": "prod", "labels": map[string]any{v1alpha1.LabelComponent: component}},
			"spec":     map[string]any{"keyed": keyed},
		}
	}
	target := "a"
	if changed {
		target = "b"
	}
	states := []differ.State{{
		ID:       objectName(shape{apiVersion: "example.com/v1", kind: "Widget"}),
		Recorded: widget("a"), Live: widget("a"), Target: &renderer.Object{Content: widget(target)},
	}}
	b.ReportAllocs()
	for b.Loop() {
		plan, err := differ.Compare(b.Context(), all, states, policy)
		if err != nil || plan.Settled() == changed {
			b.Fatal(plan.Summary(), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(leaves), "ns/leaf")
}

// The cost of a cluster at first contact: the schemas of one group.
func BenchmarkBuiltInSchemas(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		s, err := differ.BuiltInSchemas(schema.GroupVersion{Group: "apps", Version: "v1"})
		if err != nil || len(s) != 1 {
			b.Fatal(err)
		}
	}
}
