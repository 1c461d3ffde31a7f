package applier

import (
	"context"

	"github.com/keelson-io/keelson/differ"
)

// announce announces the updates of a pass that does nothing else, if this session wrote the
// record last. False: the intents have to be written into the record.
func (a *applying) announce(ctx context.Context) bool {
	if !a.announceable() {
		return false
	}
	if !a.cluster.records.Announce(ctx, a.record, a.scope.ids()) {
		return false
	}
	a.announced = a.record.ResourceVersion
	return true
}

// announceable reports whether a pass only updates recorded objects.
func (a *applying) announceable() bool {
	if a.pinStale() || a.hooksPending(a.events()) {
		return false
	}
	for _, b := range a.scope.batches {
		for _, ch := range b.Changes {
			if recorded, known := a.objects.previous(ch.ID); ch.Op != differ.OpUpdate || !known || recorded.Content == nil || recorded.Intent != "" {
				return false
			}
		}
	}
	return true
}
