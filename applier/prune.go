package applier

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// An object that left a complete target is deleted in two passes. The first pass applies all other
// changes, and then marks the object in the record. A later pass discovers the API anew and reads
// the object from the API server. It deletes the object if the same target still lacks it. So an
// error of one pass about the cluster or the chart deletes nothing, unless a second pass makes the
// same error.

const (
	// secondPass is the delay before the pass that deletes marked objects.
	secondPass = 10 * time.Millisecond
	// waitPass is the delay before a waiting deletion is planned again. It waits for another
	// component, or for an API group that can't be discovered. No event may announce the end.
	waitPass = 30 * time.Second
)

// absentFrom returns the target of an absent component. Its hash stays the same until the component
// is gone. After a reinstallation it differs, so that the hooks run again.
func absentFrom(rec *records.Stored, t *renderer.Target) *renderer.Target {
	out := &renderer.Target{Hash: rec.TargetHash}
	if t != nil {
		out.Hooks = t.Hooks
	}
	if !strings.HasPrefix(rec.TargetHash, records.AbsentPrefix) {
		last := records.HistoryEntry{}
		if len(rec.History) > 0 {
			last = rec.History[0]
		}
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %s", rec.TargetHash, last.Number, last.Time))
		out.Hash = records.AbsentPrefix + hex.EncodeToString(sum[:16])
	}
	return out
}

// due reports whether an earlier pass marked an object, for the target that is wanted now.
func (p *Prepared) due(id differ.ID) bool {
	o := p.recorded(id)
	return o != nil && o.UID != "" && o.Pruning != nil && o.Pruning.TargetHash == p.want.Target.Hash
}

// deletesNow reports whether this pass may send a DELETE that was not sent yet.
func (p *Prepared) deletesNow() bool {
	return slices.ContainsFunc(p.states, func(s differ.State) bool {
		return s.Target == nil && p.due(s.ID) && p.recorded(s.ID).Intent != records.IntentDelete
	})
}

// markStale reports whether a marked object is in the target again, or stays for another reason.
func (p *Prepared) markStale() bool {
	for i := range p.states {
		o := p.recorded(p.states[i].ID)
		if p.stays(i) && o != nil && o.Pruning != nil {
			return true
		}
	}
	return false
}

// stays reports whether an object is wanted, or is an earlier version that stays.
func (p *Prepared) stays(i int) bool {
	return p.states[i].Target != nil || p.Plan.Changes[i].Retained != ""
}

// recorded returns an object's entry in the record; nil: none.
func (p *Prepared) recorded(id differ.ID) *records.Object { return p.record.Find(id) }

// mark marks the objects that may be deleted, after everything else of the target was applied. The
// next pass, which comes soon, deletes them.
func (a *applying) mark() {
	for i := range a.Plan.Changes {
		ch := &a.Plan.Changes[i]
		r, known := a.objects.get(ch.ID)
		switch {
		case !known:
		case a.stays(i):
			r.Pruning = nil
			a.objects.put(r)
		case ch.Op == differ.OpDelete && !a.due(ch.ID):
			r.UID, r.Intent = uidOf(ch.Live), ""
			r.Pruning = &records.Pruning{TargetHash: a.want.Target.Hash, Revision: a.want.Revision, Since: a.options.Now.UTC()}
			a.objects.put(r)
			a.outcome.requeueAfter(secondPass)
		}
	}
}

// taken names the components from which objects were taken over. Their records hold the same object
// as applied; this record holds it now, and did not before. The records decide, not the live
// object: after an apply that moved the object and could not write its record, the next apply finds
// nothing to move.
func (a *applying) taken() {
	for i := range a.states {
		id := a.states[i].ID
		o, known := a.objects.get(id)
		if !known || o.UID == "" || o.Intent != "" || a.Plan.Changes[i].Op == differ.OpCreate {
			continue
		}
		if had, ok := a.objects.previous(id); ok && had.UID == o.UID && had.Intent == "" {
			continue
		}
		a.outcome.TransferredFrom = append(a.outcome.TransferredFrom, a.cluster.records.Holders(a.want.Component, &o)...)
	}
	slices.Sort(a.outcome.TransferredFrom)
	a.outcome.TransferredFrom = slices.Compact(a.outcome.TransferredFrom)
}

// OnlyDeletions reports whether only deletions are left after the plan was carried out: every
// wanted object exists or will be written.
func (p *Prepared) OnlyDeletions() bool {
	for i := range p.Plan.Changes {
		ch := &p.Plan.Changes[i]
		stuck := ch.State == differ.StateHeld || ch.State == differ.StateDenied || ch.Op == differ.OpNone && ch.State == differ.StateChanged
		if p.states[i].Target != nil && stuck {
			return false
		}
	}
	return true
}

// Waits returns the first deletion that waits for another component, with the reason; empty: none.
func (p *Prepared) Waits() string {
	for i := range p.states {
		s, ch := &p.states[i], &p.Plan.Changes[i]
		switch {
		case ch.Op != differ.OpNone:
		case s.Waits != "":
			return s.ID.String() + ": " + s.Waits
		case s.Used != "" && ch.State == differ.StateChanged:
			return s.ID.String() + ": " + ch.Because
		}
	}
	return ""
}

// requestNextPass requests another pass when an object waits, can't be read, or is contested.
func (a *applying) requestNextPass() {
	for i := range a.states {
		s := &a.states[i]
		used := s.Used != "" && a.Plan.Changes[i].State == differ.StateChanged
		if used || s.Waits != "" || s.Unread != "" || s.Contested != "" {
			a.outcome.requeueAfter(waitPass)
			return
		}
	}
}

// remove runs the last hooks of a component without remaining objects, and deletes its record.
func (a *applying) remove(ctx context.Context) error {
	if err := a.hooks.run(ctx, postDelete); err != nil {
		return errors.Join(err, a.writeFacts(ctx, false))
	}
	ctx, cancel := records.Outlive(ctx)
	defer cancel()
	if err := a.cluster.records.Remove(ctx, a.record); err != nil {
		return stale(err)
	}
	a.outcome.Removed = true
	return nil
}

// checkTarget rejects a target that is probably a mistake.
func (w *Desired) checkTarget(rec *records.Stored) error {
	switch {
	case w.Absent:
		return nil
	case rec.Version == w.Version && rec.Tree != w.Tree && w.Version != v1alpha1.VersionHead:
		return &TagMovedError{Component: w.Component, Version: w.Version, AppliedTree: rec.Tree, TreeInGit: w.Tree}
	case len(w.Target.Objects) == 0 && len(rec.Objects) > 0:
		return &EmptyTargetError{Component: w.Component, Version: w.Version, Recorded: len(rec.Objects)}
	}
	return nil
}
