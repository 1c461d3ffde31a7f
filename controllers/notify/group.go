package notify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const (
	// most bounds the events in a message. The message counts the rest.
	most = 20
	// named bounds the clusters or components in an event, and few those in a sentence.
	named, few = 10, 5
	// reasonLength bounds text from elsewhere, in characters.
	reasonLength = 300
)

// grouped merges events of deliveries that say the same. It merges clusters of a component, or
// components of a cluster, whichever gives fewer events. The most severe events come first. more
// counts the events that are left out.
func grouped(events []v1alpha1.MessageEvent) (out []v1alpha1.MessageEvent, more int) {
	kinds := map[v1alpha1.NotificationEvent][]v1alpha1.MessageEvent{}
	for _, e := range events {
		if !ofDelivery(e.Event) {
			out = append(out, e)
			continue
		}
		kinds[e.Event] = append(kinds[e.Event], e)
	}
	for _, event := range []v1alpha1.NotificationEvent{v1alpha1.DeliveryBlocked, v1alpha1.DeliveryFailing, v1alpha1.DeliveryHeld, v1alpha1.DeliveryWarned, v1alpha1.DeliveryRecovered} {
		byComponent := groupsBy(kinds[event], func(e v1alpha1.MessageEvent) string { return e.Component })
		byCluster := groupsBy(kinds[event], func(e v1alpha1.MessageEvent) string { return e.Clusters[0] })
		if len(byCluster) < len(byComponent) {
			byComponent = byCluster
		}
		for _, g := range byComponent {
			out = append(out, merged(g))
		}
	}
	worst := v1alpha1.Severities()
	slices.SortStableFunc(out, func(x, y v1alpha1.MessageEvent) int {
		return cmp.Compare(slices.Index(worst, y.Severity), slices.Index(worst, x.Severity))
	})
	if more = len(out) - most; more > 0 {
		return out[:most], more
	}
	return out, 0
}

func ofDelivery(event v1alpha1.NotificationEvent) bool {
	return slices.Contains([]v1alpha1.NotificationEvent{
		v1alpha1.DeliveryBlocked, v1alpha1.DeliveryFailing, v1alpha1.DeliveryHeld, v1alpha1.DeliveryWarned, v1alpha1.DeliveryRecovered,
	}, event)
}

// groupsBy groups events with the same key, in the order of their first events.
func groupsBy(events []v1alpha1.MessageEvent, key func(v1alpha1.MessageEvent) string) [][]v1alpha1.MessageEvent {
	var out [][]v1alpha1.MessageEvent
	at := map[string]int{}
	for _, e := range events {
		i, known := at[key(e)]
		if !known {
			i = len(out)
			at[key(e)] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], e)
	}
	return out
}

// merged merges events of one component, or of one cluster. Its texts are from the first event.
func merged(events []v1alpha1.MessageEvent) v1alpha1.MessageEvent {
	out := events[0]
	var clusters, components []string
	versions := map[string]bool{}
	for _, e := range events {
		clusters, components = append(clusters, e.Clusters...), append(components, e.Component)
		versions[e.Version] = true
	}
	slices.Sort(clusters)
	slices.Sort(components)
	clusters, components = slices.Compact(clusters), slices.Compact(components)
	out.Count = len(events)
	out.Clusters = clusters[:min(len(clusters), named)]
	if len(versions) > 1 {
		out.Version = ""
	}
	if len(components) > 1 {
		out.Component, out.Pipeline, out.Hash = "", "", ""
		out.Components = components[:min(len(components), named)]
	}
	return out
}

// said returns an event with its sentence. hide redacts secrets.
func said(e v1alpha1.MessageEvent, hide func(string) string) v1alpha1.MessageEvent {
	e.Reason = shorter(plain(hide(e.Reason)))
	for _, text := range []*string{&e.From, &e.Version} {
		*text = shorter(plain(hide(*text)))
	}
	e.Message = sentence(e)
	return e
}

// sentence describes an event in plain words.
func sentence(e v1alpha1.MessageEvent) string {
	because := ""
	if e.Reason != "" {
		because = ": " + e.Reason
	}
	of := strings.TrimSpace(e.Component + " " + e.Version)
	switch e.Event {
	case v1alpha1.RolloutStarted:
		return fmt.Sprintf("%s: %s → %s begins, by pipeline %s%s", e.Component, cmp.Or(e.From, "nothing"), cmp.Or(e.Version, "nothing"), e.Pipeline, because)
	case v1alpha1.RolloutSuperseded:
		return fmt.Sprintf("%s: git has %s now, so the earlier rollout ends", e.Component, cmp.Or(e.Version, "something else"))
	case v1alpha1.RolloutApprovalNeeded:
		return fmt.Sprintf("%s: stage %s needs an approval%s", of, e.Stage, because)
	case v1alpha1.RolloutStageOpened:
		return fmt.Sprintf("%s: stage %s is open", of, e.Stage)
	case v1alpha1.RolloutStagePassed:
		return fmt.Sprintf("%s: stage %s has passed", of, e.Stage)
	case v1alpha1.RolloutStagePromoted:
		return fmt.Sprintf("%s: the waits of stage %s were ended by %s", of, e.Stage, e.Reason)
	case v1alpha1.RolloutWasPaused:
		return fmt.Sprintf("%s: the rollout is %s", of, e.Reason)
	case v1alpha1.RolloutFailed:
		return fmt.Sprintf("%s: the rollout failed%s", of, because)
	case v1alpha1.RolloutWasRolledBack:
		return fmt.Sprintf("%s: the rollout was rolled back%s", of, because)
	case v1alpha1.RolloutResumed:
		return of + ": the rollout goes on"
	case v1alpha1.RolloutFinished:
		return fmt.Sprintf("%s: the rollout is complete, %s clusters", of, e.Reason)
	case v1alpha1.DeliveryFailing:
		return fmt.Sprintf("%s %s on %s%s", subject(e), verb(e, "fails", "fail"), where(e), because)
	case v1alpha1.DeliveryHeld:
		return fmt.Sprintf("%s %s for an approval on %s%s", subject(e), verb(e, "waits", "wait"), where(e), because)
	case v1alpha1.DeliveryWarned:
		return fmt.Sprintf("danger rules warn of %s on %s%s", subject(e), where(e), because)
	case v1alpha1.DeliveryBlocked:
		return fmt.Sprintf("%s %s blocked on %s%s", subject(e), verb(e, "is", "are"), where(e), because)
	case v1alpha1.DeliveryRecovered:
		return fmt.Sprintf("%s %s in order again on %s", subject(e), verb(e, "is", "are"), where(e))
	}
	return string(e.Event) + because
}

// subject names the component, or the first few of many components.
func subject(e v1alpha1.MessageEvent) string {
	if e.Component != "" {
		return strings.TrimSpace(e.Component + " " + e.Version)
	}
	return listed(e.Components, e.Count)
}

func verb(e v1alpha1.MessageEvent, one, many string) string {
	if e.Component != "" {
		return one
	}
	return many
}

// where names the clusters, or the first few of many.
func where(e v1alpha1.MessageEvent) string {
	if e.Component == "" {
		return listed(e.Clusters, len(e.Clusters))
	}
	return listed(e.Clusters, e.Count)
}

// listed names the first few of many, and counts the rest.
func listed(names []string, of int) string {
	if of <= few {
		return join(names)
	}
	shown := names[:min(few, len(names))]
	return fmt.Sprintf("%s and %d more", join(shown), of-len(shown))
}

// plain puts a text on one line, and removes control and direction characters.
func plain(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) || r == unicode.ReplacementChar
	}), " ")
}

func shorter(text string) string {
	if runes := []rune(text); len(runes) > reasonLength {
		return string(runes[:reasonLength-1]) + "…"
	}
	return text
}
