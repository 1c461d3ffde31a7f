package kwok_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/cluster"
)

// atRest returns a Deployment of six pods at rest.
func (n *test) atRest(annotation, strategy string) (divided, *record) {
	n.Helper()
	k := dividedKinds()["Deployment"]
	n.Apply(deployment("web:v1", annotation, strategy))
	n.says(k, "that it has seen it", func(p progress) bool { return p.paused && p.waiting })
	r := n.follow()
	r.served("web:v1", 6)
	r.replay(func(world, watch.Event) {}) // nothing is judged before the update
	return k, r
}

// spec returns the fields that the controller changes, and the annotations that it writes.
func (n *test) spec() string {
	n.Helper()
	return n.Do("get", "deployment/web", "-o", `jsonpath={.spec.paused} {.spec.minReadySeconds} {.spec.progressDeadlineSeconds} {.spec.strategy.rollingUpdate} {.metadata.annotations.workloads\.keelson\.io/update-before}{.metadata.annotations.workloads\.keelson\.io/update-status}`)
}

// Each batch is updated with a surge, and no pod serves less. It takes a bounded number of writes.
func TestDeploymentSurge(t *testing.T) {
	n := begin(t)
	const annotation, strategy = "batches: {sizes: [30%, 70%], auto: true}", "maxSurge: 2, maxUnavailable: 0"
	k, r := n.atRest(annotation, strategy)
	from, err := audit.End(n.log)
	n.Check(err)
	n.Apply(deployment("web:v2", annotation, strategy))
	n.says(k, "that it is done", reason("Done"))
	r.served("web:v2", 6)
	r.inBatches(2, 6)
	events, _, err := audit.Read(n.log, from)
	n.Check(err)
	writes := map[string]int{}
	for _, e := range events {
		if e.Resource.Namespace == n.Namespace && e.Write() && (e.Resource.Resource == "deployments" || e.Resource.Resource == "replicasets") {
			result := map[bool]string{true: "accepted", false: "refused"}[e.Accepted()]
			writes[strings.TrimPrefix(e.User, "system:serviceaccount:kube-system:")+" "+e.Resource.Resource+" "+e.Resource.Subresource+" "+result]++
		}
	}
	t.Logf("an update of six pods in two batches: %v", writes)
	// Six pods come one by one at most: two writes for each, those around a batch, and counts once a second.
	if patches := writes[cluster.Keelson+" deployments  accepted"]; patches == 0 || patches > 60 {
		t.Errorf("%d writes of the Deployment", patches)
	}
	n.caughtUpAtRest(k)
}

// caughtUpAtRest checks that a Deployment at rest is neither read nor written.
func (n *test) caughtUpAtRest(k divided) {
	n.Helper()
	n.says(k, "that it is at rest", func(p progress) bool { return p.paused && p.waiting })
	from, err := audit.End(n.log)
	n.Check(err)
	n.Do("label", "pods", "--all", "touched=yes") // pods of a Deployment at rest are not followed
	n.Do("annotate", "deployment/web", "note=a")  // one answer: the status of this generation
	n.says(k, "that it has seen it", func(p progress) bool { return p.paused && p.waiting })
	events, _, err := audit.Read(n.log, from)
	n.Check(err)
	var requests []string
	for _, e := range events {
		ours := e.User == cluster.Keelson && e.Resource.Namespace == n.Namespace && e.Resource.Resource != "events"
		if conflict := e.Write() && !e.Accepted(); ours && !conflict {
			requests = append(requests, e.Stage+" "+e.Verb+" "+e.Resource.String())
		}
	}
	if len(requests) != 1 || !strings.Contains(requests[0], "patch") {
		n.Errorf("requests for a Deployment at rest after a new annotation: %v", requests)
	}
}

// Failed pods stop an update. The template of before ends it.
func TestDeploymentBatchFails(t *testing.T) {
	n := begin(t)
	const annotation, strategy = "batches: {sizes: [2, 100%], auto: true}", "maxSurge: 0, maxUnavailable: 1"
	k, r := n.atRest(annotation, strategy)
	n.Apply(deployment("web:v2-crash", annotation, strategy))
	p := n.says(k, "that it has failed", func(p progress) bool { return p.Reason == "Failed" && p.waiting && p.paused })
	if !strings.Contains(p.Message, "web-") {
		t.Errorf("it names no pod: %s", p.Message)
	}
	r.replay(func(now world, _ watch.Event) {
		if is := now.count(runs("web:v2-crash")); is > 2 || now.count(serves) < 5 {
			t.Errorf("%d pods are updated, and %d serve", is, now.count(serves))
		}
	})
	n.keelson("rollback", k)
	r.served("web:v1", 6)
	n.says(k, "that it is done", reason("Done"))
}

// A second template in the middle of an update, and the first one again.
func TestDeploymentOtherTemplate(t *testing.T) {
	n := begin(t)
	const annotation, strategy = "batches: {sizes: [2, 100%]}", "maxSurge: 1, maxUnavailable: 1"
	k, r := n.atRest(annotation, strategy)
	n.Apply(deployment("web:v2", annotation, strategy))
	n.says(k, "that it waits for a release", reason("Approval"))
	r.served("web:v2", 2)
	n.Apply(deployment("web:v3", annotation, strategy))
	n.says(k, "that it waits for a release", func(p progress) bool { return p.Reason == "Approval" && r.last().count(runs("web:v3")) == 2 })
	r.replay(func(now world, _ watch.Event) {
		if is := now.count(runs("web:v3")); is > 2 || now.count(serves) < 5 {
			t.Errorf("%d pods run web:v3, and %d serve", is, now.count(serves))
		}
	})
	n.Apply(deployment("web:v1", annotation, strategy)) // the way back is not divided
	n.says(k, "that it is done", reason("Done"))
	r.served("web:v1", 6)
	r.replay(func(now world, _ watch.Event) {
		if now.count(serves) < 5 {
			t.Errorf("%d pods serve on the way back", now.count(serves))
		}
	})
}

// Without the annotation, the Deployment has its fields again, and Kubernetes ends the update.
func TestDeploymentHandBack(t *testing.T) {
	n := begin(t)
	const strategy = "maxSurge: 25%, maxUnavailable: 25%"
	k, r := n.atRest("partition: 4", strategy)
	n.Apply(deployment("web:v2", "partition: 4", strategy))
	n.says(k, "that it is at its partition", reason("Partition"))
	r.served("web:v2", 2)
	n.Do("annotate", "deployment/web", "workloads.keelson.io/update-strategy-")
	r.served("web:v2", 6)
	const want = `600 {"maxSurge":"25%","maxUnavailable":"25%"}`
	r.until("handed back", func(world) bool { return n.spec() == want })
	n.Do("rollout", "status", "deployment/web", "--timeout=3m")
	n.Do("annotate", "deployment/web", "workloads.keelson.io/update-strategy={partition: 6}")
	n.says(k, "that it has seen it", func(p progress) bool { return p.paused })
	n.Do("set", "image", "deployment/web", "web=web:v3")
	n.says(k, "that it has seen it", reason("Partition"))
	if r.last().count(runs("web:v3")) > 0 {
		t.Error("a partition of all pods is not kept")
	}
}

// An annotation that can't be followed moves nothing. A field of the user is kept and given back.
func TestDeploymentRefused(t *testing.T) {
	n := begin(t)
	k, r := n.atRest("paused: true", "maxSurge: 1, maxUnavailable: 0")
	n.Apply(deployment("web:v2", "batches: {sizes: [30%, 80%]}", "maxSurge: 1, maxUnavailable: 0"))
	n.says(k, "why it is refused", func(p progress) bool { return p.Reason == "Refused" && strings.Contains(p.Message, "100%") })
	if r.last().count(runs("web:v2")) > 0 {
		t.Error("it is refused, and a pod is updated")
	}
	n.Do("patch", "deployment/web", "--type=merge", "-p", `{"spec": {"minReadySeconds": 1, "strategy": {"rollingUpdate": {"maxSurge": 2}}}}`)
	n.Do("annotate", "deployment/web", "--overwrite", "workloads.keelson.io/update-strategy={}")
	r.served("web:v2", 6)
	n.says(k, "that it is done", reason("Done"))
	if got, want := n.spec(), `true 1 600 {"maxSurge":2,"maxUnavailable":0} `; !strings.HasPrefix(got, want) {
		t.Errorf("it has %s, want %s", got, want)
	}
	n.Do("annotate", "deployment/web", "workloads.keelson.io/update-strategy-")
	r.until("handed back", func(world) bool { return n.spec() == `1 600 {"maxSurge":2,"maxUnavailable":0}` })
}

// A Deployment that is scaled in the middle of an update keeps both templates.
func TestDeploymentScaled(t *testing.T) {
	n := begin(t)
	const annotation, strategy = "batches: {sizes: [50%, 50%]}", "maxSurge: 0, maxUnavailable: 3"
	k, r := n.atRest(annotation, strategy)
	n.Apply(deployment("web:v2", annotation, strategy))
	n.says(k, "that it waits for a release", reason("Approval"))
	for _, replicas := range []int{10, 4} {
		n.Do("scale", "deployment/web", fmt.Sprint("--replicas=", replicas))
		r.until(fmt.Sprint(replicas, " pods serve"), func(now world) bool {
			return len(now) == replicas && now.count(serves) == replicas && now.count(runs("web:v2")) == replicas/2
		})
		n.says(k, "that it waits for a release", reason("Approval"))
	}
	n.keelson("next-batch", k)
	r.until("all pods are updated", func(now world) bool {
		return len(now) == 4 && now.count(func(p *corev1.Pod) bool { return serves(p) && runs("web:v2")(p) }) == 4
	})
	n.says(k, "that it is done", reason("Done"))
}
