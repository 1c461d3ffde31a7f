package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/keelson-io/keelson/lab/chaos/proxy"
	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

const (
	podNamespace = "default"
	// workloads is the number of CloneSets and StatefulSets that are updated at the same time. They
	// share one controller process, which is killed repeatedly.
	workloads = 20
	// maxWrites is the highest number of writes before a kill. maxReads is the highest
	// number of requests before a kill while the process still reads the initial state.
	maxWrites, maxReads = 150, 5
	// rolloutPatience is how long one rollout may take. It is long because the process
	// restarts repeatedly.
	rolloutPatience = 15 * time.Minute
)

// workloadFleet is a set of workloads that are updated while their controller is killed.
type workloadFleet struct {
	*world
	all   dynamic.Interface
	watch *harness.PodWatch

	mu    sync.Mutex
	out   *result
	kills int
}

// workload is a CloneSet or a StatefulSet, with the limits of its update.
type workload struct {
	kind, name                         string
	replicas, maxUnavailable, maxSurge int
	// settings are the other fields of its spec, and of its rolling updates, as parts of JSON.
	settings, rolling string
	// ends are how many pods are updated at the end of each batch; nil: updates are not divided.
	ends   []int
	chance *rand.Rand
}

// newWorkload draws a workload: half of them are CloneSets, and the others StatefulSets, in order or
// in parallel.
func newWorkload(i int, chance *rand.Rand) *workload {
	w := &workload{kind: "CloneSet", name: fmt.Sprintf("cloneset-%02d", i), replicas: 3 + chance.IntN(5), maxUnavailable: 1 + chance.IntN(2), chance: chance}
	w.rolling = fmt.Sprintf(`"podUpdatePolicy": %q`, []string{"ReCreate", "InPlaceIfPossible"}[chance.IntN(2)])
	if i%2 == 0 {
		w.maxSurge = chance.IntN(3)
		w.rolling += fmt.Sprintf(`, "maxSurge": %d`, w.maxSurge)
		return w
	}
	w.kind, w.name = "StatefulSet", fmt.Sprintf("statefulset-%02d", i)
	policy := []string{"OrderedReady", "Parallel"}[chance.IntN(2)]
	if policy == "OrderedReady" {
		w.maxUnavailable = 1
	}
	if chance.IntN(2) == 0 {
		w.ends = []int{1, min(1+(w.replicas+1)/2, w.replicas), w.replicas}
		w.rolling += `, "batches": {"sizes": [1, "50%", "50%"], "auto": true}`
	}
	w.settings = fmt.Sprintf(`"podManagementPolicy": %q, "serviceName": %q, "ordinals": {"start": %d}, "reserveOrdinals": [%d],`, policy, w.name, chance.IntN(2), 1+chance.IntN(4))
	return w
}

// steps draws the partitions of a rollout. A CloneSet goes back in every second one; a StatefulSet
// never does.
func (w *workload) steps(rollout int) []int {
	if rollout%2 == 1 && w.kind == "CloneSet" { // a partition of at least 1, since a complete rollout can't go back
		return []int{1 + w.chance.IntN(w.replicas), w.replicas, 0}
	}
	return []int{w.chance.IntN(w.replicas + 1), 0}
}

// runWorkloads updates CloneSets and StatefulSets, in place and by replacement, to partitions and
// back, while keelson workloads is killed at random requests. Then it judges every write of the
// process by the state of the pods at that moment.
func runWorkloads(ctx context.Context, w *world, r *result) {
	r.did, r.must = "rollouts of CloneSets and StatefulSets whose controller is killed again and again", w.Workloads
	c := &workloadFleet{world: w, out: r}
	c.install(ctx)
	mark := w.mark()
	c.watch = must.Get(harness.WatchPods(ctx, must.Get(kubernetes.NewForConfig(w.client(cluster.Admin))), podNamespace))
	defer c.watch.Stop()
	sets, promised := make([]*workload, workloads), map[string]*workload{}
	for i := range sets {
		sets[i] = newWorkload(i, w.chance(fmt.Sprintf("cloneset-%02d", i)))
		promised[sets[i].name] = sets[i]
	}
	killing, stop := context.WithCancel(ctx)
	defer stop()
	killed := make(chan error, 1)
	go func() { killed <- must.Try(func() { c.kill(killing, w.chance("kills")) }) }()
	err := must.Try(func() {
		must.All(workloads, func(i int) { c.roll(ctx, sets[i]) })
	})
	stop()
	must.Do(errors.Join(err, <-killed))
	c.judge(mark, promised)
}

// install creates the CRDs of the workload controllers in the cluster.
func (c *workloadFleet) install(ctx context.Context) {
	c.all = c.dynamic()
	must.Do(harness.InstallCRDs(ctx, c.all, filepath.Join(filepath.Dir(filepath.Dir(c.keelson)), "components", "workload-controllers", "template", "crds")))
	until(ctx, hungAfter, func(ctx context.Context) {
		for _, kind := range []string{"CloneSet", "StatefulSet"} {
			must.Get(c.sets(kind).List(ctx, metav1.ListOptions{}))
		}
	})
}

// sets returns the client of a kind of workloads.
func (c *workloadFleet) sets(kind string) dynamic.ResourceInterface {
	return c.all.Resource(harness.Resource("apps.kruise.io/v1beta1/" + strings.ToLower(kind) + "s")).Namespace(podNamespace)
}

// kill starts the process and kills it at a random request, repeatedly until the context
// ends. A life is measured in requests, not in time, so that the rollouts finish even on
// the slowest machine.
func (c *workloadFleet) kill(ctx context.Context, chance *rand.Rand) {
	p, kubeconfig := c.proxied("workloads", proxy.Options{})
	for ctx.Err() == nil {
		l := newProcessRun(chance)
		p.Use(l.decide)
		k := c.start(launch{name: "workloads", kubeconfig: kubeconfig}, "workloads", "--context", target, "--lead=false", "--listen", "")
		select {
		case <-l.over:
		case <-ctx.Done(): // all rollouts are done
		case <-k.Done():
			must.Failf("keelson workloads ended by itself (its log: %s)", k.Log)
		}
		must.Do(k.Kill())
		c.mu.Lock()
		c.kills++
		c.mu.Unlock()
	}
}

// processRun ends one process at one of its requests. The process is killed before the request
// reaches the API server, or if answered is set, before the process gets the answer.
type processRun struct {
	// reads: the process is killed while it reads the initial state.
	reads, answered bool
	end             sync.Once
	over            chan struct{} // closed when the process is to be killed

	mu   sync.Mutex
	left int // number of requests until the kill
}

func newProcessRun(chance *rand.Rand) *processRun {
	l := &processRun{reads: chance.IntN(4) == 0, answered: chance.IntN(2) == 0, over: make(chan struct{}), left: 1 + chance.IntN(maxWrites)}
	if l.reads {
		l.left = 1 + chance.IntN(maxReads)
	}
	return l
}

func (l *processRun) decide(r proxy.Request) proxy.Verdict {
	if !l.reads && !r.Write() {
		return proxy.Verdict{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left--
	if l.left > 0 {
		return proxy.Verdict{}
	}
	if l.left == 0 && l.answered {
		return proxy.Verdict{Fault: proxy.DropAnswer, Answered: l.ends}
	}
	l.ends()
	return proxy.Verdict{Fault: proxy.Hang} // until the process has ended
}

func (l *processRun) ends() { l.end.Do(func() { close(l.over) }) }

// roll creates a workload and carries out its share of the rollouts. Each rollout goes to a partition
// and then to the end.
func (c *workloadFleet) roll(ctx context.Context, w *workload) {
	made := object(fmt.Sprintf(`{"apiVersion": "apps.kruise.io/v1beta1", "kind": %[1]q, "metadata": {"name": %[2]q}, "spec": {
		"replicas": %[3]d, "selector": {"matchLabels": {"app": %[2]q}}, %[5]s
		"updateStrategy": {"rollingUpdate": {"maxUnavailable": %[4]d, %[6]s}},
		"template": {"metadata": {"labels": {"app": %[2]q}}, "spec": {"containers": [{"name": "web", "image": "web:v0"}]}}}}`,
		w.kind, w.name, w.replicas, w.maxUnavailable, w.settings, w.rolling))
	must.Get(c.sets(w.kind).Create(ctx, made, metav1.CreateOptions{}))
	c.settled(ctx, w, w.replicas)
	for i := range (c.Workloads + workloads - 1) / workloads {
		c.mu.Lock()
		c.out.number++
		c.mu.Unlock()
		began := time.Now()
		for _, partition := range w.steps(i) {
			patch := fmt.Sprintf(`{"spec": {"updateStrategy": {"rollingUpdate": {"partition": %d}}, "template": {"spec": {"containers": [{"name": "web", "image": "web:v%d"}]}}}}`, partition, i+1)
			must.Get(c.sets(w.kind).Patch(ctx, w.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))
			must.Wrap(func() { c.settled(ctx, w, w.replicas-partition) }, "rollout %d to partition %d", i+1, partition)
		}
		c.mu.Lock()
		c.out.recovered(time.Since(began))
		c.mu.Unlock()
	}
}

// settled waits until all pods of a workload are available and the given number is updated.
func (c *workloadFleet) settled(ctx context.Context, w *workload, updated int) {
	until(ctx, rolloutPatience, func(ctx context.Context) {
		set := must.Get(c.sets(w.kind).Get(ctx, w.name, metav1.GetOptions{}))
		status, _, err := unstructured.NestedMap(set.Object, "status")
		must.Do(err)
		want := map[string]int{
			"observedGeneration": int(set.GetGeneration()), "replicas": w.replicas, "availableReplicas": w.replicas, "updatedReplicas": updated, "updatedReadyReplicas": updated,
		}
		for field, n := range want {
			if is, _ := status[field].(int64); is != int64(n) {
				must.Failf("%s: %s is %d and not %d", w.name, field, is, n)
			}
		}
	})
}

// podTally counts the pods of a workload.
type podTally struct{ active, available int }

// judge judges each of Keelson's writes by the state of the pods at that moment. A write
// may not create more pods than the surge allows, and may not take a needed pod out of
// service.
func (c *workloadFleet) judge(mark int64, promised map[string]*workload) {
	ours, events := c.ours(mark), c.watch.Events()
	pods, tallies, judged := map[types.UID]*corev1.Pod{}, map[string]podTally{}, 0
	for _, e := range events {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok {
			must.Failf("the watch of pods broke, and nothing can be said of it: %v", e.Object)
		}
		name := pod.Labels["app"]
		b, before := promised[name], tallies[name]
		c.judgeBatch(b, pods, e.Type, pod)
		after := before.less(pods[pod.UID])
		if e.Type == watch.Deleted {
			delete(pods, pod.UID)
		} else {
			pods[pod.UID] = pod
			after = after.more(pod)
		}
		tallies[name] = after
		if !ours[pod.ResourceVersion] {
			continue
		}
		if b == nil {
			must.Failf("pod %s, which the controller wrote, is of none of the workloads", pod.Name)
		}
		judged++
		if after.active > before.active && after.active > b.replicas+b.maxSurge {
			c.out.violate("%s: pod %s is one of %d, of %d and a surge of %d", name, pod.Name, after.active, b.replicas, b.maxSurge)
		}
		if after.available < before.available && after.available < b.replicas-b.maxUnavailable {
			c.out.violate("%s: pod %s was taken out of service, and %d of %d were left, of which %d may be unavailable", name, pod.Name, after.available, b.replicas, b.maxUnavailable)
		}
	}
	c.out.notes = append(c.out.notes, fmt.Sprintf("%d kills, %d writes of pods judged, %d states of pods seen", c.kills, judged, len(events)))
	if judged == 0 || c.kills < c.out.number/workloads {
		must.Failf("%d writes judged, %d kills: this shows nothing", judged, c.kills)
	}
}

// judgeBatch judges a pod that comes to a new image: all pods of the batches before it serve. pods are the
// states before.
func (c *workloadFleet) judgeBatch(b *workload, pods map[types.UID]*corev1.Pod, what watch.EventType, pod *corev1.Pod) {
	image := pod.Spec.Containers[0].Image
	if was := pods[pod.UID]; b == nil || what == watch.Deleted || image == "web:v0" || was != nil && was.Spec.Containers[0].Image == image {
		return
	}
	updated, serving := 0, 0
	for _, p := range pods {
		if p.Labels["app"] == b.name && p.Spec.Containers[0].Image == image && p.DeletionTimestamp == nil {
			updated++
			serving += podTally{}.more(p).available
		}
	}
	if slices.Contains(b.ends, updated) && serving < updated {
		c.out.violate("%s: pod %s follows a batch of %d pods with %s, of which %d serve", b.name, pod.Name, updated, image, serving)
	}
}

// ours returns the resourceVersions of pods that Keelson wrote.
func (c *workloadFleet) ours(mark int64) map[string]bool {
	out := map[string]bool{}
	for _, e := range c.since(mark) {
		if version := e.ResourceVersion(); e.Resource.Resource == "pods" && e.Accepted() && version > 0 {
			out[strconv.FormatUint(version, 10)] = true
		}
	}
	return out
}

func (t podTally) less(p *corev1.Pod) podTally {
	if p == nil {
		return t
	}
	one := podTally{}.more(p)
	return podTally{t.active - one.active, t.available - one.available}
}

// more adds a pod to the counts. A pod is available if it serves.
func (t podTally) more(p *corev1.Pod) podTally {
	if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return t
	}
	t.active++
	if harness.Serves(p) {
		t.available++
	}
	return t
}
