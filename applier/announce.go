package applier

import (
	"context"
	"errors"
	"fmt"

	"github.com/keelson-io/keelson/differ"
)

// mergeAnnouncement adds the updates that were announced since a record was written to the record,
// as intents.
func (c *Cluster) mergeAnnouncement(ctx context.Context, r *record) error {
	a, err := c.announcer.entry(ctx, r.Component, r.version)
	if err != nil || a == nil {
		return err
	}
	r.announced = a
	for _, id := range a.Objects {
		// Only updates of recorded objects are announced.
		if o := r.find(id); o != nil && o.Intent == "" {
			o.Intent = IntentUpdate
		}
	}
	if a.Writer != c.announcer.writer {
		r.Writer = a.Writer // so that this session takes the component over
	}
	return nil
}

// takeOver claims a component whose record another session wrote last, if this session is still
// the chosen one.
func (c *Cluster) takeOver(ctx context.Context, old *record) error {
	if old.Writer == c.writer.Identity {
		return nil
	}
	if err := c.confirm(ctx); err != nil {
		return err
	}
	return c.claim(ctx, old)
}

// claim announces that this session takes a component over, with the objects that the session
// before had announced. From then on no other session can announce updates of the component
// without a newer record. It returns [ErrStale] when there is an entry that the record lacks.
func (c *Cluster) claim(ctx context.Context, old *record) error {
	if old.version == "" {
		return nil // updates are announced only of components with a record
	}
	a := &announceRequest{component: old.Component, record: old.version, claim: true, known: old.announced}
	if old.announced != nil {
		a.objects = old.announced.Objects
	}
	err := c.announcer.write(ctx, a)
	refusal, refused := errors.AsType[*claimedError](err)
	if refused && (before(old.version, refusal.by.Record) || before(old.version, refusal.by.Claimed)) {
		// An entry that is newer than the current record comes from a backup of another
		// cluster, or from the time before this cluster was restored.
		head, getErr := c.getSecret(ctx, recordPrefix+old.Component)
		if getErr != nil {
			return getErr
		}
		if head != nil && head.ResourceVersion == old.version {
			a.invalid = &refusal.by
			err = c.announcer.write(ctx, a)
			_, refused = errors.AsType[*claimedError](err)
		}
	}
	if refused {
		return fmt.Errorf("%w: %w", ErrStale, err)
	}
	return err
}

// announce announces the updates of a pass that does nothing else, if this session wrote the
// record last. False: the intents have to be written into the record.
func (a *applying) announce(ctx context.Context) bool {
	if !a.announceable() {
		return false
	}
	var ids []differ.ID
	for _, b := range a.reach {
		for _, ch := range b.changes {
			ids = append(ids, ch.ID)
		}
	}
	err := a.cluster.announcer.write(ctx, &announceRequest{
		component: a.want.Component, record: a.record.version, objects: ids,
	})
	if err != nil {
		a.cluster.announcer.release(a.want.Component)
		return false // the write of the record reports errors of the API server
	}
	a.announced = a.record.version
	return true
}

// announceable reports whether a pass only updates few recorded objects, and its record has no
// open intents.
func (a *applying) announceable() bool {
	if a.record.version == "" || a.record.Writer != a.cluster.writer.Identity || a.record.open() || a.pinStale() || a.hooksPending(a.events()) {
		return false
	}
	n := 0
	for _, b := range a.reach {
		n += len(b.changes)
		for _, ch := range b.changes {
			if recorded, known := a.before[ch.ID]; ch.Op != differ.OpUpdate || !known || recorded.Content == nil || recorded.Intent != "" {
				return false
			}
		}
	}
	return n <= announcedObjects
}
