package cluster

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
)

// Options of a cluster. What a cluster was made with is kept when it is
// started again.
type Options struct {
	Nodes            int               `json:"nodes"`
	Node             string            `json:"node,omitempty"` // what nodes are: played by kwok, or RealNodes
	ControlPlaneOnly bool              `json:"controlPlaneOnly,omitempty"`
	NodeLabels       map[string]string `json:"nodeLabels,omitempty"` // on each node
	ServiceCIDR      string            `json:"serviceCIDR"`
	// Audit is what the audit log has of Keelson's writes.
	Audit Audit `json:"audit,omitempty"`
}

// RealNodes is the value of Options.Node that isn't kwok's.
const RealNodes = "real"

// Audit says how much of a write the audit log has.
type Audit string

// The values of [Audit].
const (
	// AuditBodies has what was sent and answered, but never of a Secret.
	AuditBodies Audit = ""
	// AuditSecrets has that of Secrets, too: for a cluster that holds none but
	// made-up ones.
	AuditSecrets Audit = "secrets"
	// AuditMetadata has who wrote what, when, and nothing of what: a log of bodies
	// costs an API server a good part of what the writes do.
	AuditMetadata Audit = "metadata"
)

// The default options. The range of Services is kubeadm's: charts that pin the
// address of DNS do so in it. Nothing routes it, so clusters may share it.
const (
	DefaultNodes       = 3
	DefaultServiceCIDR = "10.96.0.0/16"
)

// maxNodes is how many pod ranges of a /24 there are: [podRange].
const maxNodes = 1024

// ErrOptions is the error of what can't be asked for.
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

// Change alters the options of a cluster; what is nil stays.
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
	if c.ControlPlaneOnly != nil {
		to.ControlPlaneOnly = *c.ControlPlaneOnly
	}
	if c.ServiceCIDR != nil {
		to.ServiceCIDR = *c.ServiceCIDR
	}
	if c.Node != nil {
		to.Node = *c.Node
	}
	if c.Audit != nil {
		to.Audit = *c.Audit
	}
	if c.NodeLabels != nil {
		to.NodeLabels = maps.Clone(c.NodeLabels)
	}
	if c.Nodes != nil {
		to.Nodes = *c.Nodes
	}
	if to.ControlPlaneOnly {
		if c.Nodes != nil && *c.Nodes != 0 {
			return to, fmt.Errorf("%w: a control plane only has no nodes", ErrOptions)
		}
		to.Nodes = 0
	}
	return to, to.check()
}
