package expr

import (
	"fmt"
	"strings"
	"testing"
)

// Expressions may be made of the text of objects, so a matcher keeps a bounded number of small ones, and
// answers the same with and without them.
func TestMatcherKeepsFew(t *testing.T) {
	t.Parallel()
	m := &matcher{kept: map[string]parsedPattern{}}
	for range 2 {
		for i := range 2 * keptPatterns {
			is, err := m.compile(fmt.Sprintf("^a%d$", i), 10)
			if err != nil || !is.MatchString(fmt.Sprint("a", i)) || is.MatchString("b") {
				t.Fatalf("%d: %v", i, err)
			}
		}
	}
	if len(m.kept) != keptPatterns {
		t.Errorf("%d are kept", len(m.kept))
	}
	m = &matcher{kept: map[string]parsedPattern{}}
	if _, err := m.compile("a{500}", 1); err != nil || len(m.kept) > 0 {
		t.Errorf("a large one: %v, %d are kept", err, len(m.kept))
	}
	for range 2 { // also of one that is kept
		if _, err := m.compile("(a|b)*c", 1<<20); err == nil || !strings.Contains(err.Error(), "steps") {
			t.Errorf("a long text: %v", err)
		}
		if _, err := m.compile("(a|b)*c", 10); err != nil {
			t.Error(err)
		}
	}
}
