package differ

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// handOverManager becomes a field's owner before Keelson stops sending the field; see
// [Change.HandOver]. This manager does not count as an owner: it only keeps live values.
const handOverManager = v1alpha1.FieldManager + "-hand-over"

// owner is the kind of client that set a live field. A later value is harder to overrule; see
// [owners.ownerOf].
type owner uint8

const (
	ownerUnread     owner = iota // managedFields were not fetched
	ownerNone                    // no client: the API server's default
	ownerOurs                    // Keelson alone
	ownerPerson                  // kubectl and similar tools
	ownerBorrowed                // the name of a controller that never sets such a field
	ownerUnknown                 // any other client
	ownerYielding                // a controller that sets such fields, and goes by a change in git
	ownerController              // a controller that sets such fields
)

// persons returns globs of the field managers that persons use. Such a tool counts as a person also
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
	who      owner // the most that any field gives; see [ownerEntry.at]
	claims   []controllerFields
	applied  bool // by Keelson's server-side apply, which removes such a field once it is no longer sent
	handOver bool
	// clientSide marks a tool that applies without server-side apply. Without a migration, the
	// fields that the tool owns would never be removed.
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
	annotations, _ := meta["annotations"].(map[string]any)
	out := owners{read: true, entries: make([]ownerEntry, 0, len(entries))}
	for _, e := range entries {
		if e.FieldsV1 == nil || e.Manager == v1alpha1.EpochManager { // the mark of a takeover may be removed at any time
			continue
		}
		fields := &fieldpath.Set{}
		if err := fields.FromJSON(e.FieldsV1.GetRawReader()); err != nil {
			return owners{}, fmt.Errorf("decode managedFields of manager %q: %w", e.Manager, err)
		}
		who, claims := classify(id, e.Manager, e.Subresource, annotations)
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

// clientSideManagers returns the field managers of kubectl apply and Helm 3. Any other manager that
// owns kubectl's annotation also applies on the client's side.
func clientSideManagers() []string { return []string{"kubectl-client-side-apply", "helm"} }

func lastAppliedPath() fieldpath.Path {
	return fieldpath.MakePathOrDie("metadata", "annotations", lastApplied)
}

// migrate makes Keelson the owner of fields of tools that apply on the client's side. It returns
// the names of these tools.
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

// classify returns what kind of owner a manager is, and the claims of a controller.
func classify(id ID, manager, subresource string, annotations map[string]any) (owner, []controllerFields) {
	switch {
	case manager == v1alpha1.FieldManager:
		return ownerOurs, nil
	case manager == handOverManager:
		return ownerNone, nil
	case matchesAny(persons(), manager):
		return ownerPerson, nil
	}
	claims := controllerFieldsOf(id, manager, subresource, annotations)
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
		ok, _ := path.Match(glob, manager) // the globs are Keelson's own, and well-formed
		return ok
	})
}

// at returns what kind of owner a manager is at one of its fields. A controller counts as one only
// where it is known to write. Elsewhere another client may use its name: clients choose their field
// manager.
func (e ownerEntry) at(p fieldpath.Path) owner {
	i := slices.IndexFunc(e.claims, func(c controllerFields) bool { return c.has(p) })
	switch {
	case e.who == ownerController && i >= 0 && e.claims[i].yields:
		return ownerYielding
	case e.who != ownerController || i >= 0:
		return e.who
	case isController(e.manager):
		return ownerBorrowed
	}
	return ownerUnknown
}

// ownerOf returns the owner of a field or of anything below it. Of several owners, it returns the one
// that is hardest to overrule: a controller, then one that goes by git, then an unknown client, a borrowed name, a person.
func (o owners) ownerOf(p fieldpath.Path) owner {
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

// handedOver reports whether Keelson handed over the field or anything below it.
func (o owners) handedOver(p fieldpath.Path) bool { return o.any(p, isHandOver) }

// oursAlone reports whether Keelson applied or handed over the field or anything below it, and no
// other entry owns any of these fields. Keelson may then remove the field.
func (o owners) oursAlone(p fieldpath.Path) bool {
	return (o.applied(p) || o.handedOver(p)) && !o.any(p, isOther)
}

func (o owners) any(p fieldpath.Path, is func(ownerEntry) bool) bool {
	return slices.ContainsFunc(o.entries, func(e ownerEntry) bool { return is(e) && owns(e.fields, p) })
}

// includesKeelson reports whether Keelson is a manager of any of the object's fields.
func (o owners) includesKeelson() bool {
	return slices.ContainsFunc(o.entries, func(e ownerEntry) bool { return e.who == ownerOurs })
}

func isApplied(e ownerEntry) bool { return e.applied }

func isHandOver(e ownerEntry) bool { return e.handOver }

func isOther(e ownerEntry) bool { return !e.applied && !e.handOver }

// union returns all fields of the entries that of selects.
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

// handOver returns an object with the fields that must outlive Keelson's ownership, at their live
// values, or nil. Server-side apply removes a field, or resets it to its default, when its last
// owner stops sending it. With a list item, it removes all fields in the item, also those of other
// owners. In kinds without a schema, the same is true of a map. For the same reason, fields that
// were handed over before are sent again.
func (c *comparison) handOver() map[string]any {
	alone := c.who.union(isApplied).Difference(c.who.union(func(e ownerEntry) bool { return !e.applied }))
	// An item or map that Keelson alone owns, and that the patch lacks, is removed with all its
	// fields.
	going := carver{c.view.typ.Schema}.lacking(c.view.typ.TypeRef, c.change.Patch, alone)
	goes := func(p fieldpath.Path) bool { return len(p) > 0 && hasPrefix(going, p[:len(p)-1]) }
	fields := &fieldpath.Set{}
	add := func(p fieldpath.Path) {
		if !hasPrefix(fields, p) { // no part of a value that is handed over as a whole is listed
			fields.Insert(p.Copy())
		}
	}
	c.kept.Iterate(func(p fieldpath.Path) {
		if owns(alone, p) || goes(p) {
			add(p)
		}
	})
	for _, e := range c.who.entries {
		if e.who < ownerPerson {
			continue
		}
		e.fields.Leaves().Iterate(func(p fieldpath.Path) {
			if !hasPrefix(c.taken, p) && goes(p) {
				add(p)
			}
		})
	}
	if fields.Empty() && c.dropped.Empty() {
		return nil
	}
	c.who.union(isHandOver).Leaves().Iterate(func(p fieldpath.Path) {
		if !hasPrefix(c.dropped, p) {
			add(p)
		}
	})
	out, _ := carver{c.view.typ.Schema}.extract(c.view.typ.TypeRef, c.live, fields).(map[string]any)
	if out == nil {
		out = map[string]any{}
	}
	out["apiVersion"], out["kind"] = c.target["apiVersion"], c.target["kind"]
	meta, _ := out["metadata"].(map[string]any)
	meta = maps.Clone(meta)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["name"] = c.state.ID.Name
	if c.state.ID.Namespace != "" {
		meta["namespace"] = c.state.ID.Namespace
	}
	out["metadata"] = meta
	return out
}

// hasPrefix reports whether a set has the path or a path above it.
func hasPrefix(set *fieldpath.Set, p fieldpath.Path) bool {
	for i := range p {
		if set.Has(p[:i+1]) {
			return true
		}
	}
	return false
}
