package kwok_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/keelson-io/keelson/lab/e2e/workloadtest"
)

// A pod marked for deletion is deleted at once if maxUnavailable permits it, else after its
// replacement is available. This is OpenKruise's table of (maxUnavailable, maxSurge).
func TestSpecifiedDelete(t *testing.T) {
	t.Parallel()
	const another, itself = "other", "marked"
	atOnce := []string{"marked leaves", "new comes", "new serves"}
	for name, c := range map[string]struct {
		why                      string
		maxUnavailable, maxSurge int
		fails                    string // the unavailable pod
		want                     []string
		available                int64 // at the end, of four
	}{
		"Room":    {"Two pods may be unavailable, and one is.", 2, 1, another, atOnce, 3},
		"NoRoom":  {"One pod may be unavailable, and another pod is. So the surge pod must be available first.", 1, 1, another, []string{"new comes", "new serves", "marked leaves"}, 3},
		"Useless": {"One pod may be unavailable, and the marked pod is the unavailable one.", 1, 1, itself, atOnce, 4},
	} {
		t.Run(name, func(t *testing.T) {
			n := begin(t)
			// The delay makes the wait for the new pod observable.
			n.Apply(cloneSet(fmt.Sprintf("replicas: 4\n  updateStrategy: {rollingUpdate: {maxUnavailable: %d, maxSurge: %d}}", c.maxUnavailable, c.maxSurge),
				", annotations: {lab.keelson.io/delay: 1s}"))
			n.Settled("web", 4, 4)
			pods := slices.Sorted(maps.Keys(n.follow().last().uids()))
			roles := map[string]string{pods[0]: itself, pods[1]: another, pods[2]: "third", pods[3]: "fourth"}
			fails := pods[slices.Index([]string{itself, another}, c.fails)]
			n.Do("annotate", "pod", fails, "lab.keelson.io/ready=false")
			n.Until("clonesets/web", "one less", func(s workloadtest.Status) bool { return s.Replicas == 4 && s.AvailableReplicas == 3 })

			r := n.follow()
			n.Do("label", "pod", pods[0], "apps.kruise.io/specified-delete=true")
			r.until("replaced", func(now world) bool {
				_, there := now.uids()[pods[0]]
				return !there && len(now) == 4 && now.count(serves) == int(c.available)
			})
			n.Until("clonesets/web", "at rest", func(s workloadtest.Status) bool { return s.Replicas == 4 && s.AvailableReplicas == c.available })
			if diff := cmp.Diff(c.want, r.steps(roles)); diff != "" {
				t.Errorf("%s\n-want +got:\n%s", c.why, diff)
			}
		})
	}
}

// steps returns the observed changes of pods, by their roles. Pods created later have the role new.
func (r *record) steps(roles map[string]string) []string {
	r.Helper()
	var steps []string
	came, left, served := map[types.UID]bool{}, map[types.UID]bool{}, map[types.UID]bool{}
	r.replay(func(now world, e watch.Event) {
		if e.Object == nil { // the initial state
			for uid, p := range now {
				came[uid], served[uid] = true, serves(p)
			}
			return
		}
		p := e.Object.(*corev1.Pod) //nolint:forcetypeassert // it was replayed
		role := roles[p.Name]
		if role == "" {
			role = "new"
		}
		for _, turn := range []struct {
			what   string
			before map[types.UID]bool
			is     bool
		}{{"comes", came, true}, {"leaves", left, !stays(p) || left[p.UID]}, {"serves", served, serves(p) || served[p.UID]}} {
			if turn.is && !turn.before[p.UID] {
				turn.before[p.UID] = true
				steps = append(steps, role+" "+turn.what)
			}
		}
	})
	return steps
}

// A partition of 80, 60, 40, 20 and 0 of 100 pods gives an update in five batches. A raised
// partition reverts pods in place. Never are more than maxUnavailable pods unavailable.
func TestPartition(t *testing.T) {
	const pods, maxUnavailable = 100, 10
	n := begin(t)
	n.Apply(cloneSet(fmt.Sprintf("replicas: %d\n  updateStrategy: {rollingUpdate: {podUpdatePolicy: InPlaceOnly, maxUnavailable: %d, partition: %[1]d}}",
		pods, maxUnavailable), ""))
	first := n.Settled("web", pods, pods)
	if first.CurrentRevision == "" || first.CurrentRevision != first.UpdateRevision {
		t.Fatalf("%+v", first)
	}
	r := n.follow()
	before := r.last().uids()
	n.Patch("clonesets/web", `{"template": {"spec": {"containers": [{"name": "web", "image": "web:v2"}]}}}`)
	n.Settled("web", pods, 0)

	was := 0
	for _, partition := range []int{80, 60, 40, 20, 40, 60, 80, 100, 80, 60, 40, 20, 0} {
		n.Patch("clonesets/web", fmt.Sprintf(`{"updateStrategy": {"rollingUpdate": {"partition": %d}}}`, partition))
		updated := pods - partition
		s := n.Settled("web", pods, int64(updated))
		current := first.CurrentRevision
		if updated == pods {
			current = s.UpdateRevision // all pods have this revision
		}
		if s.ExpectedUpdatedReplicas != int64(updated) || s.CurrentRevision != current || s.UpdateRevision == first.UpdateRevision {
			t.Errorf("partition %d: %+v; the first revision is %s", partition, s, first.UpdateRevision)
		}
		out, low, high := 0, pods, 0
		r.replay(func(now world, _ watch.Event) {
			out = max(out, pods-now.count(serves))
			low, high = min(low, now.count(runs("web:v2"))), max(high, now.count(runs("web:v2")))
		})
		if out > maxUnavailable || out < maxUnavailable/2 {
			t.Errorf("partition %d: %d pods were not available at a time; %d may be, and half of that at least is made use of", partition, out, maxUnavailable)
		}
		if low != min(was, updated) || high != max(was, updated) {
			t.Errorf("partition %d: %d to %d pods had the new revision, on the way from %d to %d", partition, low, high, was, updated)
		}
		now := r.last()
		if diff := cmp.Diff(before, now.uids()); diff != "" {
			t.Errorf("partition %d: pods were replaced: -before +after:\n%s", partition, diff)
		}
		for uid, p := range now {
			of := map[string]string{"web:v1": first.UpdateRevision, "web:v2": s.UpdateRevision}[p.Status.ContainerStatuses[0].Image]
			if hash := p.Labels["controller-revision-hash"]; !strings.HasSuffix(of, "-"+hash) || p.Spec.Containers[0].Image != p.Status.ContainerStatuses[0].Image {
				t.Errorf("partition %d: %s %s has revision %q, and runs %s", partition, p.Name, uid, hash, p.Status.ContainerStatuses[0].Image)
			}
		}
		was = updated
	}
}
