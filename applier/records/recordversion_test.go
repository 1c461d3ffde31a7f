package records

import (
	"testing"

	"pgregory.net/rapid"
)

// TestRecordVersion: a resourceVersion is a text that says nothing to anybody but an API
// server: what is kept of it gives that text again, and two are the same where their texts are.
func TestRecordVersion(t *testing.T) {
	text := rapid.OneOf(
		rapid.String(),
		rapid.StringMatching(`[+-]?0{0,2}[0-9]{0,22}`), // also more than 64 bits
		rapid.SampledFrom([]string{"", "0", "00", "1", "18446744073709551615", "18446744073709551616"}),
	)
	rapid.Check(t, func(t *rapid.T) {
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		if got := recordVersionOf(a).String(); got != a {
			t.Errorf("%q came back as %q", a, got)
		}
		if (recordVersionOf(a) == recordVersionOf(b)) != (a == b) {
			t.Errorf("%q and %q: %v, %v", a, b, recordVersionOf(a), recordVersionOf(b))
		}
	})
}
