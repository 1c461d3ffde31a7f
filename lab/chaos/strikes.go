package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/chaos/webhook"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

const (
	stuckFinalizer = "chaos.example/stuck"
	hookName       = "hurts.chaos.example"
	brokenGroup    = "broken.chaos.example"
)

// disasters returns the disasters in order. The snapshot is taken first and restored
// last.
func (s *disasterFleet) disasters() []disaster {
	return []disaster{
		{name: "a snapshot of etcd is taken", begin: s.takeSnapshot},
		{name: "etcd is stopped for 6 s", begin: s.stopEtcd, later: true},
		{name: "an aggregated API is broken", begin: s.breakAPI},
		{name: "a webhook does not answer", begin: s.webhook(webhook.Mode{Hang: true}), says: []string{hookName}},
		{name: "a webhook denies", begin: s.webhook(webhook.Mode{Deny: "not on a Friday"}), says: []string{hookName, "not on a Friday"}},
		{name: "a webhook adds to objects", begin: s.webhook(webhook.Mode{
			Patch: `[{"op":"add","path":"/metadata/annotations","value":{"chaos.example/seen":"yes"}}]`,
		})},
		{name: "a finalizer keeps what is pruned", begin: s.stuck, says: []string{"extra", "delet"}},
		{name: "a namespace is terminating", begin: s.terminate, says: []string{"Namespace outage-01 is being deleted"}},
		{name: "etcd is restored from the snapshot", begin: s.restoreSnapshot, later: true},
	}
}

// etcd returns the process of etcd and the folder of its data.
func (s *disasterFleet) etcd(ctx context.Context) (process.ID, string) {
	for _, c := range must.Get(s.lab.Status(ctx, 0)) {
		for _, part := range c.Components {
			if part.Name == binaries.Etcd {
				return must.Get(process.Identify(part.PID)), c.Dir + "/etcd"
			}
		}
	}
	must.Failf("no etcd runs")
	return process.ID{}, ""
}

func nothing(context.Context) {}

// stopEtcd stops etcd for 6 s, while git changes.
func (s *disasterFleet) stopEtcd(ctx context.Context) func(context.Context) {
	id, _ := s.etcd(ctx)
	must.Do(id.Signal(syscall.SIGSTOP))
	s.changeGit(ctx, s.rand, len(s.components))
	must.Sleep(ctx, 6*time.Second)
	return func(context.Context) { must.Do(id.Signal(syscall.SIGCONT)) }
}

// takeSnapshot copies etcd's data while the cluster is stopped.
func (s *disasterFleet) takeSnapshot(ctx context.Context) func(context.Context) {
	s.snapshot = s.path("snapshot")
	_, dir := s.etcd(ctx)
	s.offline(ctx, func() { must.Do(os.CopyFS(s.snapshot, os.DirFS(dir))) })
	return nothing
}

// restoreSnapshot restores etcd's data: records, objects, statuses and resourceVersions
// go back to an older state. Objects that were deleted since exist again, and may be
// deleted once more.
//
// The hub is restored, too. The status of a settled component would stay old if Keelson
// didn't compare it.
func (s *disasterFleet) restoreSnapshot(ctx context.Context) func(context.Context) {
	_, dir := s.etcd(ctx)
	before := s.targets(ctx)
	s.offline(ctx, func() {
		must.Do(os.RemoveAll(dir))
		s.ledger.Restored(time.Now())
		must.Do(os.CopyFS(dir, os.DirFS(s.snapshot)))
	})
	return func(ctx context.Context) {
		until(ctx, recovery, func(ctx context.Context) {
			after := s.targets(ctx)
			for name, want := range before {
				if got := after[name]; got != want {
					must.Failf("the hub shows target %q of %s, and before it was set back it showed %q", got, name, want)
				}
			}
		})
	}
}

// offline calls do while all components of the cluster are stopped. A component that
// isn't restarted would keep the old state in its caches.
func (s *disasterFleet) offline(ctx context.Context, do func()) {
	must.Do(s.lab.Stop(ctx, target))
	do()
	must.Do(s.lab.Start(ctx, target))
}

// breakAPI registers an API without a server, and restarts the controller, whose
// discovery is then incomplete. No object of the fleet belongs to that API.
func (s *disasterFleet) breakAPI(ctx context.Context) func(context.Context) {
	disco := must.Get(discovery.NewDiscoveryClientForConfig(s.world.client(cluster.Admin)))
	services := s.client.Resource(harness.Resource("apiregistration.k8s.io/v1/apiservices"))
	name := "v1." + brokenGroup
	must.Get(services.Create(ctx, object(`apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: `+name+`}
spec:
  {group: `+brokenGroup+`, version: v1, groupPriorityMinimum: 100, versionPriority: 100,
   insecureSkipTLSVerify: true, service: {namespace: default, name: missing}}
`), metav1.CreateOptions{}))
	until(ctx, recovery, func(context.Context) {
		if _, _, err := disco.ServerGroupsAndResources(); !discovery.IsGroupDiscoveryFailedError(err) {
			must.Failf("discovery is whole: %w", err)
		}
	})
	s.restart(ctx)
	return func(ctx context.Context) {
		must.Do(services.Delete(ctx, name, metav1.DeleteOptions{}))
		s.restart(ctx)
	}
}

// webhook registers a webhook for all ConfigMaps of the fleet.
func (s *disasterFleet) webhook(mode webhook.Mode) func(context.Context) func(context.Context) {
	return func(ctx context.Context) func(context.Context) {
		s.hook.Use(mode)
		hooks := s.client.Resource(harness.Resource("admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"))
		must.Get(hooks.Create(ctx, object(fmt.Sprintf(hookConfiguration, hookName, s.hook.URL, base64.StdEncoding.EncodeToString(s.hook.CA))), metav1.CreateOptions{}))
		before := s.hook.Asked()
		// The API server uses a new webhook only after a short delay.
		tryWrite := func(ctx context.Context) {
			if s.hook.Asked() > before {
				return
			}
			trial := object(`{apiVersion: v1, kind: ConfigMap, metadata: {name: trial, annotations: {}, labels: {chaos.example/trial: "yes"}}}`)
			_, err := s.client.Resource(fixtureKinds()["ConfigMap"]).Namespace("default").Create(ctx, trial, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			must.Failf("the webhook is not asked yet: %w", err)
		}
		until(ctx, recovery, tryWrite)
		return func(ctx context.Context) { must.Do(hooks.Delete(ctx, hookName, metav1.DeleteOptions{})) }
	}
}

// hookConfiguration registers a webhook with its name, URL and CA.
const hookConfiguration = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: %[1]s}
webhooks:
- name: %[1]s
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 2
  admissionReviewVersions: [v1]
  clientConfig: {url: %[2]q, caBundle: %[3]s}
  rules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE, UPDATE], scope: Namespaced}]
  namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, kube-public]}]}
`

// stuck removes an object from git that a finalizer keeps in the cluster.
func (s *disasterFleet) stuck(ctx context.Context) func(context.Context) {
	p := s.components[0]
	if !p.extra {
		p.extra = true
		s.push(ctx, s.repo, map[string]string{p.path(): p.metaConfig()})
		s.converged(ctx, recovery)
	}
	s.finalizer(ctx, p.name, "extra", stuckFinalizer)
	p.extra, p.still = false, true // still, so that grow doesn't add the object to git again
	s.ledger.MayDelete(time.Now(), "git no longer has it", oracle.Object{Resource: "configmaps", Namespace: p.name, Name: "extra"})
	s.push(ctx, s.repo, map[string]string{p.path(): p.metaConfig()})
	return func(ctx context.Context) {
		p.still = false
		s.finalizer(ctx, p.name, "extra", "")
	}
}

// finalizer sets the only finalizer of a ConfigMap, or removes all finalizers. It retries
// because the garbage collector may remove its own finalizer at the same time.
func (s *disasterFleet) finalizer(ctx context.Context, namespace, name, finalizer string) {
	maps := s.client.Resource(fixtureKinds()["ConfigMap"]).Namespace(namespace)
	body := `{"metadata":{"finalizers":null}}`
	if finalizer != "" {
		body = `{"metadata":{"finalizers":["` + finalizer + `"]}}`
	}
	until(ctx, recovery, func(ctx context.Context) {
		_, err := maps.Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: "stuck"})
		if err != nil && (finalizer != "" || !apierrors.IsNotFound(err)) {
			must.Failf("finalizer of %s/%s: %w", namespace, name, err)
		}
	})
}

// terminate deletes a namespace whose deletion a finalizer blocks.
func (s *disasterFleet) terminate(ctx context.Context) func(context.Context) {
	namespace := s.components[1].name
	maps := s.client.Resource(fixtureKinds()["ConfigMap"]).Namespace(namespace)
	anchor := object("{apiVersion: v1, kind: ConfigMap, metadata: {name: anchor, finalizers: [" + stuckFinalizer + "]}}")
	must.Get(maps.Create(ctx, anchor, metav1.CreateOptions{}))
	namespaces := s.client.Resource(harness.Resource("v1/namespaces"))
	must.Do(namespaces.Delete(ctx, namespace, metav1.DeleteOptions{}))
	return func(ctx context.Context) {
		s.finalizer(ctx, namespace, "anchor", "")
		until(ctx, recovery, func(ctx context.Context) {
			u, err := namespaces.Get(ctx, namespace, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return
			}
			if must.Do(err); u.GetDeletionTimestamp() != nil {
				must.Failf("the namespace is there, with finalizers %v", u.GetFinalizers())
			}
		})
	}
}
