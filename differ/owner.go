package differ

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// handOverManager takes a field from Keelson before Keelson stops sending it;
// see [Change.HandOver]. It is no owner of anything: nobody acts in its name.
const handOverManager = v1alpha1.FieldManager + "-hand-over"

// owner says who set a live field. The order is that of [owners.of]: the
// later, the harder to overrule.
type owner uint8

const (
	ownerUnread     owner = iota // managedFields were not fetched
	ownerNone                    // nobody: the API server's default
	ownerOurs                    // Keelson alone
	ownerPerson                  // kubectl and friends
	ownerBorrowed                // the name of a controller that never sets such a field
	ownerUnknown                 // somebody else
	ownerController              // a controller that sets such fields
)

// persons are field managers by glob. A person's tool stays a person's also
// through a subresource: kubectl scale is no autoscaler.
func persons() []string {
	return []string{
		"kubectl*", "k9s", "Lens*", "lens*", "freelens*", "openlens*", "headlamp*",
		"dashboard*", "kubernetes-dashboard*", "Mozilla*", "oc", "octant", "rancher",
		v1alpha1.WorkloadManager,
	}
}

// owners are the managers of a live object's fields.
type owners struct {
	read    bool
	entries []ownerEntry
}

type ownerEntry struct {
	manager  string
	who      owner // at best; see [ownerEntry.at]
	claims   []claim
	applied  bool // by Keelson: what server-side apply removes when it is not sent again
	handOver bool
	// clientSide is a tool that applies without server-side apply: nothing of
	// what it owns would ever be removed.
	clientSide bool
	fields     *fieldpath.Set
}

// readOwners decodes metadata.managedFields of a live object.
func readOwners(id ID, live map[string]any) (owners, error) {
	meta, _ := live["metadata"].(map[string]any)
	raw := meta["managedFields"]
	if raw == nil {
		return owners{read: true}, nil
	}
	data, err := json.Marshal(raw)
	if err != nil {
		return owners{}, fmt.Errorf("encode managedFields: %w", err)
	}
	var entries []metav1.ManagedFieldsEntry
	if err := json.Unmarshal(data, &entries); err != nil {
		return owners{}, fmt.Errorf("decode managedFields: %w", err)
	}
	out := owners{read: true, entries: make([]ownerEntry, 0, len(entries))}
	for _, e := range entries {
		if e.FieldsV1 == nil || e.Manager == v1alpha1.EpochManager { // the mark of a takeover may go any time
			continue
		}
		fields := &fieldpath.Set{}
		if err := fields.FromJSON(e.FieldsV1.GetRawReader()); err != nil {
			return owners{}, fmt.Errorf("decode managedFields of manager %q: %w", e.Manager, err)
		}
		who, claims := classify(id, e.Manager, e.Subresource)
		out.entries = append(out.entries, ownerEntry{
			manager:  e.Manager,
			who:      who,
			claims:   claims,
			applied:  e.Manager == v1alpha1.FieldManager && e.Operation == metav1.ManagedFieldsOperationApply,
			handOver: e.Manager == handOverManager,
			clientSide: e.Operation == metav1.ManagedFieldsOperationUpdate && e.Subresource == "" &&
				(slices.Contains(clientSideManagers(), e.Manager) || fields.Has(lastAppliedPath())),
			fields: fields,
		})
	}
	return out, nil
}

// clientSideManagers are those of kubectl apply and of Helm 3. Whoever else
// writes kubectl's annotation does so, too.
func clientSideManagers() []string { return []string{"kubectl-client-side-apply", "helm"} }

func lastAppliedPath() fieldpath.Path {
	return fieldpath.MakePathOrDie("metadata", "annotations", lastApplied)
}

// migrate makes Keelson's what tools own that apply on the client's side, and
// returns their names.
func (o owners) migrate() []string {
	var out []string
	for i := range o.entries {
		if e := &o.entries[i]; e.clientSide {
			e.who, e.applied = ownerOurs, true
			out = append(out, e.manager)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// classify says whose fields a manager's are, and of a controller which of them.
func classify(id ID, manager, subresource string) (owner, []claim) {
	switch {
	case manager == v1alpha1.FieldManager:
		return ownerOurs, nil
	case manager == handOverManager:
		return ownerNone, nil
	case matchesAny(persons(), manager):
		return ownerPerson, nil
	}
	claims := claimsOf(id, manager, subresource)
	switch {
	case len(claims) > 0:
		return ownerController, claims
	case isController(manager):
		return ownerBorrowed, nil
	}
	return ownerUnknown, nil
}

func matchesAny(globs []string, manager string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		ok, _ := path.Match(glob, manager) // the globs are ours and well formed
		return ok
	})
}

// at says who a manager is at one of its fields: a controller has a say where it is
// known to write. Elsewhere a client borrows its name: clients choose their field manager.
func (e ownerEntry) at(p fieldpath.Path) owner {
	switch {
	case e.who != ownerController || slices.ContainsFunc(e.claims, func(c claim) bool { return c.has(p) }):
		return e.who
	case isController(e.manager):
		return ownerBorrowed
	}
	return ownerUnknown
}

// of returns who owns a field or anything below it. Of several owners the one
// that is hardest to overrule counts: a controller, then the unknown, a borrowed name, a person.
func (o owners) of(p fieldpath.Path) owner {
	if !o.read {
		return ownerUnread
	}
	who := ownerNone
	for _, e := range o.entries {
		if at := e.at(p); at > who && owns(e.fields, p) {
			who = at
		}
	}
	return who
}

// applied reports whether Keelson applied the field or anything below it.
func (o owners) applied(p fieldpath.Path) bool { return o.any(p, isApplied) }

// handedOver reports whether that was so once.
func (o owners) handedOver(p fieldpath.Path) bool { return o.any(p, isHandOver) }

// oursAlone reports whether nobody but Keelson owns the field or anything
// below it, so that it is for Keelson to remove.
func (o owners) oursAlone(p fieldpath.Path) bool {
	return (o.applied(p) || o.handedOver(p)) && !o.any(p, isOther)
}

func (o owners) any(p fieldpath.Path, is func(ownerEntry) bool) bool {
	return slices.ContainsFunc(o.entries, func(e ownerEntry) bool { return is(e) && owns(e.fields, p) })
}

// known reports whether Keelson ever wrote to the object.
func (o owners) known() bool {
	return slices.ContainsFunc(o.entries, func(e ownerEntry) bool { return e.who == ownerOurs })
}

func isApplied(e ownerEntry) bool { return e.applied }

func isHandOver(e ownerEntry) bool { return e.handOver }

func isOther(e ownerEntry) bool { return !e.applied && !e.handOver }

// union of the fields of some entries.
func (o owners) union(of func(ownerEntry) bool) *fieldpath.Set {
	set := &fieldpath.Set{}
	for _, e := range o.entries {
		if of(e) {
			set = set.Union(e.fields)
		}
	}
	return set
}

// owns reports whether the set holds the path or a path below it.
func owns(set *fieldpath.Set, p fieldpath.Path) bool {
	if len(p) == 0 {
		return !set.Empty()
	}
	for _, pe := range p[:len(p)-1] {
		next, ok := set.Children.Get(pe)
		if !ok {
			return false
		}
		set = next
	}
	last := p[len(p)-1]
	if set.Members.Has(last) {
		return true
	}
	below, ok := set.Children.Get(last)
	return ok && !below.Empty()
}
