package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

func deployments() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
}

func (s *smoke) deployment(ctx context.Context, cluster string) (*unstructured.Unstructured, error) {
	d, err := s.scene.dynamic(cluster)
	if err != nil {
		return nil, err
	}
	u, err := d.Resource(deployments()).Namespace(dnsNamespace).Get(ctx, dns, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cluster, err)
	}
	return u, nil
}

func (s *smoke) replicas(ctx context.Context, cluster string) (int64, error) {
	u, err := s.deployment(ctx, cluster)
	if err != nil {
		return 0, err
	}
	n, _, err := unstructured.NestedInt64(u.Object, "spec", "replicas")
	if err != nil {
		return 0, fmt.Errorf("%s: %w", cluster, err)
	}
	return n, nil
}

// checkDrift scales coredns with kubectl scale, and waits until Keelson reverts the change.
func (s *smoke) checkDrift(ctx context.Context) (string, error) {
	want, err := s.replicas(ctx, testing)
	if err != nil {
		return "", err
	}
	started := time.Now()
	if err := s.scale(ctx, testing, want+5); err != nil {
		return "", err
	}
	if err := s.replicasBecome(ctx, testing, want); err != nil {
		return "", err
	}
	return fmt.Sprintf("kubectl scale deployment coredns --replicas %d was set back to %d after %s", want+5, want,
		time.Since(started).Round(10*time.Millisecond)), nil
}

// scale runs the real kubectl scale.
func (s *smoke) scale(ctx context.Context, cluster string, n int64) error {
	kubeconfig, err := s.scene.lab.Kubeconfig(cluster, "admin")
	if err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", cluster, err)
	}
	_, err = run(ctx, ".", s.scene.set.Path("kubectl"), "--kubeconfig", kubeconfig, "-n", dnsNamespace,
		"scale", "deployment", dns, fmt.Sprintf("--replicas=%d", n))
	return err
}

// checkAutoscaler scales in the same way while a HorizontalPodAutoscaler exists. Keelson must keep
// the replicas until the autoscaler is deleted.
func (s *smoke) checkAutoscaler(ctx context.Context) (string, error) {
	hpas, err := s.autoscalers()
	if err != nil {
		return "", err
	}
	if _, err := hpas.Create(ctx, autoscaler(), metav1.CreateOptions{}); err != nil {
		return "", fmt.Errorf("create autoscaler: %w", err)
	}
	was, err := s.replicas(ctx, canary)
	if err != nil {
		return "", err
	}
	if err := pause(ctx, time.Second); err != nil {
		return "", err
	}
	if err := s.scale(ctx, canary, was+3); err != nil {
		return "", err
	}
	if err := s.pushResources(ctx); err != nil {
		return "", err
	}
	n, err := s.replicas(ctx, canary)
	if err != nil {
		return "", err
	}
	if n != was+3 {
		return "", fmt.Errorf("%d replicas, and not the %d that were set under an autoscaler", n, was+3)
	}
	if err := hpas.Delete(ctx, dns, metav1.DeleteOptions{}); err != nil {
		return "", fmt.Errorf("delete autoscaler: %w", err)
	}
	if err := s.replicasBecome(ctx, canary, was); err != nil {
		return "", fmt.Errorf("after the autoscaler was deleted: %w", err)
	}
	return fmt.Sprintf("under an autoscaler %d replicas stayed %d, also when another field of the Deployment was pushed; without it they are %d again", was+3, was+3, was), nil
}

// replicasBecome waits until coredns has the wanted number of replicas.
func (s *smoke) replicasBecome(ctx context.Context, cluster string, want int64) error {
	return until(ctx, func(ctx context.Context) error {
		n, err := s.replicas(ctx, cluster)
		if err == nil && n != want {
			err = fmt.Errorf("%d replicas", n)
		}
		return err
	})
}

func (s *smoke) autoscalers() (dynamic.ResourceInterface, error) {
	d, err := s.scene.dynamic(canary)
	if err != nil {
		return nil, err
	}
	gvr := schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}
	return d.Resource(gvr).Namespace(dnsNamespace), nil
}

func autoscaler() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": map[string]any{"name": dns},
		"spec": map[string]any{"minReplicas": int64(1), "maxReplicas": int64(9), "scaleTargetRef": map[string]any{
			"apiVersion": "apps/v1", "kind": "Deployment", "name": dns,
		}},
	}}
}

// pushResources changes another field of the same Deployment. That change must not revert the
// replicas. It waits 3 seconds longer than the change takes.
func (s *smoke) pushResources(ctx context.Context) error {
	resources := map[string]any{"requests": map[string]any{"cpu": "70m", "memory": "48Mi"}}
	if err := s.repo.setValue(canary, dns, "resources", resources); err != nil {
		return err
	}
	if err := s.repo.push(ctx, "canary: other resources for coredns"); err != nil {
		return err
	}
	err := until(ctx, func(ctx context.Context) error {
		u, err := s.deployment(ctx, canary)
		if err != nil {
			return err
		}
		containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
		if !strings.Contains(fmt.Sprint(containers), "cpu:70m") {
			return errors.New("the pushed resources are not there")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return pause(ctx, 3*time.Second)
}
