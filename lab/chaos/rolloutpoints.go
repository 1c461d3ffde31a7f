package main

import (
	"bytes"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/chaos/proxy"
)

// rolloutKillPoint is a transition of a rollout at which the controller is killed. A request
// makes the transition.
type rolloutKillPoint struct {
	name string
	// chances is the minimum number of times that the transition happens in the planned changes
	// of a seed. The test kills at a random one of them.
	chances int
	// is reports whether a change makes the transition.
	is func(change) bool
}

// change is a write in progress, with the state before it.
type change struct {
	proxy.Request
	on        string // the cluster
	component string
	was, next oracle.Rollout // set only for a status of the Rollout
	// delivered: the last write to this cluster was to an object of the component.
	delivered bool
}

// rolloutKillPoints returns all turning points: the transitions of the Rollout on the hub, and
// the steps of a cluster's loop from its release to its reported version.
func rolloutKillPoints() []rolloutKillPoint {
	rollout := func(name string, chances int, is func(was, next oracle.Rollout) bool) rolloutKillPoint {
		return rolloutKillPoint{name, chances, func(c change) bool { return c.status() && is(c.was, c.next) }}
	}
	more := func(in func(oracle.RolloutStage) int) func(was, next oracle.Rollout) bool {
		return func(was, next oracle.Rollout) bool { return tally(next, in) > tally(was, in) }
	}
	phase := func(name string) func(was, next oracle.Rollout) bool {
		return func(was, next oracle.Rollout) bool { return next.Phase == name && was.Phase != name }
	}
	cluster := func(is func(oracle.RolloutCluster) bool) func(was, next oracle.Rollout) bool {
		return func(was, next oracle.Rollout) bool {
			return slices.ContainsFunc(next.Clusters, func(c oracle.RolloutCluster) bool { return is(c) && !is(was.ClusterNamed(c.Name)) })
		}
	}
	return []rolloutKillPoint{
		{"the Rollout is made", 1, func(c change) bool { return c.hub("create", "rollouts") }},
		rollout("the first change begins", 1, func(was, _ oracle.Rollout) bool { return was.Change == "" }),
		rollout("a later change begins", 3, func(was, next oracle.Rollout) bool {
			return was.Revision != next.Revision && was.Phase == "Complete"
		}),
		rollout("it is extended by a cluster that tells late", 3, func(was, next oracle.Rollout) bool {
			return was.Change != "" && was.Revision == next.Revision && was.Change != next.Change
		}),
		rollout("it is superseded", 1, func(was, next oracle.Rollout) bool {
			return was.Change != "" && was.Revision != next.Revision && was.Phase == "Progressing" && !next.Back
		}),
		rollout("it is taken back", 1, func(was, next oracle.Rollout) bool { return next.Back && !was.Back }),
		rollout("a check before a stage is asked", 3, more(asked(false))),
		rollout("a check before a stage passes", 3, more(yes(false))),
		rollout("an approval passes", 1, more(approved)),
		rollout("a stage opens", 4, more(opened)),
		rollout("a cluster is released", 8, cluster(func(c oracle.RolloutCluster) bool { return c.Released != nil })),
		rollout("a cluster settles", 6, cluster(func(c oracle.RolloutCluster) bool { return c.Settled != nil })),
		rollout("the last of a stage settles, and the bake begins", 3, func(was, next oracle.Rollout) bool {
			return len(settled(next)) > len(settled(was))
		}),
		rollout("a check after a stage is asked", 2, more(asked(true))),
		rollout("a check after a stage passes", 2, more(yes(true))),
		rollout("a stage passes, and the bake ends", 4, more(passed)),
		rollout("it is complete", 2, phase("Complete")),
		rollout("a check fails, and it pauses", 1, phase("Paused")),
		rollout("a cluster fails, and its stage rolls back", 1, phase("RollingBack")),
		rollout("it is rolled back", 1, phase("RolledBack")),

		{"a cluster tells what git wants of it", 8, func(c change) bool { return c.patches(`"wanted"`) }},
		{"a released cluster records what it is about to do", 6, func(c change) bool { return c.record() && !c.delivered }},
		{"its first object is applied", 6, func(c change) bool { return c.object("configmaps") }},
		{"its workload is applied", 6, func(c change) bool { return c.object("deployments") }},
		{"it records what it has done", 6, func(c change) bool { return c.record() && c.delivered }},
		{"it tells that it has the version", 6, func(c change) bool { return c.patches(`"appliedVersion"`) }},
	}
}

// hub reports whether the change is a write of Keelson's own kinds on the hub.
func (c change) hub(verb, resource string) bool {
	return c.on == target && c.Verb == verb && c.Group == "keelson.io" && c.Resource == resource
}

// status reports whether the change is a status update of the component's Rollout.
func (c change) status() bool {
	return c.hub("update", "rollouts") && c.Subresource == "status" && c.Name == c.component
}

// patches reports whether the change is a patch of a Delivery of the component that contains
// a status field.
func (c change) patches(field string) bool {
	return c.hub("patch", "deliveries") && strings.HasSuffix(c.Name, "."+c.component) && bytes.Contains(c.Body, []byte(field))
}

// record reports whether the change is a write of the component's record.
func (c change) record() bool {
	return c.on != target && c.Resource == "secrets" && c.Namespace == systemNS &&
		(c.Verb == "update" && c.Name == "record-"+c.component || c.Verb == "create" && bytes.Contains(c.Body, []byte("record-"+c.component)))
}

// object reports whether the change is an apply of an object of the component.
func (c change) object(resource string) bool {
	return c.on != target && c.Verb == "patch" && !c.DryRun && c.FieldManager == "keelson" && c.Namespace == c.component && c.Resource == resource
}

// tally returns the sum of in over all stages.
func tally(r oracle.Rollout, in func(oracle.RolloutStage) int) (n int) {
	for _, s := range r.Stages {
		n += in(s)
	}
	return n
}

func opened(s oracle.RolloutStage) int { return one(s.Opened != nil) }

func passed(s oracle.RolloutStage) int { return one(s.Passed != nil) }

func checks(is func(oracle.RolloutCheck) bool) func(oracle.RolloutStage) int {
	return func(s oracle.RolloutStage) (n int) {
		for _, c := range s.Checks {
			n += one(is(c))
		}
		return n
	}
}

func asked(after bool) func(oracle.RolloutStage) int {
	return checks(func(c oracle.RolloutCheck) bool { return c.After == after })
}

func yes(after bool) func(oracle.RolloutStage) int {
	return checks(func(c oracle.RolloutCheck) bool { return c.After == after && c.Passed != nil })
}

func approved(s oracle.RolloutStage) int {
	return checks(func(c oracle.RolloutCheck) bool { return c.Name == approvalCheck && c.Passed != nil })(s)
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// settled returns the stages that have not passed, have released clusters, and all of
// whose released clusters have settled.
func settled(r oracle.Rollout) (out []string) {
	moving, there := map[string]bool{}, map[string]bool{}
	for _, c := range r.Clusters {
		if c.Released != nil && !c.Back {
			there[c.Stage] = true
			moving[c.Stage] = moving[c.Stage] || c.Settled == nil
		}
	}
	for name := range there {
		if s := r.StageNamed(name); !moving[name] && s.Passed == nil {
			out = append(out, name)
		}
	}
	return out
}

// readChange returns the change of a write. It calls was only for a status of the Rollout.
func readChange(on, component string, r proxy.Request, was func() oracle.Rollout) change {
	c := change{Request: r, on: on, component: component}
	if !c.status() {
		return c
	}
	next, err := oracle.ReadRollout(r.Body)
	if err != nil {
		return c // not a known transition
	}
	c.was, c.next = was(), next
	return c
}
