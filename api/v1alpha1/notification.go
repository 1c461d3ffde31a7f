package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Notification is notifications/NAME.yaml: what becomes of rollouts and deliveries is
// told to a server, as JSON that it can check, or as a message in a chat. Exactly one
// of Webhook and Slack is set.
//
// +kubebuilder:object:generate=false
type Notification struct {
	Header `json:",inline"`
	// Description is one line for people.
	Description string `json:"description,omitempty"`
	// Events to tell of. Default: all.
	Events []NotificationEvent `json:"events,omitempty"`
	// Severity is the least that is told: info, warning or error. Default: info.
	Severity Severity `json:"severity,omitempty"`
	// Components and Pipelines by name. Default: all, those without a pipeline, too.
	Components []string `json:"components,omitempty"`
	Pipelines  []string `json:"pipelines,omitempty"`
	// ClusterSelector matches the labels of clusters. A stage is told of when one of its
	// clusters matches, a rollout when any of its own does. Default: all.
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Interval is the least time between two messages: what happens meanwhile is told
	// in one. Default: 1m.
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Text of each thing that is told. $(fleet), $(event), $(severity), $(component),
	// $(cluster), $(count), $(pipeline), $(stage), $(from), $(version), $(revision),
	// $(hash), $(reason) and $(message) stand for what they name; $(cluster) is a few
	// names and how many more there are, $(message) a whole sentence, and what is not
	// known is empty. Default: $(message).
	Text string `json:"text,omitempty"`
	// Webhook takes a POST of a [Message].
	Webhook *NotificationServer `json:"webhook,omitempty"`
	// Slack is an incoming webhook of Slack, or of what understands its messages, as
	// Mattermost and Rocket.Chat do.
	Slack *NotificationServer `json:"slack,omitempty"`
}

// AsSevere says whether an event is as severe as what is told of.
func (n *Notification) AsSevere(event NotificationEvent) bool {
	least := slices.Index(Severities(), n.Severity) // -1: all are
	return slices.Index(Severities(), NotificationEvents()[event]) >= least
}

// NotificationServer is where messages go.
//
// +kubebuilder:object:generate=false
type NotificationServer struct {
	// URL, where it is no secret: what stands in git can be read by many.
	URL string `json:"url,omitempty"`
	// Secret in keelson-system of the hub, by name. Its key url is the address, where
	// URL is left out. With a key hmacKey, each message of a webhook has the header
	// X-Signature: sha256= and the hex HMAC-SHA256 of its body; with a key token, it has
	// Authorization: Bearer. A token goes only to the url that stands beside it.
	Secret string `json:"secret,omitempty"`
}

// The keys of [NotificationServer.Secret].
const (
	NotificationURL   = "url"
	NotificationHMAC  = "hmacKey"
	NotificationToken = "token"
)

// NotificationEvent is something that is told of.
type NotificationEvent string

// The values of [NotificationEvent].
const (
	RolloutStarted        NotificationEvent = "rollout-started"     // git wants a change
	RolloutSuperseded     NotificationEvent = "rollout-superseded"  // a newer one took the place of one on its way
	RolloutApprovalNeeded NotificationEvent = "approval-needed"     // a stage waits for a line in git
	RolloutStageOpened    NotificationEvent = "stage-opened"        // its clusters get the change
	RolloutStagePassed    NotificationEvent = "stage-passed"        // all of them have it, and it has baked
	RolloutStagePromoted  NotificationEvent = "stage-promoted"      // a person lets it go without waiting
	RolloutWasPaused      NotificationEvent = "rollout-paused"      // by a person
	RolloutFailed         NotificationEvent = "rollout-failed"      // it stopped, or goes back
	RolloutWasRolledBack  NotificationEvent = "rollout-rolled-back" // the stage that failed is back
	RolloutResumed        NotificationEvent = "rollout-resumed"     // it goes on
	RolloutFinished       NotificationEvent = "rollout-complete"    // all clusters have the change
	DeliveryFailing       NotificationEvent = "delivery-failing"    // Failed, Unreachable or Degraded
	DeliveryHeld          NotificationEvent = "delivery-held"       // a dangerous change waits for an approval
	DeliveryWarned        NotificationEvent = "delivery-warned"     // a danger rule warns of the change
	DeliveryBlocked       NotificationEvent = "delivery-blocked"    // Blocked or Denied: git has to change
	DeliveryRecovered     NotificationEvent = "delivery-recovered"  // Synced and Healthy after any of these
)

// NotificationEvents are all of them, each with its severity.
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

// Severity says how soon somebody should look.
type Severity string

// The values of [Severity], the least first.
const (
	SeverityInfo    Severity = "info"
	SeverityWarning Severity = "warning"
	SeverityError   Severity = "error"
)

// Severities are all of them, the least first.
func Severities() []Severity { return []Severity{SeverityInfo, SeverityWarning, SeverityError} }

// Message is the body of a POST to [Notification.Webhook]. Receivers ignore fields that
// they do not know: there may be more one day.
//
// +kubebuilder:object:generate=false
type Message struct {
	APIVersion string `json:"apiVersion"` // keelson.io/v1alpha1
	Kind       string `json:"kind"`       // Message
	// ID is the same when the same is sent again, since no answer came, say.
	ID string `json:"id"`
	// Time at which it was sent, in RFC 3339 and UTC.
	Time metav1.Time `json:"time"`
	// Fleet by its name, and the name of the notification's file without .yaml.
	Fleet        string `json:"fleet"`
	Notification string `json:"notification"`
	// Test says that nothing has happened: somebody tries it out.
	Test bool `json:"test,omitempty"`
	// Severity is the worst of Events.
	Severity Severity `json:"severity"`
	// Text is that of all Events, a line each.
	Text   string         `json:"text"`
	Events []MessageEvent `json:"events"`
	// More is how many events there are besides, which are left out.
	More int `json:"more,omitempty"`
}

// MessageEvent is one thing that happened, on one cluster or on many. What is not known,
// or makes no sense for it, is left out.
//
// +kubebuilder:object:generate=false
type MessageEvent struct {
	Event    NotificationEvent `json:"event"`
	Severity Severity          `json:"severity"`
	// Component; empty where several of one cluster are meant, which Components names.
	Component  string   `json:"component,omitempty"`
	Components []string `json:"components,omitempty"`
	// Clusters by name, the first ten; Count is how many deliveries are meant.
	Clusters []string `json:"clusters,omitempty"`
	Count    int      `json:"count,omitempty"`
	Pipeline string   `json:"pipeline,omitempty"`
	Stage    string   `json:"stage,omitempty"`
	// From and Version are those that clusters come from and go to; several are
	// separated by commas.
	From    string `json:"from,omitempty"`
	Version string `json:"version,omitempty"`
	// Revision is the commit of the fleet repository.
	Revision string `json:"revision,omitempty"`
	// Hash is what an approval names.
	Hash string `json:"hash,omitempty"`
	// Reason in the words of whatever failed. It may come from a cluster: do not trust it.
	Reason string `json:"reason,omitempty"`
	// Message is one sentence for people, with Reason in it.
	Message string `json:"message"`
}
