package cluster

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
)

// Options are the options of a cluster. A cluster that is started again keeps its
// options.
type Options struct {
	Nodes            int               `json:"nodes"`
	Node             string            `json:"node,omitempty"` // empty: simulated by kwok; or RealNodes
	ControlPlaneOnly bool              `json:"controlPlaneOnly,omitempty"`
	NodeLabels       map[string]string `json:"nodeLabels,omitempty"` // on each node
	ServiceCIDR      string            `json:"serviceCIDR"`
	// Audit is the level of the audit log for Keelson's writes.
	Audit Audit `json:"audit,omitempty"`
}

// RealNodes is the value of Options.Node for nodes that run a kubelet.
const RealNodes = "real"

// Audit is how much of a write the audit log contains.
type Audit string

// The values of [Audit].
const (
	// AuditBodies logs request and response bodies, but not the bodies of Secrets.
	AuditBodies Audit = ""
	// AuditSecrets also logs the bodies of writes to Secrets. It is for clusters whose
	// Secrets are all made up.
	AuditSecrets Audit = "secrets"
	// AuditMetadata logs the user, the object and the time of a write, without bodies.
	// Logging bodies costs an API server a considerable part of the cost of the writes.
	AuditMetadata Audit = "metadata"
)

// The default options. The range of Services is the same as with kubeadm, because
// charts that pin the address of DNS pin it in this range. Nothing routes the range, so
// clusters may share it.
const (
	DefaultNodes       = 3
	DefaultServiceCIDR = "10.96.0.0/16"
)

// maxNodes is the number of /24 ranges that [podRange] can return.
const maxNodes = 1024

// ErrOptions is returned for an invalid option or name.
var ErrOptions = errors.New("invalid option")

func (o Options) check() error {
	if o.Node != "" && !o.real() {
		return fmt.Errorf("%w: nodes that are %q; there are those of kwok, and %q", ErrOptions, o.Node, RealNodes)
	}
	if o.real() && (o.ControlPlaneOnly || o.Nodes > maxRealNodes || o.Nodes < 1) {
		return fmt.Errorf("%w: %d real nodes; a cluster has 1 to %d, and is no control plane only", ErrOptions, o.Nodes, maxRealNodes)
	}
	if o.Nodes < 0 || o.Nodes > maxNodes {
		return fmt.Errorf("%w: %d nodes; a cluster has 0 to %d", ErrOptions, o.Nodes, maxNodes)
	}
	if _, known := auditRules()[o.Audit]; !known {
		return fmt.Errorf("%w: the audit log has no level %q", ErrOptions, o.Audit)
	}
	if _, err := netip.ParsePrefix(o.ServiceCIDR); err != nil {
		return fmt.Errorf("%w: range of Services: %w", ErrOptions, err)
	}
	return nil
}

// Change alters the options of a cluster. Options whose field is nil stay.
type Change struct {
	Nodes            *int
	Node             *string
	ControlPlaneOnly *bool
	NodeLabels       map[string]string
	ServiceCIDR      *string
	Audit            *Audit
}

// apply returns the options that a new cluster, or an existing one, should have.
func (c Change) apply(to Options, exists bool) (Options, error) {
	if exists && c.ControlPlaneOnly != nil && *c.ControlPlaneOnly != to.ControlPlaneOnly {
		return to, fmt.Errorf("%w: whether a cluster is a control plane only is settled when it is made; run lab down first", ErrOptions)
	}
	if exists && c.Node != nil && *c.Node != to.Node || exists && to.real() && c.Nodes != nil && *c.Nodes != to.Nodes {
		return to, fmt.Errorf("%w: whether nodes are real, and how many of those there are, is settled when a cluster is made; run lab down first", ErrOptions)
	}
	if exists && c.ServiceCIDR != nil && *c.ServiceCIDR != to.ServiceCIDR {
		return to, fmt.Errorf("%w: the range of Services is settled when a cluster is made; run lab down first", ErrOptions)
	}
	set(&to.ControlPlaneOnly, c.ControlPlaneOnly)
	set(&to.ServiceCIDR, c.ServiceCIDR)
	set(&to.Node, c.Node)
	set(&to.Audit, c.Audit)
	set(&to.Nodes, c.Nodes)
	if c.NodeLabels != nil {
		to.NodeLabels = maps.Clone(c.NodeLabels)
	}
	if to.ControlPlaneOnly {
		if c.Nodes != nil && *c.Nodes != 0 {
			return to, fmt.Errorf("%w: a control plane only has no nodes", ErrOptions)
		}
		to.Nodes = 0
	}
	return to, to.check()
}

func set[T any](option, value *T) {
	if value != nil {
		*option = *value
	}
}
