package cli

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Timestamp returns a time in UTC for a table; "" for nil.
func Timestamp(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// Age returns how long ago a time was, such as 5m; "" for nil.
func (inv *Invocation) Age(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return duration.HumanDuration(max(0, inv.Env.Now().Sub(t.Time)))
}
