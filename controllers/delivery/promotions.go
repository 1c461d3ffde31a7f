package delivery

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
)

// Promotions moves versions on in git. The process that decides about rollouts does.
type Promotions interface {
	// Fleet says what git wants now. It returns at once.
	Fleet(f *registry.Fleet)
	// Look has the components looked at. It returns at once.
	Look()
	// Run works until the context ends. Stand says how far a component has come.
	Run(ctx context.Context, stand func(f *registry.Fleet, component string) (rollout.Stand, error))
}

// Promotion writes an event when promotions begin to fail, or work again.
func (c *Controller) Promotion(err error) {
	if err != nil {
		c.writer.tell(corev1.EventTypeWarning, "PromotionFailed", "versions stay as they are in git: "+err.Error())
		return
	}
	c.writer.tell(corev1.EventTypeNormal, "PromotionWorks", "versions are promoted again")
}
