package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/keelson-io/keelson/lab/chaos/proxy"
)

// point is a moment of an apply at which the process is killed: a request, and whether
// the API server has received it. Between two requests nothing changes that is
// visible outside the process.
type point struct {
	name  string
	apply killedApply
	match func(c *component, r proxy.Request) bool
	nth   int // number of the matching request, from 1
	when  when
	with  extra // the extra that the component needs
}

func (p point) String() string { return p.apply.String() + ": " + p.name + ", " + p.when.String() }

// killedApply is the apply that is killed.
type killedApply uint8

const (
	install   killedApply = iota // the component's first apply
	upgrade                      // to its next version
	uninstall                    // the component is absent in git
	first                        // the cluster's first apply
)

func (k killedApply) String() string {
	return [...]string{"install", "upgrade", "uninstall", "first"}[k]
}

// when is the fate of the request at which the process is killed.
type when uint8

const (
	before when = iota // the request never reaches the API server
	after              // the request is carried out, but its answer is lost
	late               // the request reaches the API server after another process has finished the work
)

func (w when) String() string { return [...]string{"before", "after", "late"}[w] }

// moment is a named request of an apply.
type moment struct {
	name  string
	nth   int
	match func(c *component, r proxy.Request) bool
	with  extra // empty: plain
	reads bool  // the request changes nothing, so only before is tried
}

// on matches requests for a resource with a verb and a name, which may end with *.
func on(verb, resource, name string) func(*component, proxy.Request) bool {
	return func(c *component, r proxy.Request) bool {
		prefix, open := strings.CutSuffix(name, "*")
		return !r.DryRun && r.Verb == verb && r.Resource == resource && r.FieldManager != "keelson-epoch" &&
			(r.Name == name || open && strings.HasPrefix(r.Name, prefix)) &&
			(r.Namespace == c.name || r.Namespace == "")
	}
}

func record(verb string) func(*component, proxy.Request) bool {
	return func(c *component, r proxy.Request) bool {
		// The path of a POST does not contain the name of the object.
		return r.Verb == verb && r.Resource == "secrets" && r.Namespace == systemNS && (r.Name == "" || r.Name == "record-"+c.name)
	}
}

// takeovers matches announcements of a takeover. The first creates the Secret keelson-intents.
func takeovers(_ *component, r proxy.Request) bool {
	return (r.Verb == "create" || r.Verb == "update") && r.Resource == "secrets" && r.Namespace == systemNS && (r.Name == "" || r.Name == "keelson-intents")
}

func installMoments() []moment {
	return []moment{
		{name: "the record is made with all intents", nth: 1, match: record("create")},
		{name: "it is asked whether namespaces may be made", nth: 1, match: rights, reads: true},
		{name: "the namespace is made", nth: 1, match: namespaces("create")},
		{name: "the CRD is made", nth: 1, match: on("patch", "customresourcedefinitions", "widgets.*"), with: withKind},
		{name: "the CRD is established", nth: 1, match: on("get", "customresourcedefinitions", "widgets.*"), with: withKind, reads: true},
		{name: "the first ConfigMap is made", nth: 1, match: on("patch", "configmaps", "*")},
		{name: "the third ConfigMap is made", nth: 3, match: on("patch", "configmaps", "*")},
		{name: "the Secret is made", nth: 1, match: on("patch", "secrets", "login")},
		{name: "rights are given", nth: 1, match: on("patch", "rolebindings", "*")},
		{name: "the Service is made", nth: 1, match: on("patch", "services", "*")},
		{name: "the workload is made", nth: 1, match: on("patch", "deployments", "*")},
		{name: "the custom object is made", nth: 1, match: on("patch", "widgets", "one"), with: withKind},
		{name: "what was done is recorded between waves", nth: 1, match: record("update")},
		{name: "the second wave is made", nth: 1, match: on("patch", "configmaps", "second-wave")},
		{name: "all that was done is recorded", nth: 2, match: record("update")},
	}
}

func upgradeMoments() []moment {
	return []moment{
		{name: "the takeover is claimed", nth: 1, match: takeovers},
		{name: "the component is taken over with all intents", nth: 1, match: record("update")},
		{name: "the hook is recorded", nth: 2, match: record("update"), with: withHook},
		{name: "the hook is made", nth: 1, match: on("patch", "jobs", "migrate"), with: withHook},
		{name: "the hook is waited for", nth: 1, match: on("get", "jobs", "migrate"), with: withHook, reads: true},
		{name: "the hook is deleted", nth: 1, match: on("delete", "jobs", "migrate"), with: withHook},
		{name: "the first ConfigMap is updated", nth: 1, match: on("patch", "configmaps", "settings-*")},
		{name: "a ConfigMap is new", nth: 1, match: on("patch", "configmaps", "new-*")},
		{name: "what kubectl owns is taken over", nth: 1, match: migration},
		{name: "what was kubectl's is updated", nth: 1, match: applied(on("patch", "configmaps", "adopted"))},
		{name: "a kept field is handed over", nth: 1, match: handOver},
		{name: "the rest of that object is updated", nth: 1, match: applied(on("patch", "configmaps", "kept"))},
		{name: "the Secret is updated", nth: 1, match: on("patch", "secrets", "login")},
		{name: "a binding that must be replaced is deleted", nth: 1, match: on("delete", "rolebindings", "*")},
		{name: "it is waited for its end", nth: 1, match: on("get", "rolebindings", "reader-*"), reads: true},
		{name: "the new binding is made", nth: 1, match: on("patch", "rolebindings", "*")},
		{name: "the Service is updated", nth: 1, match: on("patch", "services", "*")},
		{name: "the workload is updated", nth: 1, match: on("patch", "deployments", "*")},
		{name: "what was done is recorded between waves", nth: 2, match: record("update")},
		{name: "the second wave is updated", nth: 1, match: on("patch", "configmaps", "second-wave")},
		{name: "what git no longer has is deleted", nth: 1, match: on("delete", "configmaps", "gone-*")},
		{name: "all that was done is recorded", nth: 3, match: record("update")},
	}
}

func uninstallMoments() []moment {
	return []moment{
		{name: "the takeover is claimed", nth: 1, match: takeovers},
		{name: "all deletions are recorded", nth: 1, match: record("update")},
		{name: "the workload is deleted", nth: 1, match: on("delete", "deployments", "*")},
		{name: "the Service is deleted", nth: 1, match: on("delete", "services", "*")},
		{name: "a ConfigMap is deleted", nth: 1, match: on("delete", "configmaps", "*")},
		{name: "the Secret is deleted", nth: 1, match: on("delete", "secrets", "login")},
		{name: "the record is deleted", nth: 1, match: record("delete")},
	}
}

// firstMoments returns the moments at which a cluster is prepared for records.
func firstMoments() []moment {
	own := func(verb, resource, name string) func(*component, proxy.Request) bool {
		return func(_ *component, r proxy.Request) bool {
			return r.Verb == verb && r.Resource == resource && !r.DryRun && (r.Name == "" || r.Name == name) &&
				(resource == "namespaces" || r.Namespace == systemNS)
		}
	}
	return []moment{
		{name: "the key is looked for", nth: 1, match: own("get", "secrets", maskKey), reads: true},
		{name: "it is asked whether namespaces may be made", nth: 1, match: rights, reads: true},
		{name: "the namespace of records is made", nth: 1, match: own("create", "namespaces", systemNS)},
		{name: "the key is made", nth: 1, match: own("create", "secrets", maskKey)},
		{name: "the first record is made", nth: 2, match: own("create", "secrets", maskKey)},
	}
}

// rights matches access reviews.
func rights(_ *component, r proxy.Request) bool {
	return r.Verb == "create" && r.Resource == "selfsubjectaccessreviews"
}

func namespaces(verb string) func(*component, proxy.Request) bool {
	return func(c *component, r proxy.Request) bool {
		return r.Verb == verb && r.Resource == "namespaces" && (r.Name == "" || r.Name == c.name)
	}
}

func migration(c *component, r proxy.Request) bool {
	return on("patch", "configmaps", "adopted")(c, r) && r.PatchType == "application/json-patch+json"
}

func handOver(c *component, r proxy.Request) bool {
	return on("patch", "configmaps", "kept")(c, r) && r.FieldManager != "keelson"
}

// applied restricts a match to applies with the field manager keelson.
func applied(match func(*component, proxy.Request) bool) func(*component, proxy.Request) bool {
	return func(c *component, r proxy.Request) bool {
		return match(c, r) && r.FieldManager == "keelson" && strings.HasPrefix(r.PatchType, "application/apply-patch")
	}
}

// applyMoments returns the moments of keelson apply, by apply.
func applyMoments() [][]moment {
	return [][]moment{installMoments(), upgradeMoments(), uninstallMoments()}
}

// controllerMoments returns the moments of keelson controller, which also writes statuses.
func controllerMoments() [][]moment {
	status := moment{name: "the status is written", nth: 1, match: func(c *component, r proxy.Request) bool {
		return r.Write() && r.Resource == "deliveries" && strings.Contains(r.Name, c.name)
	}}
	return [][]moment{append(installMoments(), status), append(upgradeMoments(), status), uninstallMoments()}
}

// allPoints returns the points of all applies: each moment before, after and late.
func allPoints(applies [][]moment) []point {
	var out []point
	for s, moments := range applies {
		usual := plain
		if s == int(uninstall) {
			usual = few
		}
		out = append(out, pointsOf(killedApply(s), usual, moments)...) //nolint:gosec // three applies
	}
	return out
}

// pointsOf returns the points of an apply: each moment before, after and late, and each
// read only before.
func pointsOf(k killedApply, usual extra, moments []moment) []point {
	var out []point
	for _, m := range moments {
		all := []when{before, after, late}
		if m.reads {
			all = all[:1]
		}
		for _, w := range all {
			out = append(out, point{name: m.name, apply: k, match: m.match, nth: m.nth, when: w, with: cmp.Or(m.with, usual)})
		}
	}
	return out
}

// component returns the name of the component that a point is tried on.
func (p point) component(seed, number int) string {
	return fmt.Sprintf("k%02dp%02dx", seed, number)
}
