package notify

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// defaultText is the template of each line.
const defaultText = "[$(fleet)] $(message)"

// envelope is the input of a message besides its events.
type envelope struct {
	fleet  string
	n      *registry.Notification
	serial int64 // how many messages were taken before
	now    time.Time
	hide   func(string) string // redacts secrets
}

// message returns the message about events.
func (e envelope) message(events []v1alpha1.MessageEvent) (v1alpha1.Message, error) {
	m := v1alpha1.Message{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Message", Time: metav1.NewTime(e.now.UTC().Truncate(time.Second)),
		Fleet: e.fleet, Notification: e.n.Name, Severity: v1alpha1.SeverityInfo,
	}
	m.Events, m.More = grouped(events)
	for i := range m.Events {
		m.Events[i] = said(m.Events[i], e.hide)
	}
	if len(m.Events) > 0 {
		m.Severity = m.Events[0].Severity
	}
	id, err := json.Marshal(struct {
		Fleet, Notification string
		Serial              int64
		Events              []v1alpha1.MessageEvent
		More                int
	}{e.fleet, e.n.Name, e.serial, m.Events, m.More})
	if err != nil {
		return m, fmt.Errorf("encode a message: %w", err)
	}
	sum := sha256.Sum256(id)
	m.ID = hex.EncodeToString(sum[:16])
	m.Text = text(e.n, m, func(s string) string { return s })
	return m, nil
}

// text returns a line for each event of a message. Values in a line are escaped. The template comes
// from git, and is not.
func text(n *registry.Notification, m v1alpha1.Message, escape func(string) string) string {
	template := n.Spec.Text
	if template == "" {
		template = defaultText
	}
	var lines []string
	if m.Test {
		lines = append(lines, escape("This is a test of notification "+n.Name+": none of these events has happened."))
	}
	for _, e := range m.Events {
		values := map[string]string{
			"fleet": m.Fleet, "event": string(e.Event), "severity": string(e.Severity), "component": subjectName(e), "cluster": clusterNames(e),
			"count": "", "pipeline": e.Pipeline, "stage": e.Stage, "from": e.From, "version": e.Version, "revision": e.Revision,
			"hash": e.Hash, "reason": e.Reason, "message": e.Message,
		}
		if e.Count > 0 {
			values["count"] = strconv.Itoa(e.Count)
		}
		for name, value := range values {
			values[name] = escape(plain(value))
		}
		lines = append(lines, registry.ExpandText(template, values))
	}
	if m.More > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", m.More))
	}
	return strings.Join(lines, "\n")
}

func subjectName(e v1alpha1.MessageEvent) string {
	if e.Component != "" {
		return e.Component
	}
	return listed(e.Components, e.Count)
}

func clusterNames(e v1alpha1.MessageEvent) string {
	if len(e.Clusters) == 0 {
		return ""
	}
	return where(e)
}

// slackMessage is the body of a POST to an incoming webhook of Slack. Slack must not open its
// links: their targets are not Keelson's.
type slackMessage struct {
	Text        string `json:"text"`
	UnfurlLinks bool   `json:"unfurl_links"`
	UnfurlMedia bool   `json:"unfurl_media"`
}

// mass matches the words that mention whole channels in Slack, Mattermost and Rocket.Chat.
var mass = regexp.MustCompile(`(?i)@(channel|here|everyone|all)`)

// slackEscape removes the meaning of a text in Slack: links, and mentions of a person or a channel.
// See docs.slack.dev/messaging/formatting-message-text.
func slackEscape(text string) string {
	text = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
	return mass.ReplaceAllString(text, "@\u200b$1")
}

// Body returns the request body for a message.
func Body(n *registry.Notification, m v1alpha1.Message) ([]byte, error) {
	var what any = m
	if n.Spec.Slack != nil {
		what = slackMessage{Text: text(n, m, slackEscape)}
	}
	data, err := json.Marshal(what)
	if err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	return data, nil
}

// Sample returns a message that tests a notification. It has a made-up event of each kind that the
// notification is about, at most three.
func Sample(f *registry.Fleet, n *registry.Notification, now time.Time, hide func(string) string) (v1alpha1.Message, error) {
	at := place{"example-cluster", "example"}
	for _, c := range f.Clusters { // a delivery that it is about, if there is one
		for _, d := range c.Deliveries {
			if is := (place{c.Name, d.Component}); at.cluster == "example-cluster" && n.Selects(d.Component, pipelineOf(f, d.Component), c.Spec.Labels) {
				at = is
			}
		}
	}
	var events []v1alpha1.MessageEvent
	for _, e := range []v1alpha1.MessageEvent{
		{Event: v1alpha1.DeliveryFailing, Clusters: []string{at.cluster}, Count: 1, Version: "v1.1.0", Reason: "Deployment example/example: 0 of 2 replicas are ready"},
		{Event: v1alpha1.DeliveryRecovered, Clusters: []string{at.cluster}, Count: 1, Version: "v1.1.0"},
		{Event: v1alpha1.RolloutFailed, Stage: "canary", From: "v1.0.0", Version: "v1.1.0", Reason: "stage canary: " + at.cluster + " did not get there in 1h0m0s"},
		{Event: v1alpha1.RolloutStagePassed, Stage: "canary", From: "v1.0.0", Version: "v1.1.0"},
		{Event: v1alpha1.RolloutApprovalNeeded, Stage: "production", From: "v1.0.0", Version: "v1.1.0", Hash: strings.Repeat("0", 32)},
		{Event: v1alpha1.RolloutFinished, From: "v1.0.0", Version: "v1.1.0", Reason: "8/8"},
	} {
		e.Component, e.Pipeline, e.Revision = at.component, pipelineOf(f, at.component), f.Revision
		events = append(events, e)
	}
	for event := range v1alpha1.NotificationEvents() { // for a notification about other events
		if slices.Contains(n.Spec.Events, event) {
			events = append(events, v1alpha1.MessageEvent{
				Event: event, Component: at.component, Clusters: []string{at.cluster}, Count: 1, Pipeline: pipelineOf(f, at.component), Stage: "canary",
				From: "v1.0.0", Version: "v1.1.0", Revision: f.Revision, Reason: "a reason",
			})
		}
	}
	events = slices.DeleteFunc(severe(events), func(e v1alpha1.MessageEvent) bool { return !wanted(n, e) })
	m, err := envelope{f.Spec.Name, n, now.Unix(), now, hide}.message(events[:min(3, len(events))])
	m.Test = true
	m.Text = text(n, m, func(s string) string { return s })
	return m, err
}
