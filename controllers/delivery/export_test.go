package delivery

import (
	"context"
	"strconv"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// Pace is [pace].
type Pace struct{ pace *pace }

// NewPace is [newPace].
func NewPace(interval time.Duration) Pace { return Pace{newPace(interval)} }

// Soon is [pace.soon].
func (p Pace) Soon() { p.pace.soon() }

// Wait is [pace.wait].
func (p Pace) Wait(ctx context.Context) bool { return p.pace.wait(ctx) }

// Attempt is what a test says of an attempt.
type Attempt struct {
	Sync                      v1alpha1.Sync
	Message, Target, Revision string
	Plan                      differ.Plan
	Health                    []applier.ObjectHealth
	Created, Restored         int
	Planned                   bool
}

// Next is [next], with a timeout of a minute.
func Next(before v1alpha1.DeliveryStatus, a Attempt, now time.Time) v1alpha1.DeliveryStatus {
	return next(before, attempt{
		sync: a.Sync, message: a.Message, version: "v1", revision: a.Revision, targetHash: a.Target,
		plan: a.Plan, health: a.Health, planned: a.Planned, timeout: time.Minute,
		outcome: applier.Outcome{Created: a.Created, Updated: a.Restored, Restored: a.Restored},
	}, now)
}

// Told is a status that was handed to the writer, and how long it may wait there.
type Told struct {
	Sync  v1alpha1.Sync
	After time.Duration
}

// Tell is what an agent hands to the writer, in order, when its components have
// the given states one after the other, with the rest in the queue behind it.
// Flushed says that what waits was let go in the end.
func Tell(states ...v1alpha1.Sync) (told []Told, flushed bool) {
	a := &agent{
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		publish: func(s v1alpha1.DeliveryStatus, after time.Duration) {
			told = append(told, Told{Sync: s.Sync, After: after})
		},
		published: func(string, time.Duration) { flushed = true },
	}
	for i := range states {
		a.queue.Add(strconv.Itoa(i))
	}
	for _, s := range states {
		component, _ := a.queue.Get()
		a.tell(v1alpha1.DeliveryStatus{Component: component, Sync: s})
		a.queue.Done(component)
	}
	return told, flushed
}
