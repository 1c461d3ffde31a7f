package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/lab/audit"
)

// check is one promise. The line says what was seen.
type check struct {
	name   string
	always bool // the others need it
	run    func(*smoke, context.Context) (string, error)
}

func allChecks() []check {
	return []check{
		{name: "kill", run: (*smoke).checkKill},
		{name: "converge", always: true, run: (*smoke).checkConverge},
		{name: "quiet", run: (*smoke).checkQuiet},
		{name: "push", run: (*smoke).checkPush},
		{name: "drift", run: (*smoke).checkDrift},
		{name: "autoscaler", run: (*smoke).checkAutoscaler},
		{name: "selector", run: (*smoke).checkSelector},
		{name: "broken-template", run: (*smoke).checkBrokenTemplate},
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
	patience = 90 * time.Second
	// quietFor is how long a converged fleet is listened to.
	quietFor = 60 * time.Second
	// beacon is a component of this program's own, with one ConfigMap, whose
	// value tells which push has arrived.
	beacon = "beacon"
)

// addBeacon puts the beacon into the fleet, on every cluster.
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
	return s.repo.tag(ctx, beacon, "v1.0.0", false)
}

// until waits for a condition; on time-out the error is the condition's last.
func until(ctx context.Context, patience time.Duration, condition func(context.Context) error) error {
	last := errors.New("never tried")
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		last = condition(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("not within %s: %w", patience, last)
	}
	return nil
}

// converged waits until every delivery is synced and healthy at what git says.
func (s *smoke) converged(ctx context.Context, patience time.Duration) error {
	return until(ctx, patience, func(ctx context.Context) error {
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

// wanted counts the deliveries that git asks for.
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

// rendered is what git says a cluster should have.
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

func key(u *unstructured.Unstructured) string {
	return u.GroupVersionKind().GroupKind().String() + " " + u.GetNamespace() + "/" + u.GetName()
}

// complete compares what clusters have with what git says: nothing doubled,
// nothing forgotten. It returns the number of objects.
func (s *smoke) complete(ctx context.Context) (int, error) {
	total := 0
	for _, c := range s.scene.clusters {
		want := map[string]bool{}
		objects, err := s.rendered(ctx, c)
		if err != nil {
			return 0, err
		}
		for _, u := range objects {
			want[key(&u)] = true
		}
		have := map[string]bool{}
		live, err := s.scene.managed(ctx, c)
		if err != nil {
			return 0, err
		}
		for _, u := range live {
			// Endpoints copy the labels of their Service.
			if len(u.GetOwnerReferences()) == 0 && u.GetKind() != "Endpoints" {
				have[key(&u)] = true
			}
		}
		if !maps.Equal(want, have) {
			return 0, fmt.Errorf("%s: git says %d objects and the cluster has %d:\n%s", c, len(want), len(have), difference(want, have))
		}
		total += len(have)
	}
	return total, nil
}

func difference(want, have map[string]bool) string {
	var lines []string
	for k := range want {
		if !have[k] {
			lines = append(lines, "missing "+k)
		}
	}
	for k := range have {
		if !want[k] {
			lines = append(lines, "unwanted "+k)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// checkKill kills the controller in the middle of the first convergence; a new
// one finishes. Audit logs show that no object was created twice.
func (s *smoke) checkKill(ctx context.Context) (string, error) {
	if err := s.scene.up(ctx); err != nil {
		return "", err
	}
	marks := map[string]int64{}
	if err := s.controller.start(); err != nil {
		return "", err
	}
	written := func() (int, error) {
		n := 0
		for _, c := range s.scene.clusters {
			events, err := s.scene.since(c, marks)
			if err != nil {
				return 0, err
			}
			n += len(objectWrites(events))
		}
		return n, nil
	}
	const enough = 25
	var before int
	err := until(ctx, patience, func(context.Context) (err error) {
		if before, err = written(); err == nil && before < enough {
			err = fmt.Errorf("%d objects written", before)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if err := s.controller.kill(); err != nil {
		return "", err
	}
	if before, err = written(); err != nil {
		return "", err
	}
	if err := s.controller.start(); err != nil {
		return "", err
	}
	if err := s.converged(ctx, 3*time.Minute); err != nil {
		return "", err
	}
	n, err := s.complete(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range s.scene.clusters {
		if err := s.createdOnce(c); err != nil {
			return "", err
		}
	}
	if before >= n {
		return "", fmt.Errorf("the kill came too late: all %d objects were written", n)
	}
	if err := s.controller.stop(); err != nil {
		return "", err
	}
	return fmt.Sprintf("SIGKILL after %d writes; the next process finished: %d objects, none doubled, none forgotten", before, n), s.scene.down(ctx)
}

// createdOnce holds that no object was created a second time.
func (s *smoke) createdOnce(cluster string) error {
	events, err := s.scene.since(cluster, nil)
	if err != nil {
		return err
	}
	created := map[string]int{}
	for _, e := range objectWrites(events) {
		if e.Code == 201 {
			created[e.Resource.String()]++
		}
		if e.Verb == "delete" {
			return fmt.Errorf("%s: %s", cluster, e)
		}
	}
	for what, n := range created {
		if n > 1 {
			return fmt.Errorf("%s: %s was created %d times", cluster, what, n)
		}
	}
	return nil
}

// checkConverge measures a first convergence on fresh clusters.
func (s *smoke) checkConverge(ctx context.Context) (string, error) {
	if err := s.scene.up(ctx); err != nil {
		return "", err
	}
	started := time.Now()
	if err := s.controller.start(); err != nil {
		return "", err
	}
	if err := s.converged(ctx, 3*time.Minute); err != nil {
		return "", err
	}
	took := time.Since(started).Round(100 * time.Millisecond)
	n, err := s.complete(ctx)
	if err != nil {
		return "", err
	}
	s.objects = n
	applied, err := s.lastWrite(started, nil)
	if err != nil {
		return "", err
	}
	configs, err := s.distinct(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d deliveries on %d clusters, %d objects: all applied after %s, all healthy after %s\n%s",
		s.deliveries, len(s.scene.clusters), n, applied.Round(100*time.Millisecond), took, configs), nil
}

// lastWrite is the time from a moment to Keelson's last write of an object.
func (s *smoke) lastWrite(from time.Time, marks map[string]int64) (time.Duration, error) {
	last := from
	for _, c := range s.scene.clusters {
		events, err := s.scene.since(c, marks)
		if err != nil {
			return 0, err
		}
		for _, e := range objectWrites(events) {
			if e.Time.After(last) {
				last = e.Time
			}
		}
	}
	return last.Sub(from), nil
}

// distinct shows that each cluster runs its own meta-config: coredns' replicas.
func (s *smoke) distinct(ctx context.Context) (string, error) {
	var parts []string
	seen := map[int64]bool{}
	for _, c := range s.scene.clusters {
		n, err := s.replicas(ctx, c)
		if err != nil {
			return "", err
		}
		seen[n] = true
		parts = append(parts, fmt.Sprintf("%s %d", c, n))
	}
	if len(seen) != len(s.scene.clusters) {
		return "", fmt.Errorf("clusters run the same coredns replicas: %s", strings.Join(parts, ", "))
	}
	return "each its own meta-config: coredns replicas are " + strings.Join(parts, ", "), nil
}

func deployments() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
}

const (
	dns          = "coredns" // the component, and its Deployment
	dnsNamespace = "kube-system"
)

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

// checkQuiet listens to a converged fleet while commits come that change
// nothing: each makes Keelson look at every delivery again.
func (s *smoke) checkQuiet(ctx context.Context) (string, error) {
	if err := s.converged(ctx, patience); err != nil {
		return "", err
	}
	// What the last change still causes (status, events) is over after this.
	if err := pause(ctx, 5*time.Second); err != nil {
		return "", err
	}
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	const passes = 2
	for i := range passes {
		if err := s.repo.push(ctx, fmt.Sprintf("nothing changes (%d)", i+1)); err != nil {
			return "", err
		}
		if err := pause(ctx, quietFor/passes); err != nil {
			return "", err
		}
	}
	watches := 0
	for _, c := range append([]string{hub}, s.scene.clusters...) {
		events, err := s.scene.since(c, marks)
		if err != nil {
			return "", err
		}
		for _, e := range events {
			if !e.Watch() {
				return "", fmt.Errorf("%s: %s", c, e)
			}
			watches++
		}
	}
	return fmt.Sprintf("%d passes in %s: 0 writes, 0 reads, %d renewed watches on %d API servers", passes, quietFor, watches, len(s.scene.clusters)+1), nil
}

// pause waits for time to pass, where time is what is checked.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // interrupted
	case <-timer.C:
		return nil
	}
}

// dnsVersion is the version that a cluster's record names.
func (s *smoke) version(ctx context.Context, cluster, component string) (string, error) {
	all, err := s.scene.deliveries(ctx)
	if err != nil {
		return "", err
	}
	return all[cluster+"."+component].version, nil
}

// at waits until a component runs a version on the given clusters.
func (s *smoke) at(ctx context.Context, component, version string, clusters ...string) error {
	return until(ctx, patience, func(ctx context.Context) error {
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

// checkPush publishes a version of coredns and lets every cluster run it.
func (s *smoke) checkPush(ctx context.Context) (string, error) {
	const next = "v1.12.1"
	if err := s.repo.replace("components/coredns/images.yaml", `tag: \S+`, "tag: v1.12.1"); err != nil {
		return "", err
	}
	if err := s.repo.replace("components/coredns/images.yaml", `(?m)^\s*digest:.*\n`, ""); err != nil && !strings.Contains(err.Error(), "nothing matches") {
		return "", err
	}
	if err := s.repo.push(ctx, "coredns "+next); err != nil {
		return "", err
	}
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	if err := s.repo.tag(ctx, dns, next, false); err != nil {
		return "", err
	}
	for _, c := range s.scene.clusters {
		if err := s.repo.setVersion(c, dns, next); err != nil {
			return "", err
		}
	}
	pushed := time.Now()
	if err := s.repo.push(ctx, "run coredns "+next); err != nil {
		return "", err
	}
	if err := s.at(ctx, dns, next, s.scene.clusters...); err != nil {
		return "", err
	}
	took, err := s.lastWrite(pushed, marks)
	if err != nil {
		return "", err
	}
	fields, patches, err := s.changedFields(marks)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("push to last patch %s (the controller polls every 2s); %d patches, and by the audit logs they changed only\n%s",
		took.Round(10*time.Millisecond), patches, strings.Join(fields, "\n")), nil
}

// changedFields compares each patch with the request before it for the same
// object, both from the audit log, and returns the fields that changed.
func (s *smoke) changedFields(marks map[string]int64) ([]string, int, error) {
	fields := map[string]bool{}
	patches := 0
	for _, c := range s.scene.clusters {
		all, err := s.scene.since(c, nil)
		if err != nil {
			return nil, 0, err
		}
		recent, err := s.scene.since(c, marks)
		if err != nil {
			return nil, 0, err
		}
		recent = objectWrites(recent)
		patches += len(recent)
		for _, e := range recent {
			before := lastBefore(objectWrites(all), e)
			if before == nil {
				return nil, 0, fmt.Errorf("%s: %s creates what no push asked for", c, e)
			}
			changed, err := diffBodies(before.Request, e.Request)
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %s: %w", c, e, err)
			}
			for _, f := range changed {
				fields[e.Resource.Resource+" "+e.Resource.Namespace+"/"+e.Resource.Name+" "+f] = true
			}
			if !strings.Contains(e.Resource.Name, dns) {
				return nil, 0, fmt.Errorf("%s: %s is not coredns'", c, e)
			}
		}
	}
	if patches == 0 {
		return nil, 0, errors.New("no patch is in the audit logs")
	}
	return slices.Sorted(maps.Keys(fields)), patches, nil
}

func lastBefore(events []audit.Event, e audit.Event) *audit.Event {
	var last *audit.Event
	for i := range events {
		if events[i].Resource == e.Resource && events[i].Time.Before(e.Time) && events[i].ID != e.ID {
			last = &events[i]
		}
	}
	return last
}

// checkDrift scales as kubectl scale does.
func (s *smoke) checkDrift(ctx context.Context) (string, error) {
	want, err := s.replicas(ctx, testing)
	if err != nil {
		return "", err
	}
	started := time.Now()
	if err := s.scale(ctx, testing, want+5); err != nil {
		return "", err
	}
	err = until(ctx, patience, func(ctx context.Context) error {
		n, err := s.replicas(ctx, testing)
		if err == nil && n != want {
			err = fmt.Errorf("%d replicas", n)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("kubectl scale deployment coredns --replicas %d was set back to %d after %s", want+5, want,
		time.Since(started).Round(10*time.Millisecond)), nil
}

// scale runs the real kubectl.
func (s *smoke) scale(ctx context.Context, cluster string, n int64) error {
	kubeconfig, err := s.scene.lab.Kubeconfig(cluster, "admin")
	if err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", cluster, err)
	}
	_, err = run(ctx, ".", s.scene.set.Path("kubectl"), "--kubeconfig", kubeconfig, "-n", dnsNamespace,
		"scale", "deployment", dns, fmt.Sprintf("--replicas=%d", n))
	return err
}

// checkAutoscaler scales the same under a HorizontalPodAutoscaler.
func (s *smoke) checkAutoscaler(ctx context.Context) (string, error) {
	d, err := s.scene.dynamic(canary)
	if err != nil {
		return "", err
	}
	hpas := d.Resource(schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}).Namespace(dnsNamespace)
	_, err = hpas.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": map[string]any{"name": dns},
		"spec": map[string]any{"minReplicas": int64(1), "maxReplicas": int64(9), "scaleTargetRef": map[string]any{
			"apiVersion": "apps/v1", "kind": "Deployment", "name": dns,
		}},
	}}, metav1.CreateOptions{})
	if err != nil {
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
	// A push that changes another field of the same Deployment must not bring
	// the replicas back either.
	if err := s.repo.metaConfig(canary, dns, func(m map[string]any) {
		values, _ := m["values"].(map[string]any)
		if values == nil {
			values = map[string]any{}
		}
		values["resources"] = map[string]any{"requests": map[string]any{"cpu": "70m", "memory": "48Mi"}}
		m["values"] = values
	}); err != nil {
		return "", err
	}
	if err := s.repo.push(ctx, "canary: other resources for coredns"); err != nil {
		return "", err
	}
	err = until(ctx, patience, func(ctx context.Context) error {
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
		return "", err
	}
	if err := pause(ctx, 3*time.Second); err != nil {
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
	err = until(ctx, patience, func(ctx context.Context) error {
		n, err := s.replicas(ctx, canary)
		if err == nil && n != was {
			err = fmt.Errorf("%d replicas", n)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("after the autoscaler was deleted: %w", err)
	}
	return fmt.Sprintf("under an autoscaler %d replicas stayed %d, also when another field of the Deployment was pushed; without it they are %d again", was+3, was+3, was), nil
}

// checkSelector publishes a version whose selector differs, and more.
func (s *smoke) checkSelector(ctx context.Context) (string, error) {
	return s.withChange(ctx, func(ctx context.Context, marks map[string]int64) (string, error) {
		file, err := s.repo.templateWith(dns, "kind: Deployment")
		if err != nil {
			return "", err
		}
		if err := s.repo.replace(file, `(?m)^(\s*)matchLabels:\s*$`, "${1}matchLabels:\n${1}  smoke: selector"); err != nil {
			return "", err
		}
		if err := s.publish(ctx, dns, "v1.13.0", testing); err != nil {
			return "", err
		}
		var d deliveryStatus
		err = until(ctx, patience, func(ctx context.Context) (err error) {
			all, err := s.scene.deliveries(ctx)
			if err != nil {
				return err
			}
			if d = all[testing+"."+dns]; d.sync != "Held" || !strings.Contains(d.held, "workload-selector") {
				err = fmt.Errorf("%s", d)
			}
			return err
		})
		if err != nil {
			return "", err
		}
		events, err := s.scene.since(testing, marks)
		if err != nil {
			return "", err
		}
		for _, e := range objectWrites(events) {
			if e.Resource.Resource == "deployments" && e.Resource.Name == dns {
				return "", fmt.Errorf("the held object moved: %s", e)
			}
		}
		return "held, and no write of that Deployment is in the audit log: " + d.message, nil
	})
}

// publish commits a new version of a component and lets one cluster run it.
func (s *smoke) publish(ctx context.Context, component, version, cluster string) error {
	if err := s.repo.push(ctx, component+" "+version); err != nil {
		return err
	}
	if err := s.repo.tag(ctx, component, version, false); err != nil {
		return err
	}
	if err := s.repo.setVersion(cluster, component, version); err != nil {
		return err
	}
	return s.repo.push(ctx, "run "+component+" "+version)
}

// withChange runs a check that changes git, and takes the change back after it.
func (s *smoke) withChange(ctx context.Context, do func(context.Context, map[string]int64) (string, error)) (string, error) {
	before, err := s.repo.head(ctx)
	if err != nil {
		return "", err
	}
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	line, err := do(ctx, marks)
	rerr := s.repo.restore(ctx, before)
	if rerr == nil {
		rerr = s.repo.push(ctx, "take the last change back")
	}
	if rerr == nil && err == nil {
		rerr = s.converged(ctx, patience)
	}
	return line, errors.Join(err, rerr)
}

// checkBrokenTemplate publishes a version that does not render.
func (s *smoke) checkBrokenTemplate(ctx context.Context) (string, error) {
	return s.blocked(ctx, dns, "templates/", func(ctx context.Context) error {
		file, err := s.repo.templateWith(dns, "kind: Deployment")
		if err != nil {
			return err
		}
		if err := s.repo.replace(file, `(?m)^kind: Deployment$`, "kind: Deployment\n{{ fail \"broken on purpose\" }}"); err != nil {
			return err
		}
		return s.publish(ctx, dns, "v1.13.1", testing)
	})
}

// checkSchema sets a value that the chart's schema refuses.
func (s *smoke) checkSchema(ctx context.Context) (string, error) {
	return s.blocked(ctx, dns, "clusters/"+testing+"/coredns.yaml:", func(ctx context.Context) error {
		name, err := s.repo.integerValue(dns)
		if err != nil {
			return err
		}
		if err := s.repo.setValue(testing, dns, name, "many"); err != nil {
			return err
		}
		return s.repo.push(ctx, "many replicas")
	})
}

// checkUnknownKey misspells a key.
func (s *smoke) checkUnknownKey(ctx context.Context) (string, error) {
	return s.blocked(ctx, dns, "clusters/"+testing+"/coredns.yaml:", func(ctx context.Context) error {
		if err := s.repo.metaConfig(testing, dns, func(m map[string]any) { m["valeus"] = map[string]any{} }); err != nil {
			return err
		}
		return s.repo.push(ctx, "a misspelt key")
	})
}

// checkMovedTag moves the tag of the version that runs.
func (s *smoke) checkMovedTag(ctx context.Context) (string, error) {
	version, err := s.version(ctx, testing, dns)
	if err != nil {
		return "", err
	}
	old, err := s.repo.git(ctx, "rev-parse", dns+"/"+version)
	if err != nil {
		return "", err
	}
	line, err := s.blocked(ctx, dns, "moved", func(ctx context.Context) error {
		if err := s.repo.replace("components/coredns/component.yaml", `(?m)^namespace:`, "description: moved\nnamespace:"); err != nil &&
			!strings.Contains(err.Error(), "nothing matches") {
			return err
		}
		if err := s.repo.write("components/coredns/template/templates/extra.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: coredns-extra\n"); err != nil {
			return err
		}
		if err := s.repo.push(ctx, "not a new version"); err != nil {
			return err
		}
		if err := s.repo.tag(ctx, dns, version, true); err != nil {
			return err
		}
		return nil
	}, func(ctx context.Context) error {
		if _, err := s.repo.git(ctx, "tag", "-f", dns+"/"+version, strings.TrimSpace(old)); err != nil {
			return err
		}
		_, err := s.repo.git(ctx, "push", "-q", "-f", "origin", dns+"/"+version)
		return err
	})
	return line, err
}

// checkMissingTag names a version that was never published.
func (s *smoke) checkMissingTag(ctx context.Context) (string, error) {
	return s.blocked(ctx, dns, "clusters/"+testing+"/coredns.yaml:", func(ctx context.Context) error {
		if err := s.repo.setVersion(testing, dns, "v9.9.9"); err != nil {
			return err
		}
		return s.repo.push(ctx, "a version that does not exist")
	})
}

// checkSymlink publishes a version that holds a symbolic link.
func (s *smoke) checkSymlink(ctx context.Context) (string, error) {
	return s.blocked(ctx, dns, "secrets.yaml", func(ctx context.Context) error {
		if _, err := run(ctx, s.repo.work, "ln", "-s", "/etc/passwd", "components/coredns/template/templates/secrets.yaml"); err != nil {
			return err
		}
		return s.publish(ctx, dns, "v1.13.2", testing)
	})
}

// blocked makes a mistake on the testing cluster, and with the same push a
// good change of the beacon. The delivery must say where the mistake is, the
// component must stay as it was, and the beacon must arrive everywhere.
func (s *smoke) blocked(ctx context.Context, component, where string, mistake func(context.Context) error, undo ...func(context.Context) error) (string, error) {
	return s.withChange(ctx, func(ctx context.Context, marks map[string]int64) (string, error) {
		for _, u := range undo {
			defer u(context.WithoutCancel(ctx)) //nolint:errcheck // the convergence afterwards tells
		}
		push := time.Now().Format("150405.000")
		for _, c := range s.scene.clusters {
			if err := s.repo.setValue(c, beacon, "push", push); err != nil {
				return "", err
			}
		}
		if err := mistake(ctx); err != nil {
			return "", err
		}
		var d deliveryStatus
		err := until(ctx, patience, func(ctx context.Context) error {
			all, err := s.scene.deliveries(ctx)
			if err != nil {
				return err
			}
			d = all[testing+"."+component]
			if d.sync != "Blocked" || !strings.Contains(d.message, where) {
				return fmt.Errorf("want Blocked with %q: %s", where, d)
			}
			return s.beaconAt(ctx, push)
		})
		if err != nil {
			return "", err
		}
		if err := pause(ctx, 3*time.Second); err != nil {
			return "", err
		}
		for _, c := range s.scene.clusters {
			events, err := s.scene.since(c, marks)
			if err != nil {
				return "", err
			}
			for _, e := range objectWrites(events) {
				if e.Resource.Name != beacon {
					return "", fmt.Errorf("a mistake changed %s: %s", c, e)
				}
			}
		}
		return d.message + "\nthe clusters stayed as they were; the other change of the same push arrived on all", nil
	})
}

// beaconAt checks which push the clusters have.
func (s *smoke) beaconAt(ctx context.Context, push string, except ...string) error {
	for _, c := range s.scene.clusters {
		if slices.Contains(except, c) {
			continue
		}
		d, err := s.scene.dynamic(c)
		if err != nil {
			return err
		}
		u, err := d.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(beacon).Get(ctx, beacon, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		if v, _, _ := unstructured.NestedString(u.Object, "data", "push"); v != push {
			return fmt.Errorf("%s has push %s", c, v)
		}
	}
	return nil
}

// send pushes a value of the beacon and returns the value.
func (s *smoke) send(ctx context.Context) (string, error) {
	push := time.Now().Format("150405.000")
	for _, c := range s.scene.clusters {
		if err := s.repo.setValue(c, beacon, "push", push); err != nil {
			return "", err
		}
	}
	return push, s.repo.push(ctx, "beacon "+push)
}

// arrival is the time from a push until it is on all clusters but some.
func (s *smoke) arrival(ctx context.Context, except ...string) (time.Duration, string, error) {
	started := time.Now()
	push, err := s.send(ctx)
	if err != nil {
		return 0, "", err
	}
	err = until(ctx, patience, func(ctx context.Context) error { return s.beaconAt(ctx, push, except...) })
	return time.Since(started).Round(10 * time.Millisecond), push, err
}

// checkDeadGit stops the git server; drift is still restored meanwhile.
func (s *smoke) checkDeadGit(ctx context.Context) (string, error) {
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	if err := s.repo.close(); err != nil {
		return "", err
	}
	var message string
	err = until(ctx, patience, func(ctx context.Context) (err error) {
		message, err = s.eventMessage(ctx, "RepositoryUnreadable")
		return err
	})
	if err != nil {
		return "", errors.Join(err, s.repo.serve(ctx))
	}
	restored, err := s.checkDrift(ctx)
	if err != nil {
		return "", errors.Join(err, s.repo.serve(ctx))
	}
	for _, c := range []string{canary, production} {
		events, err := s.scene.since(c, marks)
		if err != nil {
			return "", err
		}
		if w := objectWrites(events); len(w) > 0 {
			return "", fmt.Errorf("%s: %s", c, w[0])
		}
	}
	if err := s.repo.serve(ctx); err != nil {
		return "", err
	}
	took, _, err := s.arrival(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s\nno cluster changed; meanwhile %s; when it was back, a push arrived after %s", message, restored, took), nil
}

func (s *smoke) eventMessage(ctx context.Context, reason string) (string, error) {
	d, err := s.scene.dynamic(hub)
	if err != nil {
		return "", err
	}
	list, err := d.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list events: %w", err)
	}
	for i := range list.Items {
		if r, _, _ := unstructured.NestedString(list.Items[i].Object, "reason"); r == reason {
			message, _, _ := unstructured.NestedString(list.Items[i].Object, "message")
			return "event " + reason + ": " + message, nil
		}
	}
	return "", fmt.Errorf("the hub has no event %s", reason)
}

// checkDeadCluster stops one API server. The others must not notice.
func (s *smoke) checkDeadCluster(ctx context.Context) (string, error) {
	all, _, err := s.arrival(ctx)
	if err != nil {
		return "", err
	}
	if err := s.scene.lab.Stop(ctx, canary, "kube-apiserver"); err != nil {
		return "", fmt.Errorf("stop the API server: %w", err)
	}
	back := func() error { return s.scene.lab.Start(context.WithoutCancel(ctx), canary, "kube-apiserver") }
	err = until(ctx, patience, func(ctx context.Context) error {
		all, err := s.scene.deliveries(ctx)
		if err != nil {
			return err
		}
		if d := all[canary+"."+beacon]; d.sync != "Unreachable" {
			return fmt.Errorf("%s", d)
		}
		return nil
	})
	if err != nil {
		return "", errors.Join(err, back())
	}
	others, push, err := s.arrival(ctx, canary)
	if err != nil {
		return "", errors.Join(err, back())
	}
	if err := back(); err != nil {
		return "", fmt.Errorf("start the API server: %w", err)
	}
	started := time.Now()
	if err := until(ctx, patience, func(ctx context.Context) error { return s.beaconAt(ctx, push) }); err != nil {
		return "", err
	}
	caught := time.Since(started).Round(10 * time.Millisecond)
	if err := s.converged(ctx, patience); err != nil {
		return "", err
	}
	return fmt.Sprintf("push to arrival %s with all three, %s on the other two while %s was down; it caught up %s after its return", all, others, canary, caught), nil
}
