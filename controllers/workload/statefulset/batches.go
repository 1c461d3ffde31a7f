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
	// before returns [batch.Update.Before], after the pods were read.
	before func() string
}

// divide returns what is wanted, with the limits of the batch, and the decision about it. read reads the
// pods, and returns their sums and the failed ones, as they are counted for what is wanted. It is called
// once or twice, the last time with what is returned. members returns the pods that were read.
func (d *divider) divide(read func(want) (sums, []string), members func() []member) (want, batch.Decision) {
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
		s, failed := read(w)
		d.update.Before = d.before()
		decision := batch.Decide(d.batches, d.was, d.update, batch.Pods{
			Wanted: w.ordinals.Count(), Reached: s.reached, Updated: s.renewed, Available: s.renewedAvailable, Old: s.kept - s.reached, Failed: failed,
		})
		limited := d.limit(w, decision)
		if limited.partition == w.partition && slices.Equal(limited.ahead, w.ahead) {
			d.bringAhead(limited, s, members, &decision)
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
	w.ahead = slices.Compact(w.ahead) // a status may have been written by others
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
// that is not updated. If all pods of the batch keep their places, and one of them does not run, the batch
// gets larger. What is added counts from the next reconcile on, when the status says so: a process that
// ends must not forget that the pod has to come back with the new revision.
//
// A pod that is missing may have been updated before it was lost. Then it keeps its place: otherwise it
// would come back with the old revision.
func (d *divider) bringAhead(w want, s sums, members func() []member, decision *batch.Decision) {
	status := decision.Status
	serving := s.available >= w.ordinals.Count() && s.kept >= w.ordinals.Count()
	if w.unordered || serving || status == nil || status.Reason != v1beta1.BatchUpdating {
		return
	}
	all := members()
	broken, found := d.broken(w, all)
	if !found {
		return
	}
	brought := int32(broken.ordinal) //nolint:gosec // it was one
	places, lost := placesOf(all), int(status.Reached) > s.reached
	ahead, room := d.exchange(w, places, lost)
	if ahead = append(ahead, brought); room && len(status.Ahead)+len(ahead) <= maxAhead {
		status.Ahead, decision.After = append(status.Ahead, ahead...), batch.Again
		return
	}
	// A pod that came ahead gives its place up if it is ready again. So does a higher one that is not
	// updated: it may be missing, and the lower is created first.
	for i, n := range status.Ahead {
		at, is := w.ordinals.Position(int(n))
		if p := places[at]; is && !p.updated && (p.ready || at > broken.position && !lost) {
			status.Ahead[i], decision.After = brought, batch.Again
			return
		}
	}
	// The pods that are left keep their places. One that does not run may wait for the broken pod.
	waits := slices.ContainsFunc(w.ahead, func(at int) bool { return !places[at].live })
	if waits && len(status.Ahead) < maxAhead {
		status.Ahead, decision.After = append(status.Ahead, brought), batch.Again
	}
}

// exchange reports whether the batch has room for a pod that comes ahead. It returns the ordinals that
// have to come ahead with it, to stay in the batch: those below the pod that gives up its place. If none
// does, but one may have been lost, the batch gets larger.
func (d *divider) exchange(w want, places map[int]place, lost bool) (ahead []int32, room bool) {
	for at := w.partition; at < w.ordinals.Count() && len(ahead) < maxAhead; at++ {
		p := places[at]
		switch {
		case slices.Contains(w.ahead, at):
			continue
		case !p.updated && (p.old || !lost):
			return ahead, true
		}
		room = room || !p.updated || !p.live
		ahead = append(ahead, int32(w.ordinals.At(at))) //nolint:gosec // it was one
	}
	return ahead, room
}

// place is the pod at a position: whether it has the update revision, lives, lives with another revision,
// and is ready. The zero place has none.
type place struct{ updated, live, old, ready bool }

func placesOf(members []member) map[int]place {
	out := map[int]place{}
	for _, m := range members {
		if m.kept {
			out[m.position] = place{updated: m.updated, live: m.live(), old: m.live() && !m.updated, ready: m.live() && m.ready}
		}
	}
	return out
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
		case m.live() && !m.updated && !m.ready && m.position >= d.want.partition && w.stays(m.position) && !w.notUpdatable(m):
			return m, true
		case w.ordered && !m.available:
			return m, false // the pods above wait for this one
		}
		next++
	}
	return member{}, false
}
