package applier

import (
	"fmt"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

// ObjectHealth is the health of one object.
type ObjectHealth struct {
	ID     differ.ID
	Health v1alpha1.Health
	// Message says what is waited for, or what is wrong.
	Message string
}

// HealthOf reads an object's health by the rules of kstatus, for the
// generation that is in the object now.
func HealthOf(id differ.ID, live map[string]any) ObjectHealth {
	h := ObjectHealth{ID: id, Health: v1alpha1.HealthUnknown}
	if live == nil {
		h.Health, h.Message = v1alpha1.HealthProgressing, "it does not exist yet"
		return h
	}
	r, err := status.Compute(&unstructured.Unstructured{Object: live})
	if err != nil {
		h.Message = err.Error()
		return h
	}
	h.Message = r.Message
	switch r.Status {
	case status.CurrentStatus:
		h.Health, h.Message = v1alpha1.HealthHealthy, ""
	case status.InProgressStatus, status.TerminatingStatus, status.NotFoundStatus:
		h.Health = v1alpha1.HealthProgressing
	case status.FailedStatus:
		h.Health = v1alpha1.HealthDegraded
	case status.UnknownStatus:
	}
	return h
}

// Worst returns the health of a whole: Degraded before Unknown before
// Progressing before Healthy, with a message that names the object.
func Worst(objects []ObjectHealth) (v1alpha1.Health, string) {
	rank := map[v1alpha1.Health]int{
		v1alpha1.HealthHealthy: 0, v1alpha1.HealthProgressing: 1, v1alpha1.HealthUnknown: 2, v1alpha1.HealthDegraded: 3,
	}
	worst, message := v1alpha1.HealthHealthy, ""
	for _, o := range objects {
		if rank[o.Health] > rank[worst] {
			worst, message = o.Health, fmt.Sprintf("%s: %s", o.ID, o.Message)
		}
	}
	return worst, message
}
