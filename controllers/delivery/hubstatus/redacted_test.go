package hubstatus

import (
	"strings"
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/renderer/redact"
)

// TestRedactedBeforeCut: a text about a rule is cut at 500 bytes after secrets were taken out of
// it: the beginning of one would stay.
func TestRedactedBeforeCut(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-hunter2-hunter2"
	r := redact.New()
	r.Set("x", "1", func() []redact.Value { return []redact.Value{redact.Certain(secret)} })
	long := strings.Repeat("b", 480) + " (" + secret + ")"
	status := &v1alpha1.DeliveryStatus{
		Held:     []v1alpha1.HeldChange{{Because: long, Rule: strings.Repeat("r", 600)}},
		Warnings: []v1alpha1.ChangeWarning{{Because: long, Fix: "short"}},
	}
	got := Redacted(r, status)
	for what, text := range map[string]string{"held": got.Held[0].Because, "warning": got.Warnings[0].Because} {
		if strings.Contains(text, "hunter") || len(text) > 510 {
			t.Errorf("%s: %d bytes, at the end %q", what, len(text), text[470:])
		}
	}
	if len(got.Held[0].Rule) > 510 || got.Warnings[0].Fix != "short" {
		t.Errorf("a rule's name of %d bytes, and the fix %q", len(got.Held[0].Rule), got.Warnings[0].Fix)
	}
	if status.Held[0].Because != long {
		t.Error("the status was changed in place")
	}
	if fine := (&v1alpha1.DeliveryStatus{Message: "fine"}); Redacted(r, fine) != fine {
		t.Error("a status in which there is nothing to hide is copied")
	}
}
