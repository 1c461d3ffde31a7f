package sim

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var errGone = errors.New("the object is gone")

// server is the API server of one cluster.
type server struct {
	name    string
	fleet   *Fleet
	store   *store
	surface atomic.Pointer[surface]
	faults  *faults
	counts  counts
	http    *http.Server
}

var (
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}                         //nolint:gochecknoglobals // never changed
	crds       = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"} //nolint:gochecknoglobals // as above
)

// begin creates the namespaces that every cluster has.
func (s *server) begin() error {
	k := s.surface.Load().kinds[namespaces]
	for _, name := range []string{"default", "kube-node-lease", "kube-public", "kube-system"} {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetGroupVersionKind(k.GroupVersionKind)
		u.SetName(name)
		if _, _, err := s.replace(&write{k: k, key: key{"", name}, manager: "kube-apiserver"}, u.Object); err != nil {
			return fmt.Errorf("cluster %s: %w", s.name, err)
		}
	}
	return nil
}

// written runs the consequences of a write: new kinds and statuses.
func (s *server) written(k *kind, o *object) error {
	if k.groupResource() == crds {
		if err := s.defined(o); err != nil {
			return err
		}
	}
	if isPlayed(k.Kind) {
		s.fleet.players.add(played{server: s, kind: k, key: o.key})
	}
	return nil
}

// defined serves the kind of a CRD.
func (s *server) defined(o *object) error {
	content, err := o.anonymous()
	if err != nil {
		return err
	}
	d, err := s.fleet.definitions.parse(content)
	if err != nil {
		return err
	}
	for {
		now := s.surface.Load()
		if now.kinds[d.kind.gvr()] == d.kind || s.surface.CompareAndSwap(now, now.with(d)) {
			return nil
		}
	}
}

// removed removes the objects of a deleted namespace or CRD, and the kind of a deleted CRD.
func (s *server) removed(k *kind, o *object) error {
	switch k.groupResource() {
	case namespaces.GroupResource():
		for gr, objects := range s.store.within(o.name) {
			if err := s.removeAll(gr, objects); err != nil {
				return err
			}
		}
	case crds:
		plural, group, _ := strings.Cut(o.name, ".")
		gr := schema.GroupResource{Group: group, Resource: plural}
		objects, _ := s.store.list(gr)
		if err := s.removeAll(gr, objects); err != nil {
			return err
		}
		for now := s.surface.Load(); !s.surface.CompareAndSwap(now, now.without(gr)); {
			now = s.surface.Load()
		}
	}
	return nil
}

func (s *server) removeAll(gr schema.GroupResource, objects []*object) error {
	for _, o := range objects {
		if _, err := s.store.put(gr, o.key, o, nil); err != nil && !errors.Is(err, errRaced) {
			return err
		}
	}
	return nil
}

// ServeHTTP answers one request.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	about, err := s.fleet.paths.NewRequestInfo(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	counted := &countedWriter{ResponseWriter: w}
	dryRun := r.URL.Query().Has("dryRun")
	done := s.counts.begin(about, dryRun)
	defer func() { done(counted.code, counted.bytes) }()
	if err := s.faults.delay(r.Context()); err != nil {
		return // the client disconnected
	}
	a := &answer{server: s, w: counted, r: r, about: about}
	if s.faults.throttles() {
		a.fail(apierrors.NewTooManyRequests("the server was told to be busy", 1))
		return
	}
	if !about.IsResourceRequest {
		a.surface()
		return
	}
	if err := a.resource(); err != nil {
		a.fail(err)
	}
}

// resource answers a request about objects.
func (a *answer) resource() error {
	i := a.about
	gvr := schema.GroupVersionResource{Group: i.APIGroup, Version: i.APIVersion, Resource: i.Resource}
	if i.Resource == "selfsubjectaccessreviews" && i.Verb == "create" {
		return a.allow()
	}
	k := a.server.surface.Load().kinds[gvr]
	if k == nil && a.server.fleet.builtIn(gvr.GroupVersion()) {
		e := apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false)
		e.ErrStatus.Message, e.ErrStatus.Details = "the server could not find the requested resource", &metav1.StatusDetails{}
		return e
	}
	if k == nil {
		a.notServed()
		return nil
	}
	if i.Subresource != "" && (i.Subresource != "status" || !k.status) || !k.namespaced && i.Namespace != "" && gvr != namespaces {
		a.notServed()
		return nil
	}
	if !k.namespaced {
		i.Namespace = ""
	}
	if err := a.negotiate(k); err != nil {
		return err
	}
	do := map[string]func(*kind) error{
		"get": a.get, "list": a.list, "watch": a.watch, "create": a.create, "update": a.update, "patch": a.patch,
		"delete": a.delete, "deletecollection": a.deleteCollection,
	}[i.Verb]
	if do == nil || i.Name == "" && slices.Contains([]string{"get", "update", "patch", "delete"}, i.Verb) {
		return apierrors.NewMethodNotSupported(k.groupResource(), i.Verb)
	}
	return do(k)
}

func (a *answer) key() key { return key{a.about.Namespace, a.about.Name} }

func (a *answer) get(k *kind) error {
	o := a.server.store.get(k.groupResource(), a.key())
	if o == nil {
		return apierrors.NewNotFound(k.groupResource(), a.about.Name)
	}
	return a.object(http.StatusOK, k, o)
}

// write returns the write that a request asks for. It parses the query as patch options, which
// include all options of creates and updates.
func (a *answer) write(k *kind) (*write, *metav1.PatchOptions, error) {
	o := &metav1.PatchOptions{}
	query := a.r.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_PatchOptions(&query, o, nil); err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if len(o.DryRun) > 0 && (len(o.DryRun) > 1 || o.DryRun[0] != metav1.DryRunAll) {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("dryRun: Unsupported value: %q: supported values: %q", o.DryRun, metav1.DryRunAll))
	}
	manager := o.FieldManager
	if manager == "" {
		manager, _, _ = strings.Cut(a.r.UserAgent(), "/")
	}
	return &write{k: k, key: a.key(), status: a.about.Subresource == "status", manager: manager, dryRun: len(o.DryRun) > 0}, o, nil
}

// sent returns the write and the object in the body of a create or update.
func (a *answer) sent(k *kind) (*write, map[string]any, error) {
	w, _, err := a.write(k)
	if err != nil {
		return nil, nil, err
	}
	content, err := a.body(k)
	return w, content, err
}

// inNamespace returns an error if the namespace of a new object does not exist.
func (a *answer) inNamespace(k *kind) error {
	if !k.namespaced {
		return nil
	}
	ns := a.server.store.get(namespaces.GroupResource(), key{"", a.about.Namespace})
	if ns == nil {
		return apierrors.NewNotFound(namespaces.GroupResource(), a.about.Namespace)
	}
	return nil
}

func (a *answer) create(k *kind) error {
	w, content, err := a.sent(k)
	if err != nil {
		return err
	}
	u := unstructured.Unstructured{Object: content}
	if u.GetResourceVersion() != "" {
		return apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	w.key.name = u.GetName()
	if w.key.name == "" && u.GetGenerateName() != "" {
		w.key.name = fmt.Sprintf("%s%05x", u.GetGenerateName(), mix(uint64(a.server.fleet.now().UnixNano()))&0xfffff) //nolint:gosec // any number
	}
	if w.key.name == "" {
		return apierrors.NewInvalid(k.GroupKind(), "", nil)
	}
	if err := w.named(content); err != nil {
		return err
	}
	w.claimed(content)
	w.uid = ""
	if err := a.inNamespace(k); err != nil {
		return err
	}
	return a.change(http.StatusCreated, w, func(now *object) (*body, error) {
		if now != nil {
			return nil, apierrors.NewAlreadyExists(k.groupResource(), w.key.name)
		}
		return a.server.replaced(w, nil, content)
	})
}

// change stores the computed body, and answers with the object.
func (a *answer) change(code int, w *write, compute computed) error {
	o, _, err := a.server.change(w, compute)
	if err != nil {
		return err
	}
	return a.object(code, w.k, o)
}

func (a *answer) update(k *kind) error {
	w, content, err := a.sent(k)
	if err != nil {
		return err
	}
	if err := w.named(content); err != nil {
		return err
	}
	w.claimed(content)
	w.whole = true
	return a.change(http.StatusOK, w, func(now *object) (*body, error) {
		switch {
		case now == nil:
			return nil, apierrors.NewNotFound(k.groupResource(), w.key.name)
		case w.version == "" && mustNameVersion(k):
			return nil, mustBeSpecified(k, w.key.name)
		}
		return a.server.replaced(w, now, content)
	})
}

func (a *answer) delete(k *kind) error {
	o, err := a.deleteOptions()
	if err != nil {
		return err
	}
	last, gone, err := a.server.delete(k, a.key(), o)
	if err != nil {
		return err
	}
	if !gone {
		return a.object(http.StatusOK, k, last)
	}
	return a.status(&metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: last.name, Group: k.Group, Kind: k.resource, UID: uidOf(last),
	}})
}

func (a *answer) deleteCollection(k *kind) error {
	var lo metav1.ListOptions
	query := url.Values{"labelSelector": a.r.URL.Query()["labelSelector"], "fieldSelector": a.r.URL.Query()["fieldSelector"]}
	if err := metav1.Convert_url_Values_To_v1_ListOptions(&query, &lo, nil); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	chosen, err := newSelection(k, a.about.Namespace, &lo)
	if err != nil {
		return err
	}
	o, err := a.deleteOptions()
	if err != nil {
		return err
	}
	objects, _ := a.server.store.list(k.groupResource())
	for _, one := range objects {
		if !chosen.matches(one) {
			continue
		}
		if _, _, err := a.server.delete(k, one.key, o); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return a.status(&metav1.Status{Status: metav1.StatusSuccess})
}

// allow answers that everything is permitted, because the simulation has no authorization.
func (a *answer) allow() error {
	var review map[string]any
	data, err := a.read()
	if err == nil {
		review, err = a.decode(data, schema.GroupVersionKind{Group: "authorization.k8s.io", Version: "v1", Kind: "SelfSubjectAccessReview"})
	}
	if err != nil {
		return err
	}
	review["status"] = map[string]any{"allowed": true, "reason": "simulated"}
	a.plain(http.StatusCreated, runtime.ContentTypeJSON, review)
	return nil
}

// patience is how long a watch lasts if the client sets no timeout.
const patience = 30 * time.Minute
