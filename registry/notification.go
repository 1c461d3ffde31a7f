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
)

// maxNotifications bounds those of a fleet: each has its own series of metrics, and its
// own memory of what it has told.
const maxNotifications = 50

// Notification is one file under notifications/. One that has Problems tells nobody of
// anything; it holds up no delivery.
type Notification struct {
	Name     string
	Spec     v1alpha1.Notification
	Problems Problems

	selector labels.Selector
	file     string
}

// At is its file.
func (n *Notification) At() Position { return Position{File: n.file} }

// Server is where messages go, and kind what understands them: webhook or slack.
func (n *Notification) Server() (server v1alpha1.NotificationServer, kind string) {
	if n.Spec.Slack != nil {
		return *n.Spec.Slack, "slack"
	}
	return *n.Spec.Webhook, "webhook"
}

// Selects says whether a notification is about a component that goes by a pipeline ("":
// by none) on a cluster with the given labels.
func (n *Notification) Selects(component, pipeline string, set map[string]string) bool {
	return (len(n.Spec.Components) == 0 || slices.Contains(n.Spec.Components, component)) &&
		(len(n.Spec.Pipelines) == 0 || slices.Contains(n.Spec.Pipelines, pipeline)) &&
		n.selector.Matches(labels.Set(set))
}

// Notification returns the one with the given name, or nil.
func (f *Fleet) Notification(name string) *Notification {
	i := slices.IndexFunc(f.Notifications, func(n *Notification) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return f.Notifications[i]
}

// NotificationNames are the names that stand for something in the text of a
// notification; see [v1alpha1.Notification].
func NotificationNames() []string {
	return []string{
		"fleet", "event", "severity", "component", "cluster", "count", "pipeline", "stage", "from", "version", "revision", "hash", "reason", "message",
	}
}

// ExpandText puts values in the place of $(name) in the text of a notification. What is
// put there is not looked at again.
func ExpandText(text string, values map[string]string) string {
	var pairs []string
	for _, name := range NotificationNames() {
		pairs = append(pairs, "$("+name+")", values[name])
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// readNotifications reads notifications/.
func (l *loader) readNotifications(ctx context.Context) error {
	files, wrong, err := l.topFiles(ctx, "notifications")
	if err != nil {
		return err
	}
	if wrong != nil {
		l.report(*wrong)
	}
	for _, f := range files {
		n := &Notification{Name: stem(f.name), file: f.path}
		switch {
		case f.odd != nil:
			n.Problems = Problems{*f.odd}
		case isYAML(f.name):
			if n, err = l.readNotification(ctx, f.entry, n.Name); err != nil {
				return err
			}
		default: // whoever wrote it believes that it is read
			n.Problems = Problems{{At: n.At(), Message: "a notification is a .yaml file", Hint: "notes are .md files"}}
		}
		if len(l.fleet.Notifications) >= maxNotifications {
			n.Problems = append(slices.Clone(n.Problems), Problem{At: n.At(), Message: fmt.Sprintf("a fleet has at most %d notifications", maxNotifications)})
		}
		l.report(n.Problems...)
		l.fleet.Notifications = append(l.fleet.Notifications, n)
	}
	return nil
}

func (l *loader) readNotification(ctx context.Context, e entry, name string) (*Notification, error) {
	broken := &Notification{Name: name, file: e.path}
	f, problem, err := readEntry(ctx, l, e, v1alpha1.KindNotification, decodeNotification)
	if err != nil {
		return nil, err
	}
	if f == nil {
		broken.Problems = Problems{problem}
		return broken, nil
	}
	broken.Spec, broken.Problems = f.spec, inFile(e.path, f.mistakes)
	if wrong := checkName(name); wrong != "" {
		broken.Problems = append(broken.Problems, Problem{At: broken.At(), Message: wrong, Hint: "the file is named after its notification"})
	}
	for i, component := range f.spec.Components {
		at := f.componentsAt[i].in(e.path, "")
		if p := l.unpublished(component, v1alpha1.VersionHead, at); p != nil && len(l.refs.versions[component]) == 0 && checkName(component) == "" {
			broken.Problems = append(broken.Problems, *p)
		}
	}
	for i, pipeline := range f.spec.Pipelines {
		if l.fleet.Pipeline(pipeline) == nil && checkName(pipeline) == "" {
			var names []string
			for _, p := range l.fleet.Pipelines {
				names = append(names, p.Name)
			}
			broken.Problems = append(broken.Problems, Problem{
				At:      f.pipelinesAt[i].in(e.path, ""),
				Message: fmt.Sprintf("there is no pipeline %q: pipelines/%s.yaml does not exist", pipeline, pipeline), Hint: Suggest(pipeline, names),
			})
		}
	}
	if len(broken.Problems) > 0 {
		return broken, nil
	}
	return cached(l.repo.cache, cacheKey{job: "notification", hash: e.hash, name: e.path}, func() (*Notification, error) {
		return &Notification{Name: name, Spec: f.spec, selector: f.selector, file: e.path}, nil
	})
}

// notificationFile is notifications/NAME.yaml.
type notificationFile struct {
	spec     v1alpha1.Notification
	selector labels.Selector
	// componentsAt and pipelinesAt are the places of their names.
	componentsAt, pipelinesAt []point
	mistakes                  []mistake
}

func decodeNotification(data []byte) *notificationFile {
	f := &notificationFile{}
	doc := decodeFile(data, v1alpha1.KindNotification, &f.spec)
	if !doc.broken {
		f.selector = checker{doc}.notification(f.spec)
		f.componentsAt = itemsAt("components", doc, len(f.spec.Components))
		f.pipelinesAt = itemsAt("pipelines", doc, len(f.spec.Pipelines))
	}
	f.mistakes = doc.mistakes
	return f
}

// notification checks one, and returns the clusters that it is about.
func (c checker) notification(n v1alpha1.Notification) labels.Selector {
	var events, severities []string
	for event := range v1alpha1.NotificationEvents() {
		events = append(events, string(event))
	}
	slices.Sort(events)
	for _, severity := range v1alpha1.Severities() {
		severities = append(severities, string(severity))
	}
	for i, event := range n.Events {
		if path := []string{"events", strconv.Itoa(i)}; !slices.Contains(events, string(event)) && !c.doc.wrong(path...) {
			c.value(path, fmt.Sprintf("events holds %q; it may hold %s", event, strings.Join(events, ", ")), Suggest(string(event), events))
		}
	}
	c.oneOf([]string{"severity"}, string(n.Severity), severities...)
	if !c.doc.wrong("severity") && !c.doc.wrong("events") && len(n.Events) > 0 && !slices.ContainsFunc(n.Events, n.AsSevere) {
		c.value([]string{"severity"}, fmt.Sprintf("severity %s leaves nothing: each of the events is less severe", n.Severity), "")
	}
	c.some("events", len(n.Events))
	for key, names := range map[string][]string{"components": n.Components, "pipelines": n.Pipelines} {
		c.some(key, len(names))
		for i, name := range names {
			if wrong := checkName(name); wrong != "" && !c.doc.wrong(key, strconv.Itoa(i)) {
				c.value([]string{key, strconv.Itoa(i)}, wrong, "")
			}
		}
	}
	c.wait([]string{"interval"}, n.Interval, time.Second)
	c.notificationText(n.Text)
	c.servers(n)
	selector := labels.Everything()
	if n.ClusterSelector != nil {
		selector = c.selector([]string{"clusterSelector"}, *n.ClusterSelector)
	}
	return selector
}

// some reports a list that is there and empty, or too long.
func (c checker) some(key string, n int) {
	if _, set := c.doc.lookup(key); set != nil && n == 0 && !c.doc.wrong(key) {
		c.key([]string{key}, key+" names none", "leave it out for all")
	}
	c.most([]string{key}, n, maxFrozen)
}

func (c checker) notificationText(text string) {
	path := []string{"text"}
	if len(text) > maxQuery {
		c.value(path, fmt.Sprintf("text has %d bytes; at most %d are allowed", len(text), maxQuery), "")
	}
	known := NotificationNames()
	for _, p := range placeholder.FindAllString(text, -1) {
		if name := strings.TrimSuffix(strings.TrimPrefix(p, "$("), ")"); !slices.Contains(known, name) {
			hint := Suggest(name, known)
			if hint == "" {
				hint = "there are $(" + strings.Join(known, "), $(") + ")"
			}
			c.value(path, p+" stands for nothing", hint)
			return
		}
	}
}

// servers checks where messages go.
func (c checker) servers(n v1alpha1.Notification) {
	top := []string{"kind"}
	switch {
	case c.doc.wrong("webhook") || c.doc.wrong("slack"):
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
			c.address(below(path, "url"), server.URL)
		}
		if wrong := validation.IsDNS1123Subdomain(server.Secret); server.Secret != "" && len(wrong) > 0 {
			c.value(below(path, "secret"), fmt.Sprintf("secret %q is not the name of a Secret: %s", server.Secret, short(wrong)), "")
		}
		if key == "slack" && server.URL != "" && server.Secret != "" {
			c.key(below(path, "secret"), "a slack that names its url has no use for a secret: messages to it are not signed", "leave one of both out")
		}
	}
}

// itemsAt are the places of the items of a list.
func itemsAt(key string, doc *document, n int) []point {
	out := make([]point, n)
	for i := range out {
		out[i] = doc.valuePoint(key, strconv.Itoa(i))
	}
	return out
}

// Interval is the least time between two messages of a notification.
func (n *Notification) Interval() time.Duration {
	if n.Spec.Interval == nil {
		return time.Minute
	}
	return n.Spec.Interval.Duration
}
