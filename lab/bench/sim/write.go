package sim

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	segment "k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// races is how often a write is computed before it fails because of concurrent writes.
const races = 5

// write is a request to create or change one object.
type write struct {
	k       *kind
	key     key
	status  bool // writes the status subresource
	manager string
	force   bool
	dryRun  bool
	whole   bool // an update, not a patch
	// uid and version are preconditions; empty: any.
	uid     types.UID
	version string
}

// computed returns the new body of an object. now is nil if the object does not exist.
type computed func(now *object) (*body, error)

// change stores the computed body. It computes again after a concurrent write. An unchanged object
// is not written.
func (s *server) change(w *write, compute computed) (*object, bool, error) {
	gr := w.k.groupResource()
	for range races {
		now := s.store.get(gr, w.key)
		next, err := compute(now)
		if err != nil {
			return nil, false, err
		}
		if err := w.mayBe(now); err != nil {
			return nil, false, err
		}
		switch {
		case now != nil && next.sum == now.sum:
			return now, false, nil
		case w.dryRun:
			return s.imagined(w.key, now, next), now == nil, nil
		case now != nil && ended(next):
			o, err := s.remove(w.k, now)
			if errors.Is(err, errRaced) {
				continue
			}
			return o, false, err
		}
		o, err := s.store.put(gr, w.key, now, next)
		if errors.Is(err, errRaced) {
			continue
		}
		if err == nil {
			err = s.written(w.k, o)
		}
		return o, now == nil, err
	}
	return nil, false, modified(gr, w.key.name)
}

// imagined returns the object with which a dry run is answered.
func (s *server) imagined(k key, now *object, next *body) *object {
	t := s.fleet.now().Unix()
	if now == nil {
		return &object{body: next, key: k, uid: uint64(t), version: 0, birth: t, change: t} //nolint:gosec // a UID of no object
	}
	return &object{body: next, key: now.key, uid: now.uid, version: now.version, birth: now.birth, change: t}
}

// mayBe checks the preconditions of a write.
func (w *write) mayBe(now *object) error {
	gr := w.k.groupResource()
	if now == nil {
		if w.uid != "" {
			return apierrors.NewConflict(gr, w.key.name, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", w.uid))
		}
		return nil
	}
	other := w.uid != "" && string(w.uid) != now.uidText()
	switch {
	case other && w.whole:
		return apierrors.NewConflict(gr, w.key.name, fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", w.uid, now.uidText())) //nolint:staticcheck // Kubernetes' own text
	case w.version != "" && w.version != fmt.Sprint(now.version):
		return modified(gr, w.key.name)
	case other:
		return apierrors.NewInvalid(w.k.GroupKind(), w.key.name, field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), w.uid, "field is immutable")})
	}
	return nil
}

func modified(gr schema.GroupResource, name string) error {
	return apierrors.NewConflict(gr, name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
}

// claimed moves the UID and resourceVersion from the client's object into the preconditions.
func (w *write) claimed(content map[string]any) {
	metadata, ok := content["metadata"].(map[string]any)
	if !ok {
		return
	}
	uid, _ := metadata["uid"].(string)
	w.uid = types.UID(uid)
	w.version, _ = metadata["resourceVersion"].(string)
	delete(metadata, "uid")
	delete(metadata, "resourceVersion")
}

// named checks that name, namespace and kind of the client's object match the path.
func (w *write) named(content map[string]any) error {
	u := unstructured.Unstructured{Object: content}
	if have := u.GetName(); have != "" && have != w.key.name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", have, w.key.name))
	}
	if have := u.GetNamespace(); have != "" && have != w.key.namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if have := u.GroupVersionKind(); have != w.k.GroupVersionKind {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: the object provided is of %s",
			w.k.Kind, w.k.Version, w.k.Kind, have))
	}
	if problems := segment.IsPathSegmentName(w.key.name); len(problems) > 0 {
		return apierrors.NewInvalid(w.k.GroupKind(), w.key.name, field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), w.key.name, problems[0])})
	}
	return nil
}

// apply is a server-side apply. The result for the same patch and the same object is computed once
// for all clusters.
func (s *server) apply(w *write, patch map[string]any) (*object, bool, error) {
	if patch == nil {
		return nil, false, apierrors.NewBadRequest("the patch is no object")
	}
	w.claimed(patch)
	if err := w.named(patch); err != nil {
		return nil, false, err
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return nil, false, apierrors.NewBadRequest(err.Error())
	}
	about := merge{kind: w.k, key: w.key, patch: sha256.Sum256(text), manager: w.manager, force: w.force, status: w.status}
	return s.change(w, func(now *object) (*body, error) {
		if now == nil && w.status {
			return nil, apierrors.NewNotFound(w.k.groupResource(), w.key.name)
		}
		about.base = nil
		if now != nil {
			about.base = now.body
		}
		return s.fleet.merges.lookup(about, !w.k.unshared, func() (*body, error) { return s.merged(w, now, patch) })
	})
}

// merged computes a server-side apply.
func (s *server) merged(w *write, now *object, patch map[string]any) (*body, error) {
	base, live, err := w.live(now)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: patch}
	fields := w.k.fields
	if w.status {
		fields = w.k.statusFields
	}
	out, err := fields.Apply(live, u.DeepCopy(), w.manager, w.force)
	if err != nil {
		return nil, err //nolint:wrapcheck // the answer
	}
	merged, ok := out.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("merged to a %T", out)
	}
	if err := wellFormed(w.k.GroupVersionKind, merged.Object); err != nil {
		return nil, fmt.Errorf("failed to convert new object (/%s; %s) to proper version: unable to convert unstructured object to %s: %w",
			w.key.name, w.k.GroupVersionKind, w.k.GroupVersionKind, err)
	}
	return s.finish(w, base, merged.Object)
}

// live returns the current object as a map, and in the form that the field manager takes.
func (w *write) live(now *object) (map[string]any, *unstructured.Unstructured, error) {
	if now == nil {
		empty, err := blank{}.New(w.k.GroupVersionKind)
		u, _ := empty.(*unstructured.Unstructured)
		return nil, u, err
	}
	base, err := now.anonymous()
	if err != nil {
		return nil, nil, err
	}
	return base, (&unstructured.Unstructured{Object: base}).DeepCopy(), nil
}

// replace creates or updates an object with the given content.
func (s *server) replace(w *write, content map[string]any) (*object, bool, error) {
	return s.change(w, func(now *object) (*body, error) { return s.replaced(w, now, content) })
}

// replaced computes an update.
func (s *server) replaced(w *write, now *object, content map[string]any) (*body, error) {
	base, live, err := w.live(now)
	if err != nil {
		return nil, err
	}
	if err := wellFormed(w.k.GroupVersionKind, content); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", w.k.Kind, w.k.Version, w.k.Kind, err))
	}
	u := (&unstructured.Unstructured{Object: content}).DeepCopy()
	w.k.complete(u)
	u.SetName(w.key.name)
	u.SetNamespace(w.key.namespace)
	fields := w.k.fields
	if w.status {
		fields = w.k.statusFields
		keepBut(u.Object, base, "status")
	}
	out, err := fields.Update(live, u, w.manager)
	if err != nil {
		return nil, err //nolint:wrapcheck // the answer
	}
	next, ok := out.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("updated to a %T", out)
	}
	return s.finish(w, base, next.Object)
}

// keepBut restores all of an object from base except one field and the managedFields.
func keepBut(content, base map[string]any, but string) {
	changed, ok := content[but]
	metadata, _ := content["metadata"].(map[string]any)
	fields := metadata["managedFields"]
	clear(content)
	maps.Copy(content, (&unstructured.Unstructured{Object: base}).DeepCopy().Object)
	if delete(content, but); ok {
		content[but] = changed
	}
	if metadata, ok = content["metadata"].(map[string]any); ok && fields != nil {
		metadata["managedFields"] = fields
	}
}

// finish applies the API server's last changes before an object is stored.
func (s *server) finish(w *write, base, content map[string]any) (*body, error) {
	u := &unstructured.Unstructured{Object: content}
	u.SetName(w.key.name)
	u.SetNamespace(w.key.namespace)
	switch {
	case base == nil:
		w.born(u)
	case w.status:
		keepBut(content, base, "status")
	default:
		w.grown(u, base)
	}
	return s.fleet.bodies.intern(u.Object, !w.k.unshared)
}

func (w *write) born(u *unstructured.Unstructured) {
	if w.k.status {
		delete(u.Object, "status")
		w.k.complete(u)
	}
	u.SetDeletionTimestamp(nil)
	unstructured.RemoveNestedField(u.Object, "metadata", "generation")
	if w.k.generation {
		u.SetGeneration(1)
	}
	atBirth(u)
	countTemplate(u, nil)
}

// grown restores fields that an update can't change, and counts changes of the spec.
func (w *write) grown(u *unstructured.Unstructured, base map[string]any) {
	was := &unstructured.Unstructured{Object: base}
	if w.k.status {
		delete(u.Object, "status")
		if status, ok := base["status"]; ok {
			u.Object["status"] = status
		}
	}
	u.SetDeletionTimestamp(was.GetDeletionTimestamp())
	u.SetDeletionGracePeriodSeconds(was.GetDeletionGracePeriodSeconds())
	unstructured.RemoveNestedField(u.Object, "metadata", "generation")
	if !w.k.generation {
		return
	}
	generation := was.GetGeneration()
	if !reflect.DeepEqual(wanted(u.Object), wanted(base)) {
		generation++
	}
	u.SetGeneration(generation)
	countTemplate(u, was)
}

// wanted returns an object without metadata and status.
func wanted(o map[string]any) map[string]any {
	out := maps.Clone(o)
	delete(out, "metadata")
	delete(out, "status")
	return out
}

// ended reports whether a deleted object has no finalizers left.
func ended(b *body) bool {
	content, err := b.anonymous()
	if err != nil {
		return false
	}
	u := unstructured.Unstructured{Object: content}
	return u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) == 0
}
