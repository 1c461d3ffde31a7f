package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/lab/audit"
)

// ferry is a component with one Deployment. It has a pipeline: testing, canary, production. Version
// bad crashes on the canary cluster only.
const (
	ferry     = "ferry"
	good, bad = "v1.1.0", "v1.2.0"
	last      = "v1.3.0"
	staged    = "staged" // name of the pipeline
)

const ferryDeployment = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: ferry
spec:
  replicas: 1
  progressDeadlineSeconds: 10
  selector:
    matchLabels: {app: ferry}
  template:
    metadata:
      labels: {app: ferry}
    spec:
      containers:
      - name: ferry
        image: {{ .Values.images.ferry.ref }}SUFFIX
`

// addFerry adds the ferry and its pipeline to the fleet.
func (s *smoke) addFerry(ctx context.Context) error {
	const head = "apiVersion: keelson.io/v1alpha1\nkind: "
	if err := s.writePipeline(""); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"components/ferry/component.yaml":      head + "Component\nnamespace: ferry\npipeline: " + staged + "\n",
		"components/ferry/template/Chart.yaml": "apiVersion: v2\nname: ferry\nversion: 1.0.0\n",
		// Values of later versions exist from the start, so that a rollout changes only the
		// version.
		"components/ferry/template/values.yaml": "suffix: \"\"\n",
	} {
		if err := s.repo.write(name, content); err != nil {
			return err
		}
	}
	if err := s.repo.setValue(canary, ferry, "suffix", "-crash"); err != nil {
		return err
	}
	return s.sail(ctx, "v1.0.0", "")
}

// writePipeline writes the ferry's pipeline, with additional lines for its last stage.
func (s *smoke) writePipeline(last string) error {
	var pipeline strings.Builder
	pipeline.WriteString("apiVersion: keelson.io/v1alpha1\nkind: Pipeline\ndescription: what the smoke looks at\nstages:\n")
	for _, stage := range []string{"testing", "canary", "production"} {
		fmt.Fprintf(&pipeline, "- name: %[1]s\n  clusterSelector: {matchLabels: {stage: %[1]s}}\n  bake: 2s\n", stage)
	}
	return s.repo.write("pipelines/"+staged+".yaml", pipeline.String()+last)
}

// sail publishes a version of the ferry and runs it on every cluster.
func (s *smoke) sail(ctx context.Context, version, suffix string) error {
	images := "apiVersion: keelson.io/v1alpha1\nkind: Images\nimages:\n  ferry: {repository: registry.example.com/ferry, tag: " + version + "}\n"
	if err := s.repo.write("components/ferry/images.yaml", images); err != nil {
		return err
	}
	if err := s.repo.write("components/ferry/template/templates/deployment.yaml", strings.ReplaceAll(ferryDeployment, "SUFFIX", suffix)); err != nil {
		return err
	}
	if err := s.repo.push(ctx, ferry+" "+version); err != nil {
		return err
	}
	if err := s.repo.tag(ctx, ferry, version); err != nil {
		return err
	}
	return s.runFerry(ctx, version)
}

// runFerry sets a version of the ferry on every cluster.
func (s *smoke) runFerry(ctx context.Context, version string) error {
	for _, c := range s.scene.clusters {
		if err := s.repo.setVersion(c, ferry, version); err != nil {
			return err
		}
	}
	return s.repo.push(ctx, "run "+ferry+" "+version)
}

// checkRollout rolls a version out to all clusters, one stage after the other.
func (s *smoke) checkRollout(ctx context.Context) (string, error) {
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	if err := s.sail(ctx, good, ""); err != nil {
		return "", err
	}
	if err := s.at(ctx, ferry, good, s.scene.clusters...); err != nil {
		return "", err
	}
	var before audit.Event
	for i, c := range s.scene.clusters {
		writes, err := s.ferryWrites(c, marks)
		if err != nil {
			return "", err
		}
		if len(writes) != 1 {
			return "", fmt.Errorf("%s: %d writes of one change: %v", c, len(writes), writes)
		}
		if gap := writes[0].Received.Sub(before.Time); i > 0 && gap < 2*time.Second {
			return "", fmt.Errorf("%s got it %s after the cluster before it, which bakes for 2s", c, gap)
		}
		before = writes[0]
	}
	if _, err := s.rollout(ctx, "Complete", ""); err != nil {
		return "", err
	}
	return s.timeline(ctx)
}

// checkRolloutStops rolls out a version that crashes in canary, and reverts it.
func (s *smoke) checkRolloutStops(ctx context.Context) (string, error) {
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	if err := s.sail(ctx, bad, "{{ .Values.suffix }}"); err != nil {
		return "", err
	}
	because, err := s.rollout(ctx, "Paused", canary)
	if err != nil {
		return "", err
	}
	waits, err := s.waits(ctx, production)
	if err != nil {
		return "", err
	}
	if err := pause(ctx, 3*time.Second); err != nil {
		return "", err
	}
	if err := s.runFerry(ctx, good); err != nil {
		return "", err
	}
	if err := s.at(ctx, ferry, good, s.scene.clusters...); err != nil {
		return "", err
	}
	if err := s.converged(ctx); err != nil {
		return "", err
	}
	writes, err := s.ferryWrites(production, marks)
	if err != nil {
		return "", err
	}
	if len(writes) > 0 {
		return "", fmt.Errorf("production saw it: %s", writes[0])
	}
	return fmt.Sprintf("%s\n%s\nproduction never saw it, by its audit log; the revert brought the others back", because, waits), nil
}

// checkFreeze freezes production. After the Freeze is removed, the rollout continues.
func (s *smoke) checkFreeze(ctx context.Context) (string, error) {
	const (
		file   = "freezes/smoke.yaml"
		reason = "the smoke sells something today"
	)
	freeze := "apiVersion: keelson.io/v1alpha1\nkind: Freeze\nclusterSelector: {matchLabels: {stage: production}}\ncomponents: [ferry]\nreason: " + reason + "\n"
	if err := s.repo.write(file, freeze); err != nil {
		return "", err
	}
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	if err := s.sail(ctx, last, ""); err != nil {
		return "", err
	}
	if err := s.at(ctx, ferry, last, testing, canary); err != nil {
		return "", err
	}
	var waits string
	if err := until(ctx, func(ctx context.Context) (err error) {
		if waits, err = s.waits(ctx, production); err == nil && !strings.Contains(waits, reason) {
			err = fmt.Errorf("it does not say why: %s", waits)
		}
		return err
	}); err != nil {
		return "", err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return "", err
	}
	writes, err := s.ferryWrites(production, marks)
	if err != nil {
		return "", err
	}
	if len(writes) > 0 {
		return "", fmt.Errorf("production was written to in a freeze: %s", writes[0])
	}
	if err := os.Remove(s.repo.path(file)); err != nil {
		return "", fmt.Errorf("lift the freeze: %w", err)
	}
	if err := s.repo.push(ctx, "lift the freeze"); err != nil {
		return "", err
	}
	if err := s.at(ctx, ferry, last, production); err != nil {
		return "", err
	}
	return waits + "\nlifted, it went on", nil
}

// ferryWrites returns the writes in the ferry's namespace on a cluster, without Jobs of its checks.
func (s *smoke) ferryWrites(cluster string, marks map[string]int64) ([]audit.Event, error) {
	events, err := s.scene.since(cluster, marks)
	if err != nil {
		return nil, err
	}
	var out []audit.Event
	for _, e := range objectWrites(events) {
		if e.Resource.Namespace == ferry && e.Resource.Resource != "jobs" {
			out = append(out, e)
		}
	}
	return out, nil
}

// rollout waits until the ferry's Rollout is in a phase for a reason that contains of ("": any
// reason). It returns phase and reason.
func (s *smoke) rollout(ctx context.Context, phase, of string) (because string, err error) {
	d, err := s.scene.dynamic(hub)
	if err != nil {
		return "", err
	}
	rollouts := d.Resource(schema.GroupVersionResource{Group: "keelson.io", Version: "v1alpha1", Resource: "rollouts"}).Namespace("keelson-system")
	err = until(ctx, func(ctx context.Context) error {
		u, err := rollouts.Get(ctx, ferry, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the Rollout: %w", err)
		}
		is, _, _ := unstructured.NestedString(u.Object, "status", "phase")
		because, _, _ = unstructured.NestedString(u.Object, "status", "because")
		if is != phase || !strings.Contains(because, of) {
			return fmt.Errorf("the Rollout is %s (%s), not %s", is, because, phase)
		}
		return nil
	})
	return phase + ": " + because, err
}

// waits returns the sentence that explains why a cluster does not have the new version yet.
func (s *smoke) waits(ctx context.Context, cluster string) (string, error) {
	out, code, err := s.keelson(ctx, "rollout", "explain", ferry, cluster)
	if err != nil || code != 0 {
		return "", fmt.Errorf("keelson rollout explain: exit code %d: %w", code, err)
	}
	return strings.TrimSpace(out), nil
}

// timeline returns the course of the rollout, as keelson rollout show prints it.
func (s *smoke) timeline(ctx context.Context) (string, error) {
	out, code, err := s.keelson(ctx, "rollout", "show", ferry)
	if err != nil || code != 0 {
		return "", fmt.Errorf("keelson rollout show: exit code %d: %w", code, err)
	}
	return "each cluster got it when the one before had baked, by the audit logs\n" + strings.TrimSpace(out), nil
}
