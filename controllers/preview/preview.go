// Package preview computes what a change of the fleet repository would change on its clusters. It
// asks no cluster. It assumes that each cluster has what the base revision renders to, applied by
// Keelson and not changed since.
package preview

import (
	"cmp"
	"slices"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Preview is the difference between two revisions, in groups. There is one group for each component
// and difference, for any number of clusters. Lists are in name order, except Groups.
type Preview struct {
	// Base and Head are full commit hashes.
	Base string `json:"base"`
	Head string `json:"head"`
	// Clusters on which something changes, and Deliveries that change.
	Clusters   int `json:"clusters"`
	Deliveries int `json:"deliveries"`
	// Policy lists the changes of rules about changes.
	Policy []PolicyChange `json:"policy"`
	// Problems block deliveries at Head: they change nothing. A Refused problem blocks an object:
	// its delivery fails there.
	Problems []Problem `json:"problems"`
	// Groups, the most urgent first, then the largest first.
	Groups []Group `json:"groups"`
	// Estimate is when each cluster would get the changes; nil: nothing delays a change.
	Estimate *Estimate `json:"estimate,omitempty"`
	// Left are components that leave git on some clusters: their objects stay there.
	Left []Left `json:"left"`
	// Joined are clusters that Base did not have. Gone are clusters that Head no longer has;
	// nothing changes on them.
	Joined []string `json:"joined"`
	Gone   []string `json:"gone"`
}

// Problem is one mistake, with the clusters on which it blocks something.
//
//nolint:errname // it is data first
type Problem struct {
	yamlfile.Problem
	Clusters []string `json:"clusters"`
	// Before means that Base has the problem, too.
	Before bool `json:"before,omitempty"`
	// Refused means that Head can be rendered, but an API server refuses the result.
	Refused bool `json:"refused,omitempty"`
}

// Left is a component that git no longer mentions on some clusters.
type Left struct {
	Component string   `json:"component"`
	Clusters  []string `json:"clusters"`
}

// Group is one difference of one component.
type Group struct {
	Component string `json:"component"`
	// From and To are versions as git writes them; empty: the component is missing, or is absent.
	From     string   `json:"from,omitempty"`
	To       string   `json:"to,omitempty"`
	Clusters []string `json:"clusters"`
	// Paused means that nothing of the group is applied for now.
	Paused bool `json:"paused,omitempty"`
	// Unknown is why Plan is empty: the difference can't be determined.
	Unknown string `json:"unknown,omitempty"`
	// Restarts on all of the clusters together.
	Restarts Restarts `json:"restarts"`
	// Hooks that run on each of the clusters.
	Hooks []string `json:"hooks,omitempty"`
	// Plan on the first of the clusters; its text is the same on all of them.
	Plan differ.Plan `json:"plan"`
}

// Restarts are the pods that a change replaces.
type Restarts struct {
	// Pods of Deployments and StatefulSets, by the replicas in git: an autoscaler may have set
	// more.
	Pods int `json:"pods,omitempty"`
	// DaemonSets that restart one pod on each of their nodes.
	DaemonSets int `json:"daemonSets,omitempty"`
}

// Changes reports whether an object on a cluster, or a policy, would change.
func (p *Preview) Changes() bool { return len(p.Groups)+len(p.Policy) > 0 }

// Broken reports whether Head has a problem that Base does not have.
func (p *Preview) Broken() bool {
	return slices.ContainsFunc(p.Problems, func(p Problem) bool { return !p.Before })
}

// Restarts sums the restarts on all clusters. Paused groups don't count.
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
		n += p.Groups[i].Count(state)
	}
	return n
}

// Count returns how many objects of the group are in a state, on all its clusters together.
func (g *Group) Count(state differ.ObjectState) int {
	n := 0
	for i := range g.Plan.Changes {
		if g.Plan.Changes[i].State == state {
			n += len(g.Clusters)
		}
	}
	return n
}

// Warnings returns how many warnings danger rules give, on all clusters together.
func (p *Preview) Warnings() int {
	n := 0
	for i := range p.Groups {
		n += p.Groups[i].Plan.Warnings() * len(p.Groups[i].Clusters)
	}
	return n
}

// sort puts the groups first that need a person.
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

// urgency is 3 for denied changes, 2 for held or unknown changes, 1 for warnings, else 0.
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
