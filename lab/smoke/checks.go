package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
)

// check verifies one promise. run returns a line about what it observed.
type check struct {
	name   string
	always bool // run despite --only, because other checks depend on it
	run    func(*smoke, context.Context) (string, error)
}

func allChecks() []check {
	return []check{
		{name: "kill", run: (*smoke).checkKill},
		{name: "converge", always: true, run: (*smoke).checkConverge},
		{name: "quiet", run: (*smoke).checkQuiet},
		{name: "push", run: (*smoke).checkPush},
		{name: "rollout", run: (*smoke).checkRollout},
		{name: "rollout-stops", run: (*smoke).checkRolloutStops},
		{name: "freeze", run: (*smoke).checkFreeze},
		{name: "gates", run: (*smoke).checkGates},
		{name: "probe", run: (*smoke).checkProbe},
		{name: "partition", run: (*smoke).checkPartition},
		{name: "own-component", run: (*smoke).checkOwn},
		{name: "drift", run: (*smoke).checkDrift},
		{name: "autoscaler", run: (*smoke).checkAutoscaler},
		{name: "selector", run: (*smoke).checkSelector},
		{name: "broken-template", run: (*smoke).checkBrokenTemplate},
		{name: "endless-template", run: (*smoke).checkEndlessTemplate},
		{name: "broken-values", run: (*smoke).checkSchema},
		{name: "unknown-key", run: (*smoke).checkUnknownKey},
		{name: "moved-tag", run: (*smoke).checkMovedTag},
		{name: "missing-tag", run: (*smoke).checkMissingTag},
		{name: "symlink", run: (*smoke).checkSymlink},
		{name: "dead-git", run: (*smoke).checkDeadGit},
		{name: "dead-cluster", run: (*smoke).checkDeadCluster},
		{name: "quiet-again", run: (*smoke).checkQuiet},
	}
}

const (
	// patience is the time limit for something that must happen. It is not a performance bound.
	patience = 3 * time.Minute
	// quietFor is how long a converged fleet is observed.
	quietFor = 60 * time.Second
	// beacon is a component of this program with one ConfigMap. Its value shows which push has
	// arrived.
	beacon = "beacon"
)

const (
	dns          = "coredns" // name of the component and of its Deployment
	dnsNamespace = "kube-system"
)

// addBeacon adds the beacon to the fleet, on every cluster.
func (s *smoke) addBeacon(ctx context.Context) error {
	const head = "apiVersion: keelson.io/v1alpha1\nkind: "
	for name, content := range map[string]string{
		"components/beacon/component.yaml":                 head + "Component\nnamespace: beacon\n",
		"components/beacon/template/Chart.yaml":            "apiVersion: v2\nname: beacon\nversion: 1.0.0\n",
		"components/beacon/template/values.yaml":           "push: 0\n",
		"components/beacon/template/templates/beacon.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: beacon\ndata:\n  push: {{ .Values.push | quote }}\n",
	} {
		if err := s.repo.write(name, content); err != nil {
			return err
		}
	}
	for _, c := range s.scene.clusters {
		if err := s.repo.setVersion(c, beacon, "v1.0.0"); err != nil {
			return err
		}
	}
	if err := s.repo.push(ctx, "a beacon"); err != nil {
		return err
	}
	return s.repo.tag(ctx, beacon, "v1.0.0")
}

// until waits for a condition. After the time limit it returns the condition's last error.
func until(ctx context.Context, condition func(context.Context) error) error {
	last := errors.New("never tried")
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if err := condition(ctx); err == nil || ctx.Err() == nil { // ignore an error caused by the end of the time limit
			last = err
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("not within %s: %w", patience, last)
	}
	return nil
}

// pause waits for d. It is for checks that depend on time.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// converged waits until every delivery is healthy and in sync with git.
func (s *smoke) converged(ctx context.Context) error {
	return until(ctx, func(ctx context.Context) error {
		all, err := s.scene.deliveries(ctx)
		if err != nil {
			return err
		}
		for name, d := range all {
			if d.sync != "Synced" || d.health != "Healthy" {
				return fmt.Errorf("%s: %s", name, d)
			}
		}
		want, err := s.wanted(ctx)
		if err != nil {
			return err
		}
		if len(all) != want {
			return fmt.Errorf("the hub shows %d deliveries of %d", len(all), want)
		}
		s.deliveries = len(all)
		return nil
	})
}

// wanted returns the number of deliveries that git asks for.
func (s *smoke) wanted(ctx context.Context) (int, error) {
	if s.deliveries > 0 {
		return s.deliveries, nil
	}
	n := 0
	for _, c := range s.scene.clusters {
		objects, err := s.rendered(ctx, c)
		if err != nil {
			return 0, err
		}
		components := map[string]bool{}
		for _, u := range objects {
			components[u.GetLabels()[componentLabel]] = true
		}
		n += len(components)
	}
	return n, nil
}

// rendered returns the objects that a cluster should have according to git.
func (s *smoke) rendered(ctx context.Context, cluster string) ([]unstructured.Unstructured, error) {
	out, code, err := s.keelson(ctx, "render", cluster, "-o", "json")
	if err != nil || code != 0 {
		return nil, fmt.Errorf("keelson render %s: exit code %d: %w", cluster, code, err)
	}
	var list unstructured.UnstructuredList
	if err := list.UnmarshalJSON([]byte(out)); err != nil {
		return nil, fmt.Errorf("keelson render %s: %w", cluster, err)
	}
	return list.Items, nil
}

// at waits until a component runs a version on the given clusters.
func (s *smoke) at(ctx context.Context, component, version string, clusters ...string) error {
	return until(ctx, func(ctx context.Context) error {
		all, err := s.scene.deliveries(ctx)
		if err != nil {
			return err
		}
		for _, c := range clusters {
			if d := all[c+"."+component]; d.applied != version || d.sync != "Synced" {
				return fmt.Errorf("%s, applied %s", d, d.applied)
			}
		}
		return nil
	})
}

// version returns the version of a component on a cluster, from its Delivery on the hub.
func (s *smoke) version(ctx context.Context, cluster, component string) (string, error) {
	all, err := s.scene.deliveries(ctx)
	if err != nil {
		return "", err
	}
	return all[cluster+"."+component].version, nil
}
