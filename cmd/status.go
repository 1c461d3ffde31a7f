package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/connection"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
)

// statusPage is the number of deliveries in one request.
const statusPage = 500

// redrawPause is the shortest time between two redraws of a watched table.
const redrawPause = 250 * time.Millisecond

// relistPause is the pause before a new request to the hub after a watch ended.
const relistPause = time.Second

type statusOptions struct {
	watch, matrix, problems, risky, fail bool
}

// statusRun is one run of status.
type statusRun struct {
	*cli.Invocation
	fleets   *fleetrepo.Opener
	clusters connection.Connector
}

func newStatus(inv *cli.Invocation) *cobra.Command {
	run := &statusRun{Invocation: inv, fleets: fleetrepo.New(inv), clusters: connection.New(inv)}
	var o statusOptions
	cmd := &cobra.Command{
		Use:     "status [CLUSTER...]",
		GroupID: cli.GroupCluster,
		Short:   "Show how the components of all clusters are",
		Long: `Status prints what the controller knows of each component on each cluster. It
reads the Delivery objects in the hub (--kubeconfig and --context).

A row has the version in git, after an arrow if another version runs. It also
has whether the cluster matches git, the health, since when (AGE), and the
reason. What a danger rule holds is listed below the row, with the rule and its
reason. With --risky, only components with risks are printed: held changes, and
what danger rules warned of in the last change.

With --matrix there is a row for each component, a column for each cluster,
and in the cells a version and a sign:
  ✓ as git says, and healthy    … in progress, or waiting
  ! held or paused              ✗ failed, denied, degraded or not reachable

Exit codes: 0 printed, 1 with --fail: not all is synced and healthy, 2 the hub
can't be read.`,
		Example: `  keelson status
  keelson status prod-us-01 prod-us-02 --watch
  keelson status --matrix
  keelson status --problems
  keelson status --risky
  keelson status --fail -o json > status.json`,
		Args:              cli.Args("[CLUSTER...]", 0, -1),
		ValidArgsFunction: run.fleets.Complete(fleetrepo.CompleteClusters),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := run.CheckFormat(); err != nil {
				return err
			}
			if run.Output != cli.FormatText && (o.watch || o.matrix) {
				return cli.Usagef("--watch and --matrix print text, and not %s", run.Output)
			}
			s, err := run.newStatusView(args, o)
			if err != nil {
				return err
			}
			if o.watch {
				return s.follow(cmd.Context())
			}
			return s.once(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.watch, "watch", "w", false, "go on, and show each change")
	f.BoolVar(&o.matrix, "matrix", false, "a row for each component, a column for each cluster")
	f.BoolVar(&o.problems, "problems", false, "leave out what is synced and healthy")
	f.BoolVar(&o.risky, "risky", false, "only what danger rules hold, deny or warn of")
	f.BoolVar(&o.fail, "fail", false, "exit 1 unless all is synced and healthy")
	return cmd
}

// statusView shows the deliveries of a hub.
type statusView struct {
	*cli.Invocation
	options  statusOptions
	clusters []string
	client   client.WithWatch
}

func (run *statusRun) newStatusView(clusters []string, o statusOptions) (*statusView, error) {
	c, err := run.clusters.HubClient()
	if err != nil {
		return nil, err
	}
	return &statusView{Invocation: run.Invocation, options: o, clusters: clusters, client: c}, nil
}

// list reads the deliveries, and the resourceVersion that a watch starts from.
func (s *statusView) list(ctx context.Context) (map[string]v1alpha1.Delivery, string, error) {
	out, next, version := map[string]v1alpha1.Delivery{}, "", ""
	for {
		var page v1alpha1.DeliveryList
		err := s.client.List(ctx, &page, client.Limit(statusPage), client.Continue(next))
		switch {
		case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
			return nil, "", errors.New("the hub knows no Deliveries: either 'keelson controller' never ran there, " +
				"or --context names another cluster than the hub")
		case err != nil:
			return nil, "", fmt.Errorf("read the deliveries in the hub: %w", err)
		}
		for _, d := range page.Items {
			if s.wanted(&d) {
				out[d.Namespace+"/"+d.Name] = d
			}
		}
		next, version = page.Continue, page.ResourceVersion
		if next == "" {
			return out, version, nil
		}
	}
}

func (s *statusView) wanted(d *v1alpha1.Delivery) bool {
	return len(s.clusters) == 0 || slices.Contains(s.clusters, d.Status.Cluster)
}

func (s *statusView) once(ctx context.Context) error {
	found, _, err := s.list(ctx)
	if err != nil {
		return err
	}
	for _, name := range s.clusters {
		known := false
		for _, d := range found {
			known = known || d.Status.Cluster == name
		}
		if !known {
			return fmt.Errorf("the hub knows no cluster %q: see 'keelson status' for those that it knows", name)
		}
	}
	all := sorted(found)
	if s.Output != cli.FormatText {
		list := v1alpha1.DeliveryList{Items: s.shown(all)}
		err = s.Encode(connection.BareList(&list, list.Items, "Delivery"))
	} else {
		err = s.Write([]byte(s.text(all)))
	}
	if err != nil {
		return err
	}
	if s.options.fail && slices.ContainsFunc(all, func(d v1alpha1.Delivery) bool { return !ready(&d) }) {
		return cli.ErrFound
	}
	return nil
}

func sorted(found map[string]v1alpha1.Delivery) []v1alpha1.Delivery {
	return slices.SortedFunc(maps.Values(found), func(x, y v1alpha1.Delivery) int {
		return cmp.Or(
			cmp.Compare(x.Status.Cluster, y.Status.Cluster),
			cmp.Compare(x.Status.Component, y.Status.Component),
			cmp.Compare(x.Name, y.Name),
		)
	})
}

// shown returns the deliveries without those that --problems and --risky hide.
func (s *statusView) shown(all []v1alpha1.Delivery) []v1alpha1.Delivery {
	out := slices.Clone(all)
	if s.options.problems {
		out = slices.DeleteFunc(out, func(d v1alpha1.Delivery) bool { return ready(&d) })
	}
	if s.options.risky {
		out = slices.DeleteFunc(out, func(d v1alpha1.Delivery) bool { return len(d.Status.Held)+len(d.Status.Warnings) == 0 })
	}
	return out
}

func ready(d *v1alpha1.Delivery) bool {
	return d.Status.Sync == v1alpha1.SyncSynced && d.Status.Health == v1alpha1.HealthHealthy
}

// text returns the table, or the matrix, with the summary below it.
func (s *statusView) text(all []v1alpha1.Delivery) string {
	paint := s.Painter(s.Env.Out)
	if len(all) == 0 {
		return "no deliveries yet\n"
	}
	body := ""
	if shown := s.shown(all); len(shown) > 0 {
		t := statusTable(shown, s.Env.Now(), s.options.risky)
		if s.options.matrix {
			t = statusMatrix(shown)
		}
		t.Painter, t.Width = paint, s.Env.Columns(s.Env.Out)
		body = t.String() + "\n"
	}
	good := !slices.ContainsFunc(all, func(d v1alpha1.Delivery) bool { return !ready(&d) })
	return body + paint.Paint(cli.OutcomeStyle(good), statusSummary(all)) + "\n"
}

// statusSummary returns, for example, "18 deliveries: 17 Synced, 1 Held; 18 Healthy".
func statusSummary(all []v1alpha1.Delivery) string {
	sync, health := map[string]int{}, map[string]int{}
	for i := range all {
		sync[cmp.Or(string(all[i].Status.Sync), "Unknown")]++
		health[cmp.Or(string(all[i].Status.Health), "Unknown")]++
	}
	text := cli.Plural(len(all), "delivery", "deliveries") + ": " + counts(sync, "Synced") + "; " + counts(health, "Healthy")
	warnings := 0
	for i := range all {
		warnings += len(all[i].Status.Warnings)
	}
	if warnings > 0 {
		text += "; " + cli.Plural(warnings, "warning", "warnings") + " (--risky)"
	}
	return text
}

// counts lists the counted names, first the good one, then by falling count.
func counts(n map[string]int, good string) string {
	names := slices.SortedFunc(maps.Keys(n), func(x, y string) int {
		if (x == good) != (y == good) {
			return map[bool]int{true: -1, false: 1}[x == good]
		}
		return cmp.Or(cmp.Compare(n[y], n[x]), cmp.Compare(x, y))
	})
	parts := make([]string, 0, len(names))
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%d %s", n[name], cli.OneLine(name)))
	}
	return strings.Join(parts, ", ")
}

// statusTable has one row for each delivery. If warnings is set, notes below the row show those of
// its last change.
func statusTable(all []v1alpha1.Delivery, now time.Time, warnings bool) *cli.Table {
	t := &cli.Table{Columns: []cli.Column{
		{Title: "CLUSTER", MinWidth: 12},
		{Title: "COMPONENT", MinWidth: 12},
		{Title: "VERSION", MinWidth: 8},
		{Title: "SYNC"},
		{Title: "HEALTH"},
		{Title: "AGE"},
		{Title: "MESSAGE", MinWidth: 16},
	}}
	for i := range all {
		d := &all[i]
		r := cli.Row{Cells: []cli.Cell{
			{Text: cli.OneLine(d.Status.Cluster)},
			{Text: cli.OneLine(d.Status.Component)},
			{Text: versions(d)},
			{Text: cli.OneLine(string(d.Status.Sync)), Style: syncStyle(d.Status.Sync)},
			{Text: cli.OneLine(string(d.Status.Health)), Style: healthStyle(d.Status.Health)},
			{Text: duration.HumanDuration(max(0, now.Sub(since(d).Time)))},
			{Text: cli.OneLine(d.Status.Message)},
		}}
		for _, h := range d.Status.Held {
			what := strings.TrimSpace(h.Object + " " + h.Path)
			text := strings.TrimSpace("! " + what + ": " + because(h.Rule, h.Because) + fix(h.Fix))
			r.Notes = append(r.Notes, cli.Cell{Text: cli.OneLine(text), Style: cli.Yellow})
		}
		for _, w := range d.Status.Warnings {
			if warnings {
				what := strings.TrimSpace(w.Object + " " + w.Path)
				text := strings.TrimSpace("warning: " + what + ": " + because(w.Rule, w.Because) + fix(w.Fix))
				r.Notes = append(r.Notes, cli.Cell{Text: cli.OneLine(text), Style: cli.Yellow})
			}
		}
		if p := d.Status.Pinned; p != nil && !strings.HasPrefix(d.Status.Message, "pinned ") {
			pin := records.Pin{Number: int(p.Number), Version: p.Version, By: p.By, Because: p.Because}
			r.Notes = append(r.Notes, cli.Cell{Text: cli.OneLine("! " + pin.String()), Style: cli.Yellow})
		}
		t.Rows = append(t.Rows, r)
	}
	return t
}

// versions returns the version that git wants. If another version runs, that one and an arrow stand
// before it.
func versions(d *v1alpha1.Delivery) string {
	if applied := d.Status.AppliedVersion; applied != "" && applied != d.Status.Version {
		return cli.OneLine(applied + "→" + d.Status.Version)
	}
	return cli.OneLine(d.Status.Version)
}

// since returns when the delivery entered its present state.
func since(d *v1alpha1.Delivery) metav1.Time {
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionReady); c != nil && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime
	}
	return d.CreationTimestamp
}

func syncStyle(s v1alpha1.Sync) cli.Style {
	switch s {
	case v1alpha1.SyncSynced:
		return cli.Green
	case v1alpha1.SyncProgressing, v1alpha1.SyncWaiting:
		return cli.Cyan
	case v1alpha1.SyncAbsent:
		return cli.Plain
	case v1alpha1.SyncHeld, v1alpha1.SyncPaused, v1alpha1.SyncOrphaned:
		return cli.Yellow
	case v1alpha1.SyncDenied, v1alpha1.SyncFailed, v1alpha1.SyncBlocked, v1alpha1.SyncUnreachable:
		return cli.Red
	}
	return cli.Plain
}

func healthStyle(h v1alpha1.Health) cli.Style {
	switch h {
	case v1alpha1.HealthHealthy:
		return cli.Green
	case v1alpha1.HealthProgressing:
		return cli.Cyan
	case v1alpha1.HealthDegraded:
		return cli.Red
	case v1alpha1.HealthUnknown:
		return cli.Yellow
	}
	return cli.Plain
}

// statusMatrix has a row for each component and a column for each cluster.
func statusMatrix(all []v1alpha1.Delivery) *cli.Table {
	t := &cli.Table{Columns: []cli.Column{{Title: "COMPONENT", MinWidth: 12}}}
	clusters, components := map[string]int{}, map[string]map[string]*v1alpha1.Delivery{}
	for i := range all { // all is sorted by cluster
		d := &all[i]
		if _, ok := clusters[d.Status.Cluster]; !ok {
			clusters[d.Status.Cluster] = len(t.Columns)
			t.Columns = append(t.Columns, cli.Column{Title: cli.OneLine(d.Status.Cluster), MinWidth: 6})
		}
		if components[d.Status.Component] == nil {
			components[d.Status.Component] = map[string]*v1alpha1.Delivery{}
		}
		components[d.Status.Component][d.Status.Cluster] = d
	}
	for _, name := range slices.Sorted(maps.Keys(components)) {
		cells := make([]cli.Cell, len(t.Columns))
		cells[0].Text = cli.OneLine(name)
		for cluster, d := range components[name] {
			sign, look := signOf(d)
			cells[clusters[cluster]] = cli.Cell{Text: sign + " " + versions(d), Style: look}
		}
		t.Rows = append(t.Rows, cli.Row{Cells: cells})
	}
	return t
}

// signOf returns the sign and the style of a matrix cell: the worse of sync and health.
func signOf(d *v1alpha1.Delivery) (string, cli.Style) {
	looks := []cli.Style{syncStyle(d.Status.Sync), healthStyle(d.Status.Health)}
	switch {
	case slices.Contains(looks, cli.Red):
		return "✗", cli.Red
	case slices.Contains(looks, cli.Yellow):
		return "!", cli.Yellow
	case slices.Contains(looks, cli.Cyan):
		return "…", cli.Cyan
	case ready(d):
		return "✓", cli.Green
	}
	return "?", cli.Plain
}

// follow shows each change until ctx ends, which is not an error. If the hub fails during the
// watch, follow tries again.
func (s *statusView) follow(ctx context.Context) error {
	for began := false; ; began = true {
		err := s.watch(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // whoever watches ends it with Ctrl-C
		case err != nil && !began:
			return err
		case err != nil:
			s.Warn("%v; trying again", err)
		}
		if cli.Sleep(ctx, relistPause) != nil {
			return nil //nolint:nilerr // as above
		}
	}
}

// watch lists and watches until the API server ends the watch.
func (s *statusView) watch(ctx context.Context) error {
	found, version, err := s.list(ctx)
	if err != nil {
		return err
	}
	w, err := s.client.Watch(ctx, &v1alpha1.DeliveryList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
	if err != nil {
		return fmt.Errorf("watch the deliveries in the hub: %w", err)
	}
	defer w.Stop()
	s.draw(found)
	redraw := time.NewTicker(redrawPause)
	defer redraw.Stop()
	dirty := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-w.ResultChan():
			if !open || e.Type == watch.Error {
				return nil // list again
			}
			dirty = s.apply(found, e) || dirty
		case <-redraw.C:
			if dirty && s.Env.Columns(s.Env.Out) > 0 {
				s.draw(found)
			}
			dirty = false
		}
	}
}

// apply applies an event to the deliveries, and reports whether the event concerns a shown one.
// Without a terminal it also prints a line.
func (s *statusView) apply(found map[string]v1alpha1.Delivery, e watch.Event) bool {
	d, ok := e.Object.(*v1alpha1.Delivery)
	if !ok || !s.wanted(d) {
		return false
	}
	key := d.Namespace + "/" + d.Name
	if e.Type == watch.Deleted {
		delete(found, key)
	} else {
		found[key] = *d
	}
	if s.Env.Columns(s.Env.Out) == 0 {
		fmt.Fprintln(s.Env.Out, s.line(d, e.Type))
	}
	return true
}

// line describes one change.
func (s *statusView) line(d *v1alpha1.Delivery, event watch.EventType) string {
	parts := []string{
		s.Env.Now().UTC().Format(time.RFC3339), d.Status.Cluster, d.Status.Component, versions(d),
		string(d.Status.Sync), string(d.Status.Health), d.Status.Message,
	}
	if event == watch.Deleted {
		parts = append(parts[:3], "gone")
	}
	return cli.OneLine(strings.Join(parts, " "))
}

// draw writes the whole table; a terminal is cleared first.
func (s *statusView) draw(found map[string]v1alpha1.Delivery) {
	home := ""
	if s.Env.Columns(s.Env.Out) > 0 {
		home = "\x1b[H\x1b[2J"
	}
	fmt.Fprint(s.Env.Out, home+s.text(sorted(found)))
}
