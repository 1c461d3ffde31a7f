package delivery

import (
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

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
