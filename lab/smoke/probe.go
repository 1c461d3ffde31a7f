package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The probe of this program is called workloads. probes is the namespace of the objects that it
// creates.
const (
	probes    = "keelson-probes"
	probeFile = "probes/workloads.yaml"
	probed    = `  after: [{name: sound, probe: {name: workloads}}]
`
)

// checkProbe adds a black-box test of production to the pipeline. A rollout passes with a working
// image, and pauses with an image that crashes.
func (s *smoke) checkProbe(ctx context.Context) (string, error) {
	config, err := s.scene.admin(production)
	if err != nil {
		return "", err
	}
	admin, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", fmt.Errorf("client of %s: %w", production, err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: probes}}
	if _, err := admin.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("make a namespace: %w", err)
	}
	if err := errors.Join(s.writeProbe("v3"), s.writePipeline(probed)); err != nil {
		return "", err
	}
	if err := s.sail(ctx, "v1.5.0", ""); err != nil {
		return "", err
	}
	if err := s.at(ctx, ferry, "v1.5.0", production); err != nil {
		return "", err
	}
	if _, err := s.rollout(ctx, "Complete", ""); err != nil {
		return "", err
	}
	passed, code, err := s.keelson(ctx, "probe", "show", "workloads", production)
	if err != nil || code != 0 {
		return "", fmt.Errorf("keelson probe show: exit code %d: %w", code, err)
	}
	if err := s.nothingLeft(ctx, admin); err != nil {
		return "", err
	}
	if err := s.writeProbe("crash"); err != nil {
		return "", err
	}
	if err := s.sail(ctx, "v1.5.1", ""); err != nil {
		return "", err
	}
	because, err := s.rollout(ctx, "Paused", "check sound failed")
	if err != nil {
		return "", err
	}
	if says := regexp.MustCompile(production + `: .*web/upgrade.*CrashLoopBackOff`); !says.MatchString(because) {
		return "", fmt.Errorf("it does not say what failed: %s", because)
	}
	if err := s.nothingLeft(ctx, admin); err != nil {
		return "", err
	}
	return strings.TrimSpace(passed) + "\n" + because + "\nnothing is left in its namespace", s.removeProbe(ctx)
}

// writeProbe writes a Probe with a StatefulSet, a DaemonSet, a Job and a Deployment. The Deployment
// is upgraded to an image with the given tag.
func (s *smoke) writeProbe(tag string) error {
	return s.repo.write(probeFile, `apiVersion: keelson.io/v1alpha1
kind: Probe
clusterSelector: {matchLabels: {stage: production}}
namespace: `+probes+`
timeout: 15s
images:
  old: {repository: registry.example.com/pause, tag: v1}
  new: {repository: registry.example.com/pause, tag: v2}
  odd: {repository: registry.example.com/pause, tag: `+tag+`}
subjects:
- {name: web, deployment: {image: old, upgradeTo: odd, replicas: 2}}
- {name: db, statefulSet: {image: old, upgradeTo: new}}
- {name: agent, daemonSet: {image: old, upgradeTo: new, nodeSelector: {kubernetes.io/hostname: `+production+`-node-1}}}
- {name: job, job: {image: old, upgradeTo: new}}
`)
}

// removeProbe removes the Probe from git, and resumes the rollout that it paused.
func (s *smoke) removeProbe(ctx context.Context) error {
	if err := os.Remove(s.repo.path(probeFile)); err != nil {
		return fmt.Errorf("remove the probe: %w", err)
	}
	if err := s.writePipeline(""); err != nil {
		return err
	}
	if err := s.repo.push(ctx, "no probe"); err != nil {
		return err
	}
	err := until(ctx, func(ctx context.Context) error {
		if _, _, err := s.keelson(ctx, "rollout", "resume", ferry, "--reason", "the probe is gone"); err != nil {
			return err
		}
		out, _, err := s.keelson(ctx, "rollout", "list")
		if err == nil && !strings.Contains(out, "Complete") {
			err = errors.New(out)
		}
		return err
	})
	if err != nil {
		return err
	}
	// A running test ends before the Probe disappears.
	return until(ctx, func(ctx context.Context) error {
		out, code, err := s.keelson(ctx, "probe", "list", "-o", "json")
		switch {
		case err != nil:
			return err
		case code != 0 || strings.Contains(out, `"workloads"`):
			return fmt.Errorf("keelson probe list: exit code %d: %s", code, out)
		}
		return nil
	})
}

// nothingLeft waits until the probe's namespace contains no pods, Deployments and Jobs.
func (s *smoke) nothingLeft(ctx context.Context, admin kubernetes.Interface) error {
	return until(ctx, func(ctx context.Context) error {
		pods, err := admin.CoreV1().Pods(probes).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		deployments, err := admin.AppsV1().Deployments(probes).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list deployments: %w", err)
		}
		jobs, err := admin.BatchV1().Jobs(probes).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list jobs: %w", err)
		}
		if n := len(pods.Items) + len(deployments.Items) + len(jobs.Items); n > 0 {
			return fmt.Errorf("%d objects of a probe are left in %s", n, probes)
		}
		return nil
	})
}
