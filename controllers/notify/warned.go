package notify

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// warned is what danger rules say about the change that a delivery applied last, or about its
// waiting change.
type warned struct {
	// key identifies the rendered objects and the rules that warn of them; empty: no rule does.
	key                       string
	version, revision, reason string
}

func warnedOf(s *v1alpha1.DeliveryStatus) warned {
	if len(s.Warnings) == 0 {
		return warned{}
	}
	rules := make([]string, 0, len(s.Warnings))
	for _, w := range s.Warnings {
		rules = append(rules, w.Rule)
	}
	slices.Sort(rules)
	sum := sha256.Sum256(fmt.Appendf(nil, "%q%q", s.TargetHash, slices.Compact(rules)))
	first := s.Warnings[0]
	reason := fmt.Sprintf("%s: %s (rule %s)", first.Object, first.Because, first.Rule)
	if n := len(s.Warnings) - 1; n > 0 {
		reason += fmt.Sprintf(", and %d more", n)
	}
	return warned{key: hex.EncodeToString(sum[:16]), version: s.Version, revision: s.Revision, reason: reason}
}

// warningEvents returns the warnings that were not sent, and adds all warnings to next. What a
// version without warnings has stored takes in the current warnings: nothing is sent for them.
func warningEvents(was sentState, w world, n *registry.Notification, next sentState) []v1alpha1.MessageEvent {
	var events []v1alpha1.MessageEvent
	for at, is := range w.warned {
		selected, known := selects(n, w.fleet, at)
		switch before := was.Warned[at]; {
		case !known && before != "":
			next.Warned[at] = before
		case known && selected:
			next.Warned[at] = is.key
			if was.Warned == nil || before == is.key {
				continue
			}
			events = append(events, v1alpha1.MessageEvent{
				Event: v1alpha1.DeliveryWarned, Component: at.component, Clusters: []string{at.cluster}, Count: 1, Pipeline: pipelineOf(w.fleet, at.component),
				Version: is.version, Revision: is.revision, Reason: is.reason,
			})
		}
	}
	slices.SortFunc(events, func(x, y v1alpha1.MessageEvent) int {
		return cmp.Or(cmp.Compare(x.Component, y.Component), slices.Compare(x.Clusters, y.Clusters))
	})
	return severe(events)
}
