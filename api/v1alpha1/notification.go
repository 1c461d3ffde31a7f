package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Notification is notifications/NAME.yaml. It reports the progress of rollouts and deliveries to a
// server, as JSON that the server can verify, or as a message in a chat. Exactly one of Webhook and
// Slack is set.
//
// +kubebuilder:object:generate=false
type Notification struct {
	Header `json:",inline"`
	// Description is one line for people.
	Description string `json:"description,omitempty"`
	// Events that are reported. Default: all.
	Events []NotificationEvent `json:"events,omitempty"`
	// Severity is the lowest reported severity: info, warning or error. Default: info.
	Severity Severity `json:"severity,omitempty"`
	// Components and Pipelines by name. Default: all, including components without a pipeline.
	Components []string `json:"components,omitempty"`
	Pipelines  []string `json:"pipelines,omitempty"`
	// ClusterSelector matches the labels of clusters. A stage is reported if one of its clusters
	// matches, a rollout if any of its clusters matches. Default: all.
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Interval is the least time between two messages. Events in between are reported in one
	// message. Default: 1m.
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Text of each event. $(fleet), $(event), $(severity), $(component), $(cluster), $(count),
	// $(pipeline), $(stage), $(from), $(version), $(revision), $(hash), $(reason) and $(message)
	// are replaced by their values. $(cluster) is a few names and the number of further ones,
	// $(message) a whole sentence, and unknown values are empty. Default: [$(fleet)] $(message).
	Text string `json:"text,omitempty"`
	// Webhook receives a POST of a [Message].
	Webhook *NotificationServer `json:"webhook,omitempty"`
	// Slack is an incoming webhook of Slack, or of a server that accepts its messages, such as
	// Mattermost and Rocket.Chat.
	Slack *NotificationServer `json:"slack,omitempty"`
}

// AsSevere reports whether an event is at least as severe as n.Severity.
func (n *Notification) AsSevere(event NotificationEvent) bool {
	least := slices.Index(Severities(), n.Severity) // -1: all events are
	return slices.Index(Severities(), NotificationEvents()[event]) >= least
}

// NotificationServer is the receiver of messages.
//
// +kubebuilder:object:generate=false
type NotificationServer struct {
	// URL, if it is no secret: many people can read what is in git.
	URL string `json:"url,omitempty"`
	// Secret in keelson-system of the hub, by name. Its key url is the address if URL is empty.
	// With a key hmacKey, each message of a webhook has the header X-Signature: sha256= and the hex
	// HMAC-SHA256 of its body. With a key token, it has Authorization: Bearer. A token is sent only
	// to the url in the same Secret.
	Secret string `json:"secret,omitempty"`
}

// The keys of [NotificationServer.Secret].
const (
	NotificationURL   = "url"
	NotificationHMAC  = "hmacKey"
	NotificationToken = "token"
)

// NotificationEvent is a kind of reported event.
type NotificationEvent string

// The values of [NotificationEvent].
const (
	RolloutStarted        NotificationEvent = "rollout-started"     // git wants a change
	RolloutSuperseded     NotificationEvent = "rollout-superseded"  // a newer change replaced one in progress
	RolloutApprovalNeeded NotificationEvent = "approval-needed"     // a stage waits for an approval in git
	RolloutStageOpened    NotificationEvent = "stage-opened"        // its clusters get the change
	RolloutStagePassed    NotificationEvent = "stage-passed"        // all of them have the change, and it has baked
	RolloutStagePromoted  NotificationEvent = "stage-promoted"      // a person released the stage without waiting
	RolloutWasPaused      NotificationEvent = "rollout-paused"      // by a person
	RolloutFailed         NotificationEvent = "rollout-failed"      // it paused after a failure, or rolls back
	RolloutWasRolledBack  NotificationEvent = "rollout-rolled-back" // the failed stage is rolled back
	RolloutResumed        NotificationEvent = "rollout-resumed"     // it continues
	RolloutFinished       NotificationEvent = "rollout-complete"    // all clusters have the change
	DeliveryFailing       NotificationEvent = "delivery-failing"    // Failed, Unreachable or Degraded
	DeliveryHeld          NotificationEvent = "delivery-held"       // a dangerous change waits for an approval
	DeliveryWarned        NotificationEvent = "delivery-warned"     // a danger rule warns of the change
	DeliveryBlocked       NotificationEvent = "delivery-blocked"    // Blocked or Denied: git has to change
	DeliveryRecovered     NotificationEvent = "delivery-recovered"  // Synced and Healthy after any of these
)

// NotificationEvents returns all events with their severities.
func NotificationEvents() map[NotificationEvent]Severity {
	return map[NotificationEvent]Severity{
		RolloutStarted: SeverityInfo, RolloutSuperseded: SeverityInfo, RolloutApprovalNeeded: SeverityWarning,
		RolloutStageOpened: SeverityInfo, RolloutStagePassed: SeverityInfo, RolloutStagePromoted: SeverityWarning,
		RolloutWasPaused: SeverityWarning, RolloutFailed: SeverityError, RolloutWasRolledBack: SeverityError,
		RolloutResumed: SeverityInfo, RolloutFinished: SeverityInfo,
		DeliveryFailing: SeverityError, DeliveryHeld: SeverityWarning, DeliveryWarned: SeverityWarning, DeliveryBlocked: SeverityError,
		DeliveryRecovered: SeverityInfo,
	}
}

// Severity says how urgent an event is.
type Severity string

// The values of [Severity], the least first.
const (
	SeverityInfo    Severity = "info"    // no person has to act
	SeverityWarning Severity = "warning" // a person should look, or has acted
	SeverityError   Severity = "error"   // something failed or is blocked
)

// Severities returns all severities, the least first.
func Severities() []Severity { return []Severity{SeverityInfo, SeverityWarning, SeverityError} }

// Message is the body of a POST to [Notification.Webhook]. Receivers must ignore unknown fields:
// later versions may add fields.
//
// +kubebuilder:object:generate=false
type Message struct {
	APIVersion string `json:"apiVersion"` // APIVersion is keelson.io/v1alpha1.
	Kind       string `json:"kind"`       // Kind is Message.
	// ID is equal when a message is sent again, for example because no answer came.
	ID string `json:"id"`
	// Time of sending, in RFC 3339 and UTC.
	Time metav1.Time `json:"time"`
	// Fleet is its name, and Notification the name of the notification's file without .yaml.
	Fleet        string `json:"fleet"`
	Notification string `json:"notification"`
	// Test says that no event happened: a person tests the notification.
	Test bool `json:"test,omitempty"`
	// Severity is the worst of Events.
	Severity Severity `json:"severity"`
	// Text holds the texts of all Events, one per line.
	Text string `json:"text"`
	// Events, the worst first, at most 20.
	Events []MessageEvent `json:"events"`
	// More is the number of further events, which are left out.
	More int `json:"more,omitempty"`
}

// MessageEvent is one event on one cluster or on several. Unknown and inapplicable values are left
// out.
//
// +kubebuilder:object:generate=false
type MessageEvent struct {
	// Event that happened, with its Severity.
	Event    NotificationEvent `json:"event"`
	Severity Severity          `json:"severity"`
	// Component; empty for several components of one cluster, which Components names.
	Component  string   `json:"component,omitempty"`
	Components []string `json:"components,omitempty"`
	// Clusters by name, the first ten; Count is the number of deliveries.
	Clusters []string `json:"clusters,omitempty"`
	Count    int      `json:"count,omitempty"`
	// Pipeline and Stage of a rollout's event.
	Pipeline string `json:"pipeline,omitempty"`
	Stage    string `json:"stage,omitempty"`
	// From and Version are the versions before and after the change; several are separated by
	// commas.
	From    string `json:"from,omitempty"`
	Version string `json:"version,omitempty"`
	// Revision is the commit of the fleet repository.
	Revision string `json:"revision,omitempty"`
	// Hash is the hash for an approval.
	Hash string `json:"hash,omitempty"`
	// Reason is the original error text. It may come from a cluster: do not trust it.
	Reason string `json:"reason,omitempty"`
	// Message is one sentence that contains Reason.
	Message string `json:"message"`
}
