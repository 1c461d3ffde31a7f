// Package applier takes plans to API servers: it reads what a cluster has,
// asks differ what to do, does it in order, and records it in the cluster.
//
// Every write of an existing object carries the resourceVersion that its plan
// was made from, so a concurrent writer causes a new plan and never a lost
// update. A failed read is an error and never an absence: nothing is created,
// changed or deleted because of it. A settled component costs no API call
// beyond what the [Reader] makes.
package applier

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer/redact"
)

// Reader finds live objects, from a cache or from the API server.
// Implementations are safe for concurrent use.
type Reader interface {
	// Get returns the object at the mapping's version, or nil when it is not known
	// to exist: whether it does is then for the API server to say. It may leave out
	// managedFields.
	Get(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error)
	// Fresh returns the object with managedFields, not older than what Get
	// returned last.
	Fresh(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error)
	// Scaled returns what autoscalers own of which objects. Of the kinds of
	// autoscalers ([Autoscalers]) the cluster serves the given ones.
	Scaled(ctx context.Context, served []schema.GroupVersionResource) (map[differ.ID]differ.Scaling, error)
	// Wrote tells of an object that a write was answered with; nil: deleted.
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
	keeper    Keeper // the reader, when it is one; else nil
	progress  func(Step)
	limits    instanceLimits
	redactor  *redact.Redactor
	// skipsDryRuns: of a familiar change none is asked for.
	skipsDryRuns bool
	hiding       string // begins the names of what is hidden for this cluster
	writer       Writer
	secrets      corev1client.SecretInterface // Keelson's own
	metadata     metadata.Interface
	announcer    *announcer

	mu sync.Mutex
	// records by component, as last read or written; nil: to be read again. One that
	// is missing does not exist, if all were listed, unless the component is quiet.
	records map[string]*record
	listed  bool
	// littered are components that may have parts of a record which no head names.
	littered map[string]bool
	// quiet are the components at rest, which have no record in memory.
	quiet map[string]*quiet
	// healthy is what each component was last seen at rest as.
	healthy map[string]unique.Handle[Delivered]
	// unfenced are components that were taken over in the middle of an apply, and not
	// all of whose objects were touched yet.
	unfenced map[string]bool
	// namespaces that were there when they were asked for.
	namespaces map[string]bool
	mayCreate  *bool // namespaces; nil: not asked yet
	// doubted are objects that exist although the cache had none.
	doubted map[differ.ID]bool
	maskKey []byte
	// named: the cluster says that it has this name. It said so when kube-system had the UID
	// namedUID; sure: it still has.
	named, sure bool
	namedUID    string
	// accounts are those that write objects, by NAMESPACE/NAME.
	accounts map[string]*account
	answers  map[differ.ID]answered
	// familiar are the kinds of changes of which the API server took one in a dry run.
	familiar map[sum]bool
	// lookedAt is what was found of the custom resources of CRDs.
	lookedAt map[differ.ID]looked
	// nodesRead are the nodes of the cluster; nil: they have to be read.
	nodesRead *differ.Nodes
	// settled are the inputs of the objects that were found settled, by component.
	settled map[string]map[differ.ID]differ.Inputs
}

// Options tell how to reach a cluster.
type Options struct {
	// Name of the cluster, for errors.
	Name   string
	Config *rest.Config
	// Schemas are shared by all clusters of the process.
	Schemas *SchemaCache
	// Reader of live objects; nil reads from the API server each time.
	Reader Reader
	// Progress hears of each finished step; may be nil.
	Progress func(Step)
	// Redactor is told of the data of Secrets, as wanted and as they are; nil:
	// nobody is.
	Redactor *redact.Redactor
	// SkipDryRuns leaves out the dry run of an update where the API server took one of the
	// same fields, of the same resource and schema, before. It is for a session that applies
	// what it plans: what would be refused shows in the next plan only.
	SkipDryRuns bool
	// Writer is the session that writes; the zero Writer is a new one.
	Writer Writer
}

// Writer is one session that writes to a cluster. Every component has one writer
// at a time: a session takes it over with its first write of the component's
// record, which begins a new epoch there.
type Writer struct {
	// Identity tells sessions apart; empty: by chance.
	Identity string
	// Confirm is asked before each takeover whether the session may; nil: it may.
	// Its error should be [ErrDeposed] where another session was chosen.
	Confirm func(context.Context) error
}

// ErrDeposed says that another session was chosen to write: this one must not.
var ErrDeposed = errors.New("another writer was chosen")

// New prepares a cluster; it makes no call.
func New(o Options) (*Cluster, error) {
	dyn, err := dynamic.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", o.Name, err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", o.Name, err)
	}
	secrets, err := secretsClient(o.Config)
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
		redactor: o.Redactor, hiding: o.Name + "/" + rand.Text() + "/", writer: o.Writer, secrets: secrets, metadata: meta,
		name: o.Name, config: o.Config, accounts: map[string]*account{}, dynamic: dyn, reader: o.Reader, progress: o.Progress,
		discovery: newDiscoverer(disco, o.Schemas),
		unfenced:  map[string]bool{}, namespaces: map[string]bool{}, doubted: map[differ.ID]bool{},
		records: map[string]*record{}, littered: map[string]bool{}, answers: map[differ.ID]answered{}, familiar: map[sum]bool{}, skipsDryRuns: o.SkipDryRuns,
		settled: map[string]map[differ.ID]differ.Inputs{}, quiet: map[string]*quiet{}, healthy: map[string]unique.Handle[Delivered]{},
		limits: defaultInstanceLimits(), lookedAt: map[differ.ID]looked{},
	}
	c.announcer = c.newAnnouncer()
	if c.reader == nil {
		c.reader = &directReader{dynamic: dyn}
	}
	c.keeper, _ = c.reader.(Keeper)
	if c.progress == nil {
		c.progress = func(Step) {}
	}
	return c, nil
}

// Close forgets what was hidden for the cluster: nothing of it is said any more.
func (c *Cluster) Close() { c.redactor.Forget(c.hiding) }

func resourceOf(d dynamic.Interface, m *meta.RESTMapping, id differ.ID) dynamic.ResourceInterface {
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return d.Resource(m.Resource).Namespace(id.Namespace)
	}
	return d.Resource(m.Resource)
}
