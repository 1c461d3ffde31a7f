// Package oracle judges Keelson's writes by the audit log of an API server. It shares
// no code with Keelson: a rule reads only the body of a request and the API server's
// answer.
//
// The rules apply to every write of the user keelson that is not a dry run:
//   - A write to an object that may exist carries the UID and the
//     resourceVersion of the observed object. A create is a POST, or an apply that
//     can't update an existing object (resourceVersion "1").
//   - A DELETE carries both as preconditions, is in the ledger of wanted
//     deletions, and succeeds once per UID.
//   - Only objects that components of the fleet own are written, and Keelson's
//     own objects, such as records, statuses, events and leases.
//   - There is no deletecollection.
//
// Keelson's own objects need fewer guards: a PUT the resourceVersion, a DELETE either
// precondition, statuses and events none. A JSON patch needs only the resourceVersion.
package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/cluster"
)

// Rule is the description of a rule's violation.
type Rule string

// The rules.
const (
	UnguardedUpdate Rule = "an update without UID and resourceVersion"
	UnguardedRecord Rule = "a record replaced without its resourceVersion"
	UnguardedDelete Rule = "a delete without UID and resourceVersion as preconditions"
	UnwantedDelete  Rule = "a delete that git did not ask for"
	DoubleDelete    Rule = "an object deleted twice"
	Collection      Rule = "a delete of a whole collection"
	Foreign         Rule = "a write to what no component owns"
	Unseen          Rule = "a write whose body is not in the log"
)

// Violation is a request that broke a rule.
type Violation struct {
	Rule   Rule
	Detail string
	Event  audit.Event
}

func (v Violation) String() string {
	s := string(v.Rule)
	if v.Detail != "" {
		s += " (" + v.Detail + ")"
	}
	return fmt.Sprintf("%s: %s, audit %s", s, v.Event, v.Event.ID)
}

// Verdict is the result of [Judge].
type Verdict struct {
	// Writes is the number of judged writes. Creates, Updates and Deletes are the
	// writes among them that the API server accepted.
	Writes, Creates, Updates, Deletes int
	// Refused is the number of writes that a guard stopped (409), as intended.
	Refused    int
	Violations []Violation
}

func (v Verdict) String() string {
	return fmt.Sprintf("%d writes: %d creates, %d updates, %d deletes, %d refused by their guards; %d violations",
		v.Writes, v.Creates, v.Updates, v.Deletes, v.Refused, len(v.Violations))
}

// Judge checks the events of a log against the rules and the ledger.
func Judge(events []audit.Event, allowed *Ledger) Verdict {
	allowed.mu.Lock()
	defer allowed.mu.Unlock()
	j := &judge{ledger: index(allowed.entries), deleted: map[string]audit.Event{}}
	for _, e := range events {
		if e.User == cluster.Keelson && e.Write() && !e.DryRun && e.Stage == audit.ResponseComplete {
			j.write(e)
		}
	}
	return j.Verdict
}

type judge struct {
	Verdict
	ledger  indexed
	deleted map[string]audit.Event // the last successful deletion, by UID
}

func (j *judge) violate(r Rule, e audit.Event, detail string) {
	j.Violations = append(j.Violations, Violation{Rule: r, Detail: detail, Event: e})
}

func (j *judge) write(e audit.Event) {
	if question(e) || cutOff(e) {
		return
	}
	j.Writes++
	if e.Code == 409 {
		j.Refused++
	}
	if !own(e) && !j.ledger.owns(ObjectOf(e)) {
		j.violate(Foreign, e, "")
	}
	switch e.Verb {
	case "deletecollection":
		j.violate(Collection, e, "")
	case "delete":
		j.delete(e)
	case "create":
		j.Creates += count(e)
	case "update", "patch":
		j.change(e)
	}
}

func count(e audit.Event) int {
	if e.Code < 300 {
		return 1
	}
	return 0
}

// change judges a PUT or PATCH.
func (j *judge) change(e audit.Event) {
	if diary(e) || ownCRD(e.Resource.Name) {
		j.Updates += count(e)
		return
	}
	g, ok := guardOf(e.Request)
	switch {
	case !ok && e.Code >= 500:
		// The request broke off before its body was complete, so nothing was written.
	case !ok:
		j.violate(Unseen, e, "")
	case own(e) && e.Verb == "update":
		if g.version == "" {
			j.violate(UnguardedRecord, e, "")
		}
	case g.version == neverExists:
		// An apply with this resourceVersion can only create.
	case fence(e):
	case g.version == "" || g.uid == "" && !g.patch:
		j.violate(UnguardedUpdate, e, fmt.Sprintf("uid %q, resourceVersion %q", g.uid, g.version))
	}
	if e.Code == 201 {
		j.Creates++
		return
	}
	j.Updates += count(e)
}

func (j *judge) delete(e audit.Event) {
	var options struct {
		Preconditions struct{ UID, ResourceVersion string }
	}
	if len(e.Request) == 0 || json.Unmarshal(e.Request, &options) != nil {
		j.violate(UnguardedDelete, e, "no options")
		return
	}
	uid := options.Preconditions.UID
	// For Keelson's own objects either precondition is enough. Parts of a record never
	// change, and a record's resourceVersion identifies one state of one object.
	version := options.Preconditions.ResourceVersion
	if either := own(e) && (uid != "" || version != ""); !either && (uid == "" || version == "") {
		j.violate(UnguardedDelete, e, fmt.Sprintf("uid %q, resourceVersion %q", uid, version))
	}
	if (!own(e) || memory(ObjectOf(e))) && !j.ledger.wants(e) {
		j.violate(UnwantedDelete, e, "")
	}
	if e.Code >= 300 {
		return
	}
	j.Deletes++
	if before, ok := j.deleted[uid]; ok && uid != "" && !j.ledger.restored(before, e) {
		j.violate(DoubleDelete, e, "before by audit "+before.ID)
	}
	j.deleted[uid] = e
}

// neverExists is a resourceVersion that no object has, because etcd's first revision
// is the revision of the empty store.
const neverExists = "1"

// guard holds the preconditions of a write.
type guard struct {
	uid, version string
	// patch: the write is a JSON patch. It can't carry the UID, but the
	// resourceVersion alone identifies one state of one object.
	patch bool
}

// guardOf reads the guard of a PUT, an apply or a JSON patch. It returns false for another
// body.
func guardOf(body json.RawMessage) (guard, bool) {
	var object struct {
		Metadata struct{ UID, ResourceVersion string }
	}
	if json.Unmarshal(body, &object) == nil {
		return guard{uid: object.Metadata.UID, version: object.Metadata.ResourceVersion}, true
	}
	var operations []struct {
		Op, Path string
		Value    any
	}
	if json.Unmarshal(body, &operations) != nil {
		return guard{}, false
	}
	g := guard{patch: true}
	for _, o := range operations {
		if version, ok := o.Value.(string); ok && o.Path == "/metadata/resourceVersion" && (o.Op == "replace" || o.Op == "test") {
			g.version = version
		}
	}
	return g, true
}

// fence reports whether a write is a fence: an apply of only the epoch annotation. A
// session that takes over sends fences. Each changes the object's resourceVersion, so that
// late writes of the previous session fail.
func fence(e audit.Event) bool {
	var body struct {
		APIVersion, Kind string
		Metadata         struct {
			Name, Namespace, UID, ResourceVersion string
			Annotations                           map[string]string
		}
	}
	fields := json.NewDecoder(bytes.NewReader(e.Request))
	fields.DisallowUnknownFields()
	if e.FieldManager != "keelson-epoch" || fields.Decode(&body) != nil {
		return false
	}
	_, ok := body.Metadata.Annotations["keelson.io/epoch"]
	return ok && len(body.Metadata.Annotations) == 1
}

// ObjectOf returns the object of an event, also for creations.
func ObjectOf(e audit.Event) Object {
	name := e.Resource.Name
	if name == "" { // a POST contains the name only in its body
		var body struct{ Metadata struct{ Name string } }
		if json.Unmarshal(e.Request, &body) == nil {
			name = body.Metadata.Name
		}
	}
	return Object{Group: e.Resource.Group, Resource: e.Resource.Resource, Namespace: e.Resource.Namespace, Name: name}
}

// system is the namespace of Keelson's own objects.
const system = "keelson-system"

// ownCRD reports whether a CRD is one that the controller installs in its hub. No other
// program installs these CRDs.
func ownCRD(name string) bool {
	return name == "deliveries.keelson.io" || name == "rollouts.keelson.io"
}

// cutOff reports whether a POST broke off before its body was complete, for example
// because the process was killed. The event has no name, and nothing was written.
func cutOff(e audit.Event) bool {
	return e.Verb == "create" && e.Resource.Name == "" && len(e.Request) == 0 && e.Code >= 500
}

// question reports whether an event is a review, which has the verb create but writes
// nothing.
func question(e audit.Event) bool {
	return slices.Contains([]string{"authorization.k8s.io", "authentication.k8s.io"}, e.Resource.Group)
}

// diary reports whether an event writes an Event, an object of the group keelson.io, or
// their CRD. Such writes don't touch a component's objects.
func diary(e audit.Event) bool {
	return e.Resource.Resource == "events" || e.Resource.Group == "keelson.io" ||
		e.Resource.Resource == "customresourcedefinitions" && ownCRD(e.Resource.Name)
}

// memory reports whether an object is a ConfigMap in which any replica of the controller
// stores the state of the repository.
func memory(o Object) bool {
	return o.Group == "" && o.Resource == "configmaps" && o.Namespace == system && strings.HasPrefix(o.Name, "keelson-git-")
}

// own reports whether an event is about one of Keelson's own objects.
func own(e audit.Event) bool {
	o := ObjectOf(e)
	switch {
	case diary(e):
		return true
	case o.Resource == "secrets" && o.Group == "", o.Group == "coordination.k8s.io":
		return o.Namespace == system
	case memory(o):
		return true
	case o.Resource == "namespaces":
		return o.Name == system
	case o.Resource == "customresourcedefinitions":
		return ownCRD(o.Name)
	}
	return false
}

// indexed is a ledger with indexes for fast queries.
type indexed struct {
	owned      sets.Set[Object]
	namespaces sets.Set[string]
	deletions  map[Object][]Deletion
	restores   []time.Time
}

func index(l ledger) indexed {
	i := indexed{owned: sets.New(l.Owned...), namespaces: sets.New(l.Namespaces...), deletions: map[Object][]Deletion{}, restores: l.Restores}
	for _, d := range l.Deletions {
		i.deletions[d.Object] = append(i.deletions[d.Object], d)
	}
	return i
}

func (i indexed) owns(o Object) bool {
	return i.owned.Has(o) || i.namespaces.Has(o.Namespace) || o.Group == "" && o.Resource == "namespaces" && i.namespaces.Has(o.Name)
}

// restored reports whether etcd was restored between two events.
func (i indexed) restored(a, b audit.Event) bool {
	return slices.ContainsFunc(i.restores, func(at time.Time) bool { return at.After(a.Time) && at.Before(b.Received) })
}

func (i indexed) wants(e audit.Event) bool {
	return slices.ContainsFunc(i.deletions[ObjectOf(e)], func(d Deletion) bool { return !e.Received.Before(d.From) })
}
