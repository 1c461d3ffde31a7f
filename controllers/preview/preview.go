// Package preview says what a change of the fleet repository would change on its
// clusters. It asks none of them: each is taken for what the base revision makes of
// it, applied by Keelson and touched by nobody else.
package preview

import (
	"cmp"
	"slices"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
)

// Preview is what changes between two revisions, in groups: one a component and
// difference, however many clusters it is the same on. Lists are in name order,
// but for Groups.
type Preview struct {
	// Base and Head are full commit hashes.
	Base string `json:"base"`
	Head string `json:"head"`
	// Clusters that something changes on, and Deliveries that do.
	Clusters   int `json:"clusters"`
	Deliveries int `json:"deliveries"`
	// Policy is what decides about changes, and becomes another.
	Policy []PolicyChange `json:"policy"`
	// Problems block deliveries at Head: nothing of these changes. Those that are Refused
	// block an object: its delivery fails there.
	Problems []Problem `json:"problems"`
	// Groups, those that wait for a person first, and of the others the largest.
	Groups []Group `json:"groups"`
	// Estimate is when the changes would be where; nil: nothing stands between a
	// change and a cluster.
	Estimate *Estimate `json:"estimate,omitempty"`
	// Left are components that leave git on clusters: their objects stay there.
	Left []Left `json:"left"`
	// Joined are clusters that Base did not have; Gone those that Head has no
	// more, which stay as they are.
	Joined []string `json:"joined"`
	Gone   []string `json:"gone"`
}

// Problem is one mistake, with the clusters that it blocks something on.
//
//nolint:errname // it is data first
type Problem struct {
	registry.Problem
	Clusters []string `json:"clusters"`
	// Before says that Base has it, too.
	Before bool `json:"before,omitempty"`
	// Refused says that Head can be rendered, and an API server refuses what comes of it.
	Refused bool `json:"refused,omitempty"`
}

// Left is a component that git no longer wants anything of.
type Left struct {
	Component string   `json:"component"`
	Clusters  []string `json:"clusters"`
}

// Group is one difference of one component.
type Group struct {
	Component string `json:"component"`
	// From and To are versions as git writes them; empty: the component is not
	// there, or is absent.
	From     string   `json:"from,omitempty"`
	To       string   `json:"to,omitempty"`
	Clusters []string `json:"clusters"`
	// Paused: nothing of it is applied for now.
	Paused bool `json:"paused,omitempty"`
	// Unknown is why Plan is empty: what the clusters have at Base can't be told.
	Unknown string `json:"unknown,omitempty"`
	// Restarts on all of the clusters together.
	Restarts Restarts `json:"restarts"`
	// Hooks that run on each of the clusters.
	Hooks []string `json:"hooks,omitempty"`
	// Plan on the first of the clusters; it reads the same on the others.
	Plan differ.Plan `json:"plan"`
}

// Restarts are the pods that a change replaces.
type Restarts struct {
	// Pods of Deployments and StatefulSets, by the replicas that git wants: an
	// autoscaler may have made it more.
	Pods int `json:"pods,omitempty"`
	// DaemonSets that restart one pod on each of their nodes.
	DaemonSets int `json:"daemonSets,omitempty"`
}

// Changes reports whether anything would change on any cluster, or what decides about
// that.
func (p *Preview) Changes() bool { return len(p.Groups)+len(p.Policy) > 0 }

// Broken reports whether Head blocks a delivery that Base does not.
func (p *Preview) Broken() bool {
	return slices.ContainsFunc(p.Problems, func(p Problem) bool { return !p.Before })
}

// Restarts of all clusters together.
func (p *Preview) Restarts() Restarts {
	var all Restarts
	for i := range p.Groups {
		g := &p.Groups[i]
		if g.Paused {
			continue
		}
		all.Pods += g.Restarts.Pods
		all.DaemonSets += g.Restarts.DaemonSets
	}
	return all
}

// Count returns how many objects have the given operation, on all clusters together.
func (p *Preview) Count(op differ.Op) int {
	n := 0
	for i := range p.Groups {
		n += p.Groups[i].Plan.Count(op) * len(p.Groups[i].Clusters)
	}
	return n
}

// CountState returns how many objects are in a state, on all clusters together.
func (p *Preview) CountState(state differ.ObjectState) int {
	n := 0
	for i := range p.Groups {
		for j := range p.Groups[i].Plan.Changes {
			if p.Groups[i].Plan.Changes[j].State == state {
				n += len(p.Groups[i].Clusters)
			}
		}
	}
	return n
}

// Warnings counts those of danger rules, on all clusters together.
func (p *Preview) Warnings() int {
	n := 0
	for i := range p.Groups {
		n += p.Groups[i].Plan.Warnings() * len(p.Groups[i].Clusters)
	}
	return n
}

// sort puts on top what a person has to look at.
func (p *Preview) sort() {
	slices.SortFunc(p.Groups, func(a, b Group) int {
		return cmp.Or(
			cmp.Compare(b.urgency(), a.urgency()),
			cmp.Compare(len(b.Clusters), len(a.Clusters)),
			cmp.Compare(a.Component, b.Component),
			slices.Compare(a.Clusters, b.Clusters),
			cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To),
		)
	})
	slices.SortFunc(p.Left, func(a, b Left) int { return cmp.Compare(a.Component, b.Component) })
	slices.SortFunc(p.Problems, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.At.String(), b.At.String()), cmp.Compare(a.Message, b.Message), cmp.Compare(a.Hint, b.Hint),
		)
	})
}

// urgency is 3 for what is denied, 2 for what is held or not known, 1 for what is warned of.
func (g *Group) urgency() int {
	worst := min(g.Plan.Warnings(), 1)
	for i := range g.Plan.Changes {
		switch g.Plan.Changes[i].State {
		case differ.StateDenied:
			return 3
		case differ.StateHeld:
			worst = 2
		case differ.StateSynced, differ.StateChanged:
		}
	}
	if g.Unknown != "" {
		worst = 2
	}
	return worst
}
