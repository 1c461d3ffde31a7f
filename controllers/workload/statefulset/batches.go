package statefulset

import (
	"slices"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

// maxAhead bounds how many pods are in a batch before their turn.
const maxAhead = 100

// divider divides the update of a StatefulSet into batches.
type divider struct {
	want    want // as the spec says
	batches *v1beta1.UpdateBatches
	was     *v1beta1.BatchStatus
	update  batch.Update
}

// divide returns what is wanted, with the limits of the batch, and the decision about it. read returns
// the pods, their sums and the failed ones, as they are counted for what is wanted. It is called once or
// twice, the last time with what is returned.
func (d *divider) divide(read func(want) ([]member, sums, []string)) (want, batch.Decision) {
	w := d.want
	if d.batches == nil {
		read(w)
		return w, batch.Decision{}
	}
	w.divided = true
	if d.was != nil && d.was.Revision == d.update.Revision { // the usual case: the batch goes on
		w = d.limit(w, batch.Decide(d.batches, d.was, d.update, batch.Pods{Wanted: w.ordinals.Count()}))
	}
	for {
		members, s, failed := read(w)
		decision := batch.Decide(d.batches, d.was, d.update, batch.Pods{
			Wanted: w.ordinals.Count(), Reached: s.reached, Updated: s.renewed, Available: s.renewedAvailable, Failed: failed,
		})
		limited := d.limit(w, decision)
		if limited.partition == w.partition && slices.Equal(limited.ahead, w.ahead) {
			d.bringAhead(limited, members, &decision)
			return limited, decision
		}
		w = limited
	}
}

// limit returns what is wanted within the limits of a decision. A batch has the pods that are ahead of
// their turn, and as many more with the highest ordinals as it has room for.
func (d *divider) limit(w want, decision batch.Decision) want {
	w.stopped, w.ahead, w.partition = decision.Stopped, nil, max(d.want.partition, decision.Partition)
	if decision.Status == nil || w.unordered {
		return w
	}
	for _, n := range decision.Status.Ahead {
		if at, kept := w.ordinals.Position(int(n)); kept && at >= d.want.partition {
			w.ahead = append(w.ahead, at)
		}
	}
	slices.Sort(w.ahead)
	lowest := w.ordinals.Count()
	for room := lowest - decision.Partition - len(w.ahead); room > 0; {
		if lowest--; !slices.Contains(w.ahead, lowest) {
			room--
		}
	}
	w.partition = max(lowest, d.want.partition)
	return w
}

// bringAhead adds a pod to the batch that is not ready, and for which others may wait: the next pod with
// OrderedReady, and any if no more may be unavailable. It takes the place of the lowest pod of the batch
// that is not updated. What is added counts from the next reconcile on, when the status says so: a
// process that ends must not forget that the pod has to come back with the new revision.
func (d *divider) bringAhead(w want, members []member, decision *batch.Decision) {
	status := decision.Status
	if w.unordered || status == nil || status.Reason != v1beta1.BatchUpdating {
		return
	}
	broken, found := d.broken(w, members)
	if !found {
		return
	}
	// What is updated below that lowest pod stays in the batch.
	updated, ready := map[int]int{}, map[int]bool{}
	for _, m := range members {
		if m.kept && m.live() && m.updated {
			updated[m.position] = m.ordinal
		}
		ready[m.position] = ready[m.position] || m.kept && m.live() && m.ready
	}
	ahead := []int32{int32(broken.ordinal)} //nolint:gosec // it was one
	for at := w.partition; at < w.ordinals.Count() && len(status.Ahead)+len(ahead) <= maxAhead; at++ {
		ordinal, is := updated[at]
		switch {
		case slices.Contains(w.ahead, at):
		case is:
			ahead = append(ahead, int32(ordinal)) //nolint:gosec // as above
		default:
			status.Ahead, decision.After = append(status.Ahead, ahead...), batch.Again
			return
		}
	}
	// A pod that came ahead gives its place up if it is ready again. So does a higher one that is not
	// updated: it may be missing, and the lower is created first.
	for i, n := range status.Ahead {
		at, kept := w.ordinals.Position(int(n))
		if _, is := updated[at]; kept && !is && (ready[at] || at > broken.position) {
			status.Ahead[i], decision.After = int32(broken.ordinal), batch.Again //nolint:gosec // as above
			return
		}
	}
}

// broken returns the pod that bringAhead adds.
func (d *divider) broken(w want, members []member) (member, bool) {
	next := 0 // the position of the next pod in order
	for _, m := range members {
		switch {
		case !m.kept:
			continue
		case w.ordered && m.position != next:
			return m, false // a pod is missing, and those above wait for it
		case m.live() && !m.updated && !m.ready && m.position >= d.want.partition && w.stays(m.position):
			return m, true
		case w.ordered && !m.available:
			return m, false // the pods above wait for this one
		}
		next++
	}
	return member{}, false
}
