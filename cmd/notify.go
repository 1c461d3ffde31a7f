package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/controllers/connect"
	"github.com/keelson-io/keelson/controllers/egress"
	"github.com/keelson-io/keelson/controllers/notify"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/naming"
)

// notifyRun is one run of notify.
type notifyRun struct {
	*cli.Invocation
	fleets   *fleetrepo.Opener
	clusters connection.Connector
}

func newNotify(inv *cli.Invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "notify",
		GroupID: cli.GroupCluster,
		Short:   "List notifications, and try one out",
		Long: `Files under notifications/ in the fleet repository define messages about
rollouts and deliveries, to a chat or to a webhook. 'keelson controller' sends
them.`,
		Example: `  keelson notify list
  keelson notify test oncall
  keelson notify test oncall --dry-run -o json | jq .body`,
		Args: cli.Args("list or test", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNotifyList(inv), newNotifyTest(inv))
	return cmd
}

func newNotifyList(inv *cli.Invocation) *cobra.Command {
	run := &notifyRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	return &cobra.Command{
		Use:   "list",
		Short: "List the notifications that git has",
		Long: `List prints each notification, where it goes, and what it is about. It sends no
request but the repository.

Exit codes: 0 printed, 1 printed, and one of them is broken, 2 the repository
can't be read.`,
		Example: `  keelson notify list
  keelson notify list -o json | jq -r '.[] | select(.broken) | .name'`,
		Args: cli.Args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return run.listNotifications(cmd.Context()) },
	}
}

// notification is an entry of the list.
type notification struct {
	Name string `json:"name"`
	// Kind is webhook or slack. To is a URL or a Secret.
	Kind     string   `json:"kind,omitempty"`
	To       string   `json:"to,omitempty"`
	Interval string   `json:"interval,omitempty"`
	Severity string   `json:"severity,omitempty"`
	Events   []string `json:"events,omitempty"` // empty: all
	// Deliveries counts the covered deliveries.
	Deliveries int      `json:"deliveries"`
	Broken     []string `json:"broken,omitempty"`
}

func (run *notifyRun) listNotifications(ctx context.Context) error {
	if err := run.CheckFormat(); err != nil {
		return err
	}
	f, err := run.fleets.LoadFleet(ctx, false)
	if err != nil {
		return err
	}
	out, broken := []notification{}, false
	for _, n := range f.Notifications {
		one := notification{Name: n.Name}
		for _, p := range n.Problems {
			one.Broken = append(one.Broken, p.Error())
		}
		broken = broken || len(one.Broken) > 0
		if len(one.Broken) == 0 {
			one = listed(f, n)
		}
		out = append(out, one)
	}
	if err := run.showNotifications(out); err != nil {
		return err
	}
	if broken {
		return cli.ErrFound
	}
	return nil
}

func listed(f *registry.Fleet, n *registry.Notification) notification {
	server, kind := n.Server()
	one := notification{Name: n.Name, Kind: kind, Interval: n.Interval().String(), Severity: string(n.Spec.Severity)}
	if one.To = server.URL; one.To == "" {
		one.To = "Secret " + server.Secret
	}
	for _, event := range n.Spec.Events {
		one.Events = append(one.Events, string(event))
	}
	for _, c := range f.Clusters {
		for _, d := range c.Deliveries {
			pipeline := ""
			if p := f.PipelineOf(d.Component); p != nil {
				pipeline = p.Name
			}
			if n.Selects(d.Component, pipeline, c.Spec.Labels) {
				one.Deliveries++
			}
		}
	}
	return one
}

func (run *notifyRun) showNotifications(list []notification) error {
	t := run.NewTable("NAME", "KIND", "TO", "INTERVAL", "SEVERITY", "DELIVERIES", "EVENTS")
	for _, n := range list {
		events := strings.Join(n.Events, ", ")
		if events == "" {
			events = "all"
		}
		if len(n.Broken) > 0 {
			events = "broken: " + cli.OneLine(n.Broken[0])
		}
		t.Rows = append(t.Rows, cli.Row{Cells: []cli.Cell{
			{Text: cli.OneLine(n.Name)}, {Text: n.Kind}, {Text: cli.OneLine(n.To)}, {Text: n.Interval}, {Text: n.Severity}, {Text: fmt.Sprint(n.Deliveries)}, {Text: events},
		}})
	}
	return run.Show(list, t.TextOr("no notifications\n"))
}

func newNotifyTest(inv *cli.Invocation) *cobra.Command {
	run := &notifyRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	var dry bool
	cmd := &cobra.Command{
		Use:   "test NAME",
		Short: "Send a sample of a notification, and print what was sent",
		Long: `Test sends a message of made-up events to the target of a notification. The
message says that it is a test. The command prints what it sent and the answer.
It reads the target's address and key from a Secret in the hub (--kubeconfig
and --context), and does not print them. With --dry-run it sends nothing and
asks no question.

Exit codes: 0 accepted, or with --dry-run complete; 1 not accepted; 2 an error
before that.`,
		Example: `  keelson notify test oncall
  keelson notify test oncall --dry-run
  keelson notify test oncall --repo . --context hub -o json`,
		Args:              cli.Args("NAME", 1, 1),
		ValidArgsFunction: run.fleets.Complete(completeNotifications),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.testNotification(cmd.Context(), args[0], dry)
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what would be sent")
	return cmd
}

// tried is the result of a test.
type tried struct {
	Notification string          `json:"notification"`
	Sent         bool            `json:"sent"`
	To           string          `json:"to"`
	Signed       bool            `json:"signed"`
	Token        bool            `json:"token"`
	Status       int             `json:"status,omitempty"`
	Error        string          `json:"error,omitempty"`
	Body         json.RawMessage `json:"body"`
}

func (run *notifyRun) testNotification(ctx context.Context, name string, dry bool) error {
	if err := run.CheckFormat(); err != nil {
		return err
	}
	f, err := run.fleets.LoadFleet(ctx, false)
	if err != nil {
		return err
	}
	n := f.Notification(name)
	switch {
	case n == nil:
		return fmt.Errorf("the fleet repository has no notification %q: %s", name, run.whichNotifications(f, name))
	case len(n.Problems) > 0:
		return fmt.Errorf("notification %s is broken:\n%w", name, n.Problems)
	}
	m, err := notify.Sample(f, n, run.Env.Now(), run.Env.Redactor.Text)
	if err != nil {
		return err
	}
	out := tried{Notification: name, To: listed(f, n).To}
	var failed error
	if dry {
		if out.Body, err = notify.Body(n, m); err != nil {
			return err
		}
	} else {
		sent, err := run.sender().Send(ctx, n, m)
		if _, answered := errors.AsType[*notify.SendError](err); err != nil && !answered {
			return err
		}
		out.Body, out.Status, out.Signed, out.Token, out.Sent, failed = sent.Body, sent.Status, sent.Signed, sent.Token, err == nil, err
		if failed != nil {
			out.Error = failed.Error()
		}
	}
	return run.showTried(out, failed, dry)
}

func (run *notifyRun) showTried(out tried, failed error, dry bool) error {
	if run.Output != cli.FormatText {
		if err := run.Encode(out); err != nil {
			return err
		}
	} else {
		how := "unsigned"
		switch {
		case dry:
			how = "not sent"
		case out.Signed:
			how = "signed"
		}
		if out.Token {
			how += ", with a token"
		}
		body, err := json.MarshalIndent(out.Body, "", "  ")
		if err != nil {
			return fmt.Errorf("encode the output: %w", err)
		}
		text := fmt.Sprintf("POST to %s, %s:\n%s\n", out.To, how, body)
		if out.Status != 0 {
			text += fmt.Sprintf("answer: %d\n", out.Status)
		}
		if failed != nil {
			text += "not taken: " + cli.OneLine(failed.Error()) + "\n"
		}
		if err := run.Write([]byte(text)); err != nil {
			return err
		}
	}
	if failed != nil {
		return cli.ErrFound
	}
	return nil
}

// sender returns a sender that reads a Secret from the hub when it needs one.
func (run *notifyRun) sender() *notify.Sender {
	secrets := func(ctx context.Context, namespace, name string) (map[string][]byte, error) {
		hub, err := run.clusters.Source().Hub()
		if err != nil {
			return nil, err
		}
		read, err := connect.SecretsOf(hub)
		if err != nil {
			return nil, err
		}
		return read(ctx, namespace, name)
	}
	return notify.NewSender(notify.Sender{Secrets: secrets, Hide: run.Env.Redactor.Hide, Now: run.Env.Now}, egress.Everywhere().Transport())
}

func (run *notifyRun) whichNotifications(f *registry.Fleet, name string) string {
	var names []string
	for _, n := range f.Notifications {
		names = append(names, n.Name)
	}
	switch meant := naming.Suggest(name, names); {
	case meant != "":
		return meant
	case len(names) == 0:
		return "it has none; write notifications/" + name + ".yaml"
	}
	return "it has " + cli.Few(names)
}

// notificationNeeds returns the names of the Secrets and ConfigMaps that a fleet's notifications
// need.
func notificationNeeds(f *registry.Fleet) (secrets, configMaps []string) {
	named := map[string]bool{}
	for _, n := range f.Notifications {
		if len(n.Problems) > 0 {
			continue
		}
		configMaps = append(configMaps, notify.SentStateName(f.Spec.Name, n.Name))
		if server, _ := n.Server(); server.Secret != "" {
			named[server.Secret] = true
		}
	}
	return slices.Sorted(maps.Keys(named)), configMaps
}

// completeNotifications completes the name of a notification.
func completeNotifications(f *registry.Fleet, args []string) (out []string) {
	for _, n := range f.Notifications {
		if len(args) == 0 && len(n.Problems) == 0 {
			out = append(out, n.Name)
		}
	}
	return out
}
