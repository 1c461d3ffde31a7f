package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/chaos/webhook"
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
		{name: "a namespace is terminating", begin: s.terminate, says: []string{"Namespace plot-01 is being deleted"}},
		{name: "etcd is restored from the snapshot", begin: s.restoreSnapshot, later: true},
	}
}

// etcd returns the process of etcd and the folder of its data.
func (s *disasterFleet) etcd(ctx context.Context) (process.ID, string, error) {
	all, err := s.lab.Status(ctx, 0)
	if err != nil {
		return process.ID{}, "", err
	}
	for _, c := range all {
		for _, part := range c.Components {
			if part.Name == binaries.Etcd {
				id, err := process.Identify(part.PID)
				return id, c.Dir + "/etcd", err
			}
		}
	}
	return process.ID{}, "", errors.New("no etcd runs")
}

func nothing(context.Context) error { return nil }

// stopEtcd stops etcd for 6 s, while git changes.
func (s *disasterFleet) stopEtcd(ctx context.Context) (func(context.Context) error, error) {
	id, _, err := s.etcd(ctx)
	if err != nil {
		return nil, err
	}
	if err := id.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	err = s.grow(ctx, s.rand, len(s.components))
	timer := time.NewTimer(6 * time.Second)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return func(context.Context) error { return id.Signal(syscall.SIGCONT) }, err
}

// takeSnapshot copies etcd's data while the cluster is stopped.
func (s *disasterFleet) takeSnapshot(ctx context.Context) (func(context.Context) error, error) {
	s.snapshot = s.path("snapshot")
	_, dir, err := s.etcd(ctx)
	if err != nil {
		return nil, err
	}
	err = s.offline(ctx, func() error {
		return os.CopyFS(s.snapshot, os.DirFS(dir))
	})
	return nothing, err
}

// restoreSnapshot restores etcd's data: records, objects, statuses and resourceVersions
// go back to an older state. Objects that were deleted since exist again, and may be
// deleted once more.
//
// The hub is restored, too. The status of a settled component would stay old if Keelson
// didn't compare it.
func (s *disasterFleet) restoreSnapshot(ctx context.Context) (func(context.Context) error, error) {
	_, dir, err := s.etcd(ctx)
	if err != nil {
		return nil, err
	}
	before, err := s.targets(ctx)
	if err != nil {
		return nil, err
	}
	err = s.offline(ctx, func() error {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove etcd's data: %w", err)
		}
		s.ledger.Restored(time.Now())
		return os.CopyFS(dir, os.DirFS(s.snapshot))
	})
	return func(ctx context.Context) error {
		return until(ctx, recovery, func(ctx context.Context) error {
			after, err := s.targets(ctx)
			if err != nil {
				return err
			}
			for name, want := range before {
				if got := after[name]; got != want {
					return fmt.Errorf("the hub shows target %q of %s, and before it was set back it showed %q", got, name, want)
				}
			}
			return nil
		})
	}, err
}

// offline calls do while all components of the cluster are stopped. A component that
// isn't restarted would keep the old state in its caches.
func (s *disasterFleet) offline(ctx context.Context, do func() error) error {
	if err := s.lab.Stop(ctx, target); err != nil {
		return err
	}
	if err := do(); err != nil {
		return fmt.Errorf("copy etcd's data: %w", err)
	}
	return s.lab.Start(ctx, target)
}

// breakAPI registers an API without a server, and restarts the controller, whose
// discovery is then incomplete. No object of the fleet belongs to that API.
func (s *disasterFleet) breakAPI(ctx context.Context) (func(context.Context) error, error) {
	config, err := s.admin()
	if err != nil {
		return nil, err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	services := s.client.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	name := "v1." + brokenGroup
	_, err = services.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": brokenGroup, "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "default", "name": "missing"},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("register a broken API: %w", err)
	}
	err = until(ctx, recovery, func(context.Context) error {
		if _, _, err := disco.ServerGroupsAndResources(); !discovery.IsGroupDiscoveryFailedError(err) {
			return fmt.Errorf("discovery is whole: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := services.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("remove the broken API: %w", err)
		}
		return s.restart(ctx)
	}, s.restart(ctx)
}

// webhook registers a webhook for all ConfigMaps of the fleet.
func (s *disasterFleet) webhook(mode webhook.Mode) func(context.Context) (func(context.Context) error, error) {
	return func(ctx context.Context) (func(context.Context) error, error) {
		s.hook.Use(mode)
		hooks := s.client.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"})
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal(s.hookConfiguration(), &u.Object); err != nil {
			return nil, fmt.Errorf("encode a webhook: %w", err)
		}
		if _, err := hooks.Create(ctx, u, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("register a webhook: %w", err)
		}
		before := s.hook.Asked()
		// The API server uses a new webhook only after a short delay.
		probe := func(ctx context.Context) error {
			if s.hook.Asked() > before {
				return nil
			}
			_, err := s.client.Resource(fixtureKinds()["ConfigMap"]).Namespace("default").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{"name": "probe", "annotations": map[string]any{}, "labels": map[string]any{"chaos.example/probe": "yes"}},
			}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return fmt.Errorf("the webhook is not asked yet: %w", err)
		}
		err := until(ctx, recovery, probe)
		return func(ctx context.Context) error {
			if err := hooks.Delete(ctx, hookName, metav1.DeleteOptions{}); err != nil {
				return fmt.Errorf("remove the webhook: %w", err)
			}
			return nil
		}, err
	}
}

func (s *disasterFleet) hookConfiguration() []byte {
	sideEffects, policy, timeout, scope := "None", "Fail", 2, "Namespaced"
	data, err := json.Marshal(map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": map[string]any{"name": hookName},
		"webhooks": []any{map[string]any{
			"name": hookName, "sideEffects": sideEffects, "failurePolicy": policy, "timeoutSeconds": timeout,
			"admissionReviewVersions": []string{"v1"},
			"clientConfig":            map[string]any{"url": s.hook.URL, "caBundle": s.hook.CA},
			"rules": []any{map[string]any{
				"apiGroups": []string{""}, "apiVersions": []string{"v1"}, "resources": []string{"configmaps"}, "operations": []string{"CREATE", "UPDATE"}, "scope": scope,
			}},
			"namespaceSelector": map[string]any{"matchExpressions": []any{map[string]any{
				"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": []string{"kube-system", "kube-public"},
			}}},
		}},
	})
	if err != nil {
		panic(fmt.Sprintf("encode a webhook: %v", err)) // plain values
	}
	return data
}

// stuck removes an object from git that a finalizer keeps in the cluster.
func (s *disasterFleet) stuck(ctx context.Context) (func(context.Context) error, error) {
	p := s.components[0]
	if !p.extra {
		p.extra = true
		if err := s.push(ctx, s.repo, map[string]string{"clusters/" + target + "/" + p.name + ".yaml": p.metaConfig()}); err != nil {
			return nil, err
		}
		if _, err := s.converged(ctx, recovery); err != nil {
			return nil, err
		}
	}
	if err := s.finalizer(ctx, p.name, "extra", stuckFinalizer); err != nil {
		return nil, err
	}
	p.extra, p.still = false, true // still, so that grow doesn't add the object to git again
	s.ledger.MayDelete(time.Now(), "git no longer has it", oracle.Object{Resource: "configmaps", Namespace: p.name, Name: "extra"})
	err := s.push(ctx, s.repo, map[string]string{"clusters/" + target + "/" + p.name + ".yaml": p.metaConfig()})
	return func(ctx context.Context) error {
		p.still = false
		return s.finalizer(ctx, p.name, "extra", "")
	}, err
}

// finalizer sets the only finalizer of a ConfigMap, or removes all finalizers. It retries
// because the garbage collector may remove its own finalizer at the same time.
func (s *disasterFleet) finalizer(ctx context.Context, namespace, name, finalizer string) error {
	maps := s.client.Resource(fixtureKinds()["ConfigMap"]).Namespace(namespace)
	return until(ctx, recovery, func(ctx context.Context) error {
		body := `{"metadata":{"finalizers":null}}`
		if finalizer != "" {
			body = `{"metadata":{"finalizers":["` + finalizer + `"]}}`
		}
		_, err := maps.Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: "stuck"})
		if apierrors.IsNotFound(err) && finalizer == "" {
			return nil
		}
		if err != nil {
			return fmt.Errorf("finalizer of %s/%s: %w", namespace, name, err)
		}
		return nil
	})
}

// terminate deletes a namespace whose deletion a finalizer blocks.
func (s *disasterFleet) terminate(ctx context.Context) (func(context.Context) error, error) {
	namespace := s.components[1].name
	maps := s.client.Resource(fixtureKinds()["ConfigMap"]).Namespace(namespace)
	_, err := maps.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "anchor", "finalizers": []any{stuckFinalizer}},
	}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create what keeps the namespace: %w", err)
	}
	namespaces := s.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	if err := namespaces.Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		return nil, fmt.Errorf("delete the namespace: %w", err)
	}
	return func(ctx context.Context) error {
		if err := s.finalizer(ctx, namespace, "anchor", ""); err != nil {
			return err
		}
		return until(ctx, recovery, func(ctx context.Context) error {
			u, err := namespaces.Get(ctx, namespace, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err) || err == nil && u.GetDeletionTimestamp() == nil:
				return nil
			case err != nil:
				return fmt.Errorf("read the namespace: %w", err)
			}
			return errors.New("the namespace is there: " + strings.Join(u.GetFinalizers(), ", "))
		})
	}, nil
}

// renamed writes a copy of a kubeconfig with a context called target.
func (s *disasterFleet) renamed(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	return s.world.kubeconfig("direct", content)
}
