// Package applier applies plans to API servers. It reads what a cluster has, lets differ compute
// the changes, applies them in order, and records them in the cluster.
//
// Every write of an existing object carries the resourceVersion from which its plan was made. So a
// concurrent writer causes a new plan and never a lost update. A failed read is an error and never
// an absence: nothing is created, changed or deleted because of it. A settled component costs no
// API call beyond the calls of the [Reader].
package applier

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apis"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Cluster is one target cluster. It is safe for concurrent use by different
// components.
type Cluster struct {
	name     string
	dynamic  dynamic.Interface // with Keelson's own rights
	metadata metadata.Interface
	progress func(Step)

	clusterName     *clusterName
	records         *records.Store
	accounts        *accounts
	namespaces      *namespaces
	discovery       *apis.Discoverer
	live            *observe.Objects
	nodes           *nodeReader
	uses            *useReader
	dryRuns         *dryRuns
	customResources *customResourceReader
	settled         *settledComponents
	secrets         secretRegister
	planner         *planner
	judge           objectJudge
	diagnoser       health.Diagnoser
}

// Shared holds memory that all clusters of a process share: parsed schemas, discovered APIs, and the
// buffers that encode records.
type Shared struct {
	schemas *apis.SchemaCache
	packer  records.Packer
}

// NewShared returns what clusters share, empty.
func NewShared() *Shared { return &Shared{schemas: apis.NewSchemaCache()} }

// Options configure the access to a cluster.
type Options struct {
	// Name of the cluster, for errors.
	Name   string
	Config *rest.Config
	// Shared is what the clusters of the process share; nil: nothing.
	Shared *Shared
	// Reader of live objects; nil reads from the API server each time.
	Reader observe.Reader
	// Progress is called after each finished step; may be nil.
	Progress func(Step)
	// Redactor receives the data of Secrets, wanted and live; nil: the data is not redacted.
	Redactor *redact.Redactor
	// SkipDryRuns skips the dry run of an update if the API server accepted an update of the same
	// fields, of the same resource and schema, before. It is for a session that applies its plans:
	// only the next plan shows a refusal.
	SkipDryRuns bool
	// Writer is the session that writes; the zero Writer is a new one.
	Writer records.Writer
}

// New prepares a cluster. It makes no API call.
func New(o Options) (*Cluster, error) {
	dyn, err := dynamic.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", o.Name, err)
	}
	shared := cmp.Or(o.Shared, NewShared())
	discovery, err := apis.NewDiscoverer(o.Config, shared.schemas)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", o.Name, err)
	}
	secrets, err := records.NewSecrets(o.Config)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", o.Name, err)
	}
	meta, err := metadata.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", o.Name, err)
	}
	if o.Writer.Identity == "" {
		o.Writer.Identity = rand.Text()
	}
	if o.Reader == nil {
		o.Reader = observe.Direct(dyn)
	}
	if o.Progress == nil {
		o.Progress = func(Step) {}
	}
	c := &Cluster{
		name: o.Name, dynamic: dyn, metadata: meta, progress: o.Progress,
		accounts: newAccounts(o.Config, dyn), discovery: discovery, live: observe.NewObjects(o.Reader, dyn),
		nodes: &nodeReader{client: dyn}, uses: newUseReader(dyn), dryRuns: newDryRuns(o.SkipDryRuns), customResources: newCustomResourceReader(dyn),
		secrets: newSecretRegister(o.Redactor, o.Name), diagnoser: health.NewDiagnoser(dyn),
	}
	c.namespaces = newNamespaces(o.Name, c.accounts.own)
	c.clusterName = &clusterName{name: o.Name, secrets: secrets, client: dyn, namespaces: c.namespaces}
	c.records = records.NewStore(records.Options{
		Cluster: o.Name, Secrets: secrets, Packer: &shared.packer, Writer: o.Writer,
		Check: func(ctx context.Context) error { _, err := c.clusterName.maskKey(ctx); return err },
	})
	c.settled = newSettledComponents(o.Reader, c.records)
	c.judge = objectJudge{discovery: c.discovery, nodes: c.nodes}
	c.planner = &planner{
		name: c.clusterName, records: c.records, accounts: c.accounts, discovery: c.discovery, live: c.live, nodes: c.nodes, uses: c.uses,
		dryRuns: c.dryRuns, customResources: c.customResources, settled: c.settled, secrets: c.secrets,
	}
	return c, nil
}

// Close removes the cluster's data from the redactor. Nothing about the cluster may be printed
// afterwards.
func (c *Cluster) Close() { c.secrets.close() }

// Prepare makes the cluster ready for records: the namespace, the key, and the name of the cluster.
// An apply does so, too, but then an earlier plan must be made again. The error is an
// [*OtherClusterError] when the API server is of another cluster.
func (c *Cluster) Prepare(ctx context.Context) error {
	if err := c.clusterName.prepare(ctx); err != nil {
		return fmt.Errorf("cluster %s: %w", c.name, err)
	}
	return nil
}

// Plan computes what applying would change. It writes nothing. The error wraps [ErrStale] when the
// record has another version than w.From.
func (c *Cluster) Plan(ctx context.Context, w Desired) (*Prepared, error) {
	p, err := (*Prepared)(nil), c.secrets.addTarget(w)
	if err == nil {
		p, err = c.planner.plan(ctx, w)
	}
	if err != nil {
		return nil, fmt.Errorf("cluster %s: component %s: %w", c.name, w.Component, err)
	}
	return p, nil
}

// Predict makes dry runs of the objects that a plan creates. [Cluster.Plan] has already made those
// of updates.
func (c *Cluster) Predict(ctx context.Context, p *Prepared) error {
	if err := c.planner.predict(ctx, p, differ.OpCreate); err != nil {
		return fmt.Errorf("cluster %s: component %s: %w", c.name, p.want.Component, err)
	}
	p.Plan.NoteApprovals(p.want.Approvals)
	return nil
}

// Mapping finds the resource of a kind that the cluster serves. See
// [IsNotServed].
func (c *Cluster) Mapping(ctx context.Context, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	s, err := c.discovery.Surface(ctx)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", c.name, err)
	}
	return s.Mapping(gvk)
}

// Capabilities returns what a chart may read about the cluster.
func (c *Cluster) Capabilities(ctx context.Context) (renderer.Capabilities, error) {
	s, err := c.discovery.Surface(ctx)
	if err != nil {
		return renderer.Capabilities{}, fmt.Errorf("cluster %s: %w", c.name, err)
	}
	return s.Capabilities(), nil
}

// Forget drops what is known about the cluster's API, because another API server may answer.
func (c *Cluster) Forget() {
	c.discovery.Forget()
	c.dryRuns.reset()
}

// Restart drops what was read of the cluster, records too, after the cluster was away for a while.
// Its store may have been restored to an older state, in which known resourceVersions mean
// something else.
func (c *Cluster) Restart() {
	c.Forget()
	c.records.Drop()
	c.nodes.forget()
	c.uses.reset()
	c.namespaces.reset()
	c.live.Reset()
	c.customResources.reset()
	c.settled.reset()
	c.clusterName.reset()
}

// Rediscover makes the next calls ask what the cluster serves, and read the schemas of the given
// groups: one of their CRDs or APIServices has changed.
func (c *Cluster) Rediscover(groups ...string) {
	c.discovery.Rediscover(groups...)
	c.dryRuns.reset()
}

// Diagnose explains why the objects of a plan are not healthy: which object, which condition, which
// pod, and their last events. Empty: all are healthy. It reads pods and events, so call it at the
// end of a wait. The text names what can't be read.
func (c *Cluster) Diagnose(ctx context.Context, p *Prepared) string {
	return c.diagnoser.Diagnose(ctx, p.unhealthy()...)
}

// PodTrouble returns which pod of an unhealthy object does not start, and why: for example a
// missing image, which the object's own status shows only after its deadline. Empty: no such pod is
// known. It only lists pods, so it may be called during a wait. It ignores read errors, which
// Diagnose reports.
func (c *Cluster) PodTrouble(ctx context.Context, p *Prepared) string {
	return c.diagnoser.PodTrouble(ctx, p.unhealthy())
}

// Examine explains why one object is not healthy, as Diagnose does, given its last health and
// content.
func (c *Cluster) Examine(ctx context.Context, h health.Result, live map[string]any) string {
	return c.diagnoser.Diagnose(ctx, health.Unhealthy{Result: h, Live: live})
}

// Record returns what the cluster stores about a component. Objects and History are empty when
// nothing was ever applied.
func (c *Cluster) Record(ctx context.Context, component string) (records.Record, error) {
	r, err := c.records.Read(ctx, component)
	if err != nil {
		return records.Record{}, err
	}
	return r.Record, nil
}

// Pin returns the pin in a component's record; nil: not pinned.
func (c *Cluster) Pin(ctx context.Context, component string) (*records.Pin, error) {
	return c.records.Pin(ctx, component)
}

// RecordVersion returns the known resourceVersion of a component's record; empty: no record. For a
// settled component it makes no request. Called before [Cluster.Pin] and [Cluster.Delivered], it
// returns the version of their answers, or an earlier one.
func (c *Cluster) RecordVersion(ctx context.Context, component string) (string, error) {
	return c.records.Version(ctx, component)
}

// Recorded returns the components that have a record in the cluster, in order,
// and remembers their records.
func (c *Cluster) Recorded(ctx context.Context) ([]string, error) {
	return c.records.List(ctx)
}

// RecordSeen receives the resourceVersion of a component's record from a watch. When the remembered
// record is older, or none is known, RecordSeen forgets it and returns true: another writer wrote
// it, so plan again.
func (c *Cluster) RecordSeen(component, version string) bool {
	return c.records.Seen(component, version)
}

// Delivered returns the last delivery of a component that was applied in whole, from its record.
// For a settled component it makes no request.
func (c *Cluster) Delivered(ctx context.Context, component string) (records.Delivered, error) {
	return c.records.Delivered(ctx, component)
}

// Unfinished reports whether an apply changed objects of a component after its last delivery, and
// was not complete: the cluster has neither target.
func (c *Cluster) Unfinished(ctx context.Context, component string) (bool, error) {
	return c.records.Unfinished(ctx, component)
}

// DeliveredAs returns the last delivery of a component that had a target; false: its history has
// none.
func (c *Cluster) DeliveredAs(ctx context.Context, component, targetHash string) (records.Delivered, bool, error) {
	last, err := c.Delivered(ctx, component)
	if err != nil || last.TargetHash == targetHash {
		return last, err == nil, err
	}
	r, err := c.Record(ctx, component)
	if err != nil {
		return records.Delivered{}, false, err
	}
	then, found := r.DeliveredAs(targetHash)
	return then, found, nil
}

// Tidy removes objects that other components have taken over from the record of a component that is
// no longer in git. It returns the number of remaining objects, and deletes a record without any;
// see [records.Store.Tidy]. An object has moved to a component in git, as inGit says, if it bears the
// label of that component, or does not exist any more. The error wraps [ErrStale] when another
// writer wrote the record.
func (c *Cluster) Tidy(ctx context.Context, component string, inGit func(component string) bool) (int, error) {
	left, err := c.records.Tidy(ctx, component, func(ctx context.Context, o *records.Object, to string) (bool, error) {
		if !inGit(to) {
			return false, nil // to this caller: its commit may be an old one
		}
		m, err := c.Mapping(ctx, schema.FromAPIVersionAndKind(o.APIVersion, o.Kind))
		if apis.IsNotServed(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		live, err := observe.Get(ctx, c.dynamic, m, o.ID)
		if err != nil {
			return false, err
		}
		label := (&unstructured.Unstructured{Object: live}).GetLabels()[v1alpha1.LabelComponent]
		return live == nil || uidOf(live) != o.UID || label == to, nil
	})
	return left, stale(err)
}
