package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/lab/audit"
)

// verdict is the result of judging take-overs by an audit log.
type verdict struct {
	takeOvers  int // counted per component
	refused    int // writes of deposed processes that the API server refused
	violations []string
}

// takeOvers judges the writes to each component. A component belongs to the process
// that wrote its record last. No write of another process to the component may succeed.
// The order of writes is the order of their resourceVersions, which etcd assigns.
func takeOvers(events []audit.Event, components []*fixtureComponent) verdict {
	var v verdict
	for _, p := range components {
		terms := termsOf(events, p.name)
		v.takeOvers += max(0, len(terms)-1)
		for _, e := range events {
			if e.Write() && !e.DryRun && (isRecord(e, p.name) || e.Resource.Namespace == p.name) {
				v.write(e, p.name, terms)
			}
		}
	}
	return v
}

// term is the period in which one process was the writer of a component.
type term struct {
	agent string
	from  uint64 // resourceVersion of its first record
	began time.Time
}

// unlisted adds a violation for each write of an object, record or status to a cluster
// that the writer's Lease did not list. Another process may have had that cluster. It
// returns the number of judged writes.
func (v *verdict) unlisted(events []audit.Event, components []*fixtureComponent) (judged int) {
	leases := leasesOf(events)
	for _, p := range components {
		for _, e := range events {
			status := e.Resource.Resource == "deliveries" && e.Resource.Name == p.on+"."+p.name
			if !e.Accepted() || !status && !isRecord(e, p.name) && e.Resource.Namespace != p.name {
				continue
			}
			judged++
			if why := leases[agentOf(e)].allows(p.on, e); why != "" {
				v.violations = append(v.violations, fmt.Sprintf("%s: %s wrote to cluster %s, and %s: %s, audit %s", p.name, agentOf(e), p.on, why, e, e.ID))
			}
		}
	}
	return judged
}

// leaseLog holds the states of a process's Lease, in the order of resourceVersions.
type leaseLog struct {
	states []leaseState
	gone   time.Time // when the Lease was deleted; zero: never
}

type leaseState struct {
	version  uint64
	clusters []string
}

// leasesOf returns the Lease logs of all processes, by user agent. A process may delete
// another process's Lease.
func leasesOf(events []audit.Event) map[string]*leaseLog {
	out, by := map[string]*leaseLog{}, map[string]*leaseLog{}
	for _, e := range events {
		if e.Resource.Resource != "leases" || !e.Accepted() || e.Verb == "delete" {
			continue
		}
		var lease metav1.PartialObjectMetadata
		if json.Unmarshal(e.Response, &lease) != nil {
			continue // unlisted then reports the process's writes
		}
		l := out[agentOf(e)]
		if l == nil {
			l = &leaseLog{}
			out[agentOf(e)], by[lease.Name] = l, l
		}
		l.states = append(l.states, leaseState{e.ResourceVersion(), clustersOf(lease.Annotations["keelson.io/clusters"])})
	}
	for _, l := range out {
		slices.SortFunc(l.states, func(a, b leaseState) int { return cmp.Compare(a.version, b.version) })
	}
	for _, e := range events {
		if e.Resource.Resource == "leases" && e.Accepted() && e.Verb == "delete" && by[e.Resource.Name] != nil {
			by[e.Resource.Name].gone = e.Time
		}
	}
	return out
}

// allows returns the reason why a write to a cluster was wrong, or "" for a right write.
// The answer to a deletion has no resourceVersion. So deletions of Leases and of objects
// are judged by the API server's clock.
func (l *leaseLog) allows(cluster string, e audit.Event) string {
	if l == nil {
		return "never had a Lease"
	}
	if !l.gone.IsZero() && e.Received.After(l.gone) {
		return fmt.Sprintf("its Lease was gone since %s", l.gone.Format("15:04:05.000"))
	}
	version := e.ResourceVersion()
	if e.Verb == "delete" || version == 0 {
		return ""
	}
	i, _ := slices.BinarySearchFunc(l.states, version, func(s leaseState, v uint64) int { return cmp.Compare(s.version, v) })
	if i == 0 || !slices.Contains(l.states[i-1].clusters, cluster) {
		return "its Lease did not list it"
	}
	return ""
}

func termsOf(events []audit.Event, component string) []term {
	var records []term
	for _, e := range events {
		if e.Accepted() && isRecord(e, component) {
			records = append(records, term{agent: agentOf(e), from: e.ResourceVersion(), began: e.Time})
		}
	}
	slices.SortStableFunc(records, func(a, b term) int { return cmp.Compare(a.from, b.from) })
	return slices.CompactFunc(records, func(a, b term) bool { return a.agent == b.agent })
}

// write judges a write to a component, by a process that had the component before another.
func (v *verdict) write(e audit.Event, component string, terms []term) {
	version := e.ResourceVersion()
	was := slices.IndexFunc(terms, func(t term) bool { return t.agent == agentOf(e) })
	if was < 0 || was == len(terms)-1 {
		return // no process took over from this one
	}
	switch {
	case e.Accepted() && version == 0 && e.Verb != "delete":
		v.violations = append(v.violations, fmt.Sprintf("%s: the audit log does not show the version of %s, audit %s", component, e, e.ID))
	case e.Accepted() && version > 0:
		after := slices.IndexFunc(terms, func(t term) bool { return t.from > version })
		if after < 0 {
			after = len(terms)
		}
		if now := terms[max(after-1, 0)]; now.agent != agentOf(e) && now.from < version {
			v.violations = append(v.violations, fmt.Sprintf("%s: a write of %s was accepted at %d after %s had taken over at %d: %s, audit %s",
				component, agentOf(e), version, now.agent, now.from, e, e.ID))
		}
	case (e.Code == 409 || e.Code == 404) && !e.Time.Before(terms[was+1].began):
		v.refused++
	}
}

func agentOf(e audit.Event) string {
	return e.UserAgent[strings.LastIndexByte(e.UserAgent, ' ')+1:]
}

func isRecord(e audit.Event, component string) bool {
	return e.Resource.Resource == "secrets" && e.Resource.Namespace == "keelson-system" &&
		(e.Resource.Name == "record-"+component || e.Resource.Name == "" && strings.Contains(string(e.Request), `"record-`+component+`"`))
}
