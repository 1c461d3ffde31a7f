// Package applier applies plans to API servers. It reads what a cluster has, lets differ compute
// the changes, applies them in order, and records them in the cluster.
//
// Every write of an existing object carries the resourceVersion from which its plan was made. So a
// concurrent writer causes a new plan and never a lost update. A failed read is an error and never
// an absence: nothing is created, changed or deleted because of it. A settled component costs no
// API call beyond the calls of the [Reader].
package applier

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Reader finds live objects, from a cache or from the API server.
// Implementations are safe for concurrent use.
type Reader interface {
	// Get returns the object at the mapping's version, or nil when it is not known to exist. The
	// API server then decides whether it exists. Get may leave out managedFields.
	Get(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error)
	// Fresh returns the object with managedFields, not older than what Get
	// returned last.
	Fresh(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error)
	// Scaled returns what autoscalers own, by object. served lists the kinds of autoscalers
	// ([Autoscalers]) that the cluster serves.
	Scaled(ctx context.Context, served []schema.GroupVersionResource) (map[differ.ID]differ.Scaling, error)
	// Wrote receives the object that the API server returned for a write; nil: deleted.
	Wrote(id differ.ID, object map[string]any)
}

// Cluster is one target cluster. It is safe for concurrent use by different
// components.
type Cluster struct {
	name      string
	config    *rest.Config
	dynamic   dynamic.Interface // with Keelson's own rights
	discovery *discoverer
	reader    Reader
	keeper    Keeper // the reader, if it implements Keeper; else nil
	diagnoser health.Diagnoser
	progress  func(Step)
	limits    instanceLimits
	redactor  *redact.Redactor
	// skipsDryRuns: a familiar change needs no dry run.
	skipsDryRuns bool
	hiding       string // prefix of this cluster's names in the redactor
	secrets      records.Secrets
	records      *records.Store
	metadata     metadata.Interface
	nodes        nodeReader

	mu sync.Mutex
	// healthy holds, by component, the delivery that was last found settled and healthy.
	healthy map[string]unique.Handle[records.Delivered]
	// namespaces that existed when they were read.
	namespaces map[string]bool
	mayCreate  *bool // whether Keelson may create namespaces; nil: not asked yet
	// distrusted are objects that exist although the cache lacked them.
	distrusted map[differ.ID]bool
	maskKey    []byte
	// named: the Secret mask-key has this cluster's name. It got the name when kube-system had the
	// UID namedUID. sure: the name was confirmed for this API server.
	named, sure bool
	namedUID    string
	// accounts that write objects, by NAMESPACE/NAME.
	accounts map[string]*account
	answers  map[differ.ID]answered
	// familiar are the kinds of changes of which the API server accepted one in a dry run.
	familiar map[fingerprint.Sum]bool
	// judgedCustomResources holds the findings about the custom resources of CRDs.
	judgedCustomResources map[differ.ID]judgedCRD
	// settled holds the inputs of the objects that were found settled, by component.
	settled map[string]map[differ.ID]differ.Inputs
}

// Options configure the access to a cluster.
type Options struct {
	// Name of the cluster, for errors.
	Name   string
	Config *rest.Config
	// Schemas are shared by all clusters of the process.
	Schemas *SchemaCache
	// Reader of live objects; nil reads from the API server each time.
	Reader Reader
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
	disco, err := discovery.NewDiscoveryClientForConfig(o.Config)
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
	c := &Cluster{
		redactor: o.Redactor, hiding: o.Name + "/" + rand.Text() + "/", secrets: secrets, metadata: meta,
		name: o.Name, config: o.Config, accounts: map[string]*account{}, dynamic: dyn, reader: o.Reader, progress: o.Progress,
		discovery: newDiscoverer(disco, o.Schemas), diagnoser: health.NewDiagnoser(dyn),
		namespaces: map[string]bool{}, distrusted: map[differ.ID]bool{},
		answers: map[differ.ID]answered{}, familiar: map[fingerprint.Sum]bool{}, skipsDryRuns: o.SkipDryRuns,
		settled: map[string]map[differ.ID]differ.Inputs{}, healthy: map[string]unique.Handle[records.Delivered]{},
		limits: defaultInstanceLimits(), judgedCustomResources: map[differ.ID]judgedCRD{},
	}
	c.records = records.NewStore(records.Options{
		Cluster: o.Name, Secrets: secrets, Packer: &c.discovery.schemas.packer, Writer: o.Writer,
		Check: func(ctx context.Context) error { _, err := c.key(ctx); return err },
	})
	if c.reader == nil {
		c.reader = &directReader{dynamic: dyn}
	}
	c.keeper, _ = c.reader.(Keeper)
	if c.progress == nil {
		c.progress = func(Step) {}
	}
	return c, nil
}

// Close removes the cluster's data from the redactor. Nothing about the cluster may be printed
// afterwards.
func (c *Cluster) Close() { c.redactor.Forget(c.hiding) }

func resourceOf(d dynamic.Interface, m *meta.RESTMapping, id differ.ID) dynamic.ResourceInterface {
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return d.Resource(m.Resource).Namespace(id.Namespace)
	}
	return d.Resource(m.Resource)
}
