package probe

import (
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Failure is a step that failed.
type Failure struct{ Subject, Step, Message string }

// Recorded is a result after one more run.
func Recorded(s v1alpha1.ProbeResultStatus, hash string, begun, ended time.Time, failed ...Failure) v1alpha1.ProbeResultStatus {
	var list []failure
	for _, f := range failed {
		list = append(list, failure{f.Subject, f.Step, f.Message})
	}
	return recorded(s, hash, begun, ended, list)
}

// Tells reports whether a result is to be written.
func Tells(shown, is v1alpha1.ProbeResultStatus, asked bool, since time.Duration) bool {
	return needsWrite(shown, is, asked, since)
}

// Due is when the next run is.
func Due(s v1alpha1.ProbeResultStatus, hash string, next, asked time.Time) time.Time {
	return due(s, hash, next, asked)
}

// Looked reports whether the last Look was taken.
func (p *Prober) Looked() bool { return len(p.soon) == 0 }
