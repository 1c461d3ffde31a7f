package probe

// For tests of what is decided from values.
var (
	Recorded = recorded
	Tells    = tells
	Due      = due
)

// Failure is a step that failed.
func Failure(subject, step, message string) []failure {
	return []failure{{subject, step, message}}
}

// Looked reports whether the last Look was taken.
func (p *Prober) Looked() bool { return len(p.soon) == 0 }
