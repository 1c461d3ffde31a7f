package registry

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/objectcache"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// maxNotifications bounds the notifications of a fleet. Each has its own series of metrics, and its
// own memory of sent messages.
const maxNotifications = 50

// Notification is one file under notifications/. A notification with Problems sends nothing and
// blocks no delivery.
type Notification struct {
	Name     string
	Spec     v1alpha1.Notification
	Problems yamlfile.Problems

	selector labels.Selector
	file     string
}

// At returns the file of the notification.
func (n *Notification) At() yamlfile.Position { return yamlfile.Position{File: n.file} }

// Server returns the destination of messages, and its kind: webhook or slack. The notification must
// not have Problems.
func (n *Notification) Server() (server v1alpha1.NotificationServer, kind string) {
	if n.Spec.Slack != nil {
		return *n.Spec.Slack, "slack"
	}
	return *n.Spec.Webhook, "webhook"
}

// Selects reports whether a notification is for a component that uses a pipeline ("" for none), on
// a cluster with the given labels. The notification must not have Problems.
func (n *Notification) Selects(component, pipeline string, set map[string]string) bool {
	return (len(n.Spec.Components) == 0 || slices.Contains(n.Spec.Components, component)) &&
		(len(n.Spec.Pipelines) == 0 || slices.Contains(n.Spec.Pipelines, pipeline)) &&
		n.selector.Matches(labels.Set(set))
}

// Notification returns the notification with the given name, or nil.
func (f *Fleet) Notification(name string) *Notification {
	i := slices.IndexFunc(f.Notifications, func(n *Notification) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return f.Notifications[i]
}

// NotificationNames returns the placeholders of the text of a notification; see
// [v1alpha1.Notification].
func NotificationNames() []string {
	return []string{
		"fleet", "event", "severity", "component", "cluster", "count", "pipeline", "stage", "from", "version", "revision", "hash", "reason", "message",
	}
}

// ExpandText replaces $(name) in the text of a notification by values. Placeholders in values are
// not replaced.
func ExpandText(text string, values map[string]string) string {
	var pairs []string
	for _, name := range NotificationNames() {
		pairs = append(pairs, "$("+name+")", values[name])
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// readNotifications reads notifications/.
func (l *loader) readNotifications(ctx context.Context) error {
	files, unread, err := topFolder[notificationFile]{
		name: "notifications", kind: v1alpha1.KindNotification, decode: decodeNotification, strict: true,
	}.read(ctx, l.files)
	if err != nil {
		return err
	}
	l.report(unread...)
	for _, f := range files {
		n, err := l.newNotification(f)
		if err != nil {
			return err
		}
		if len(l.fleet.Notifications) >= maxNotifications {
			n.Problems = append(slices.Clone(n.Problems), yamlfile.Problem{At: n.At(), Message: fmt.Sprintf("a fleet has at most %d notifications", maxNotifications)})
		}
		l.report(n.Problems...)
		l.fleet.Notifications = append(l.fleet.Notifications, n)
	}
	return nil
}

func (l *loader) newNotification(f topFile[notificationFile]) (*Notification, error) {
	broken := &Notification{Name: f.stem, file: f.Path, Problems: f.problems}
	if f.content == nil {
		return broken, nil
	}
	says := f.content
	broken.Spec, broken.Problems = says.spec, append(broken.Problems, misnamed(broken.At(), f.stem, "notification")...)
	for i, component := range says.spec.Components {
		if p := l.versions.nowhere(component, says.componentsAt[i].In(f.Path, "")); p != nil && naming.Check(component) == "" {
			broken.Problems = append(broken.Problems, *p)
		}
	}
	for i, pipeline := range says.spec.Pipelines {
		if l.fleet.Pipeline(pipeline) == nil && naming.Check(pipeline) == "" {
			broken.Problems = append(broken.Problems, l.noPipeline(says.pipelinesAt[i].In(f.Path, ""), pipeline))
		}
	}
	if len(broken.Problems) > 0 {
		return broken, nil
	}
	return objectcache.Get(l.files.cache, objectcache.Key{Job: "notification", Hash: f.Hash, Name: f.Path}, func() (*Notification, error) {
		return &Notification{Name: f.stem, Spec: says.spec, selector: says.selector, file: f.Path}, nil
	})
}

// notificationFile is notifications/NAME.yaml.
type notificationFile struct {
	spec     v1alpha1.Notification
	selector labels.Selector
	// componentsAt and pipelinesAt are the positions of their names.
	componentsAt, pipelinesAt []yamlfile.Point
	yamlfile.Mistakes
}

func decodeNotification(data []byte) *notificationFile {
	f := &notificationFile{}
	doc := decodeFile(data, v1alpha1.KindNotification, &f.spec)
	if !doc.Broken {
		notificationChecker{checker{doc}}.check(f)
	}
	f.Mistakes = doc.Mistakes
	return f
}

// notificationChecker checks a notification.
type notificationChecker struct{ checker }

func (c notificationChecker) check(f *notificationFile) {
	n := f.spec
	var events, severities []string
	for event := range v1alpha1.NotificationEvents() {
		events = append(events, string(event))
	}
	slices.Sort(events)
	for _, severity := range v1alpha1.Severities() {
		severities = append(severities, string(severity))
	}
	for i, event := range n.Events {
		if path := []string{"events", strconv.Itoa(i)}; !slices.Contains(events, string(event)) && !c.doc.Wrong(path...) {
			c.value(path, fmt.Sprintf("events holds %q; it may hold %s", event, strings.Join(events, ", ")), naming.Suggest(string(event), events))
		}
	}
	c.oneOf([]string{"severity"}, string(n.Severity), severities...)
	if !c.doc.Wrong("severity") && !c.doc.Wrong("events") && len(n.Events) > 0 && !slices.ContainsFunc(n.Events, n.AsSevere) {
		c.value([]string{"severity"}, fmt.Sprintf("severity %s leaves nothing: each of the events is less severe", n.Severity), "")
	}
	c.some("events", len(n.Events))
	f.componentsAt, f.pipelinesAt = c.names("components", n.Components), c.names("pipelines", n.Pipelines)
	c.wait([]string{"interval"}, n.Interval, time.Second)
	c.text(n.Text)
	c.servers(n)
	f.selector = labels.Everything()
	if n.ClusterSelector != nil {
		f.selector = c.selector([]string{"clusterSelector"}, *n.ClusterSelector)
	}
}

// text checks the text of the messages, which has placeholders of its own.
func (c notificationChecker) text(text string) {
	path := []string{"text"}
	if len(text) > maxQuery {
		c.value(path, fmt.Sprintf("text has %d bytes; at most %d are allowed", len(text), maxQuery), "")
	}
	known := NotificationNames()
	for _, p := range placeholder.FindAllString(text, -1) {
		if name := strings.TrimSuffix(strings.TrimPrefix(p, "$("), ")"); !slices.Contains(known, name) {
			hint := naming.Suggest(name, known)
			if hint == "" {
				hint = "there are $(" + strings.Join(known, "), $(") + ")"
			}
			c.value(path, p+" stands for nothing", hint)
			return
		}
	}
}

// servers checks the destination of messages.
func (c notificationChecker) servers(n v1alpha1.Notification) {
	top := []string{"kind"}
	switch {
	case c.doc.Wrong("webhook") || c.doc.Wrong("slack"):
		return
	case n.Webhook != nil && n.Slack != nil:
		c.key([]string{"slack"}, "a notification goes to a webhook or to slack, and not to both", "write a second file")
	case n.Webhook == nil && n.Slack == nil:
		c.key(top, "a notification needs one of webhook and slack", "slack: {secret: NAME}")
	}
	for key, server := range map[string]*v1alpha1.NotificationServer{"webhook": n.Webhook, "slack": n.Slack} {
		if server == nil {
			continue
		}
		path := []string{key}
		if server.URL == "" && server.Secret == "" {
			c.key(path, key+" needs a url, or a secret that holds it", "name a Secret in "+v1alpha1.Namespace+" with a key url")
		}
		if server.URL != "" {
			c.address(yamlfile.Below(path, "url"), server.URL)
		}
		if wrong := validation.IsDNS1123Subdomain(server.Secret); server.Secret != "" && len(wrong) > 0 {
			c.value(yamlfile.Below(path, "secret"), fmt.Sprintf("secret %q is not the name of a Secret: %s", server.Secret, short(wrong)), "")
		}
		if key == "slack" && server.URL != "" && server.Secret != "" {
			c.key(yamlfile.Below(path, "secret"), "a slack that names its url has no use for a secret: messages to it are not signed", "leave one of both out")
		}
	}
}

// Interval returns the shortest time between two messages of a notification.
func (n *Notification) Interval() time.Duration {
	if n.Spec.Interval == nil {
		return time.Minute
	}
	return n.Spec.Interval.Duration
}
