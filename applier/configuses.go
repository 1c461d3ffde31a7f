package applier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/applier/pages"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer/configversion"
)

const (
	// usePage is how many objects one request reads, and useLimit the most of a kind that are read in
	// a namespace.
	usePage, useLimit = 250, 20_000
	// useNames bounds the references that are kept of a namespace.
	useNames = 50_000
	// usesAge is how long references are kept and reused. A deletion always reads them again.
	usesAge = time.Minute
)

// configRef is a reference to a ConfigMap or Secret of a namespace.
type configRef struct{ kind, name string }

// configUses are the references in one namespace, each with the first object that has it.
type configUses struct {
	by map[configRef]string
	// unknown is why the references are not known; empty: they are.
	unknown string
}

// of returns which object refers to a ConfigMap or Secret; empty: none does.
func (u configUses) of(ref configRef) string {
	if u.unknown != "" {
		return "it is not known whether a pod or a kept revision refers to it: " + u.unknown
	}
	if user := u.by[ref]; user != "" {
		return user + " refers to it"
	}
	return ""
}

// useReader reads which pods and revisions refer to ConfigMaps and Secrets. It is safe for
// concurrent use.
type useReader struct {
	client dynamic.Interface

	mu    sync.Mutex
	known map[string]configUses // by namespace
}

func newUseReader(client dynamic.Interface) *useReader {
	return &useReader{client: client, known: map[string]configUses{}}
}

// in returns the references in a namespace. fresh: they are read again. If Keelson may not list a
// kind, or there is too much of it, they are unknown; another failure is an error.
func (r *useReader) in(ctx context.Context, namespace string, fresh bool) (configUses, error) {
	if uses, ok := r.cached(namespace); ok && !fresh {
		return uses, nil
	}
	uses := configUses{by: map[configRef]string{}}
	for _, resource := range configversion.UserResources() {
		err := r.read(ctx, namespace, resource, uses.by)
		if apierrors.IsForbidden(err) || errors.Is(err, errManyUses) {
			uses = configUses{unknown: err.Error()}
			break
		}
		if err != nil {
			return configUses{}, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[namespace] = uses
	time.AfterFunc(usesAge, func() { r.forget(namespace) })
	return uses, nil
}

func (r *useReader) cached(namespace string) (configUses, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	uses, ok := r.known[namespace]
	return uses, ok
}

func (r *useReader) forget(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, namespace)
}

func (r *useReader) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known)
}

var errManyUses = errors.New("it has too many objects or references")

// read adds the references of all objects of a kind.
func (r *useReader) read(ctx context.Context, namespace string, resource schema.GroupVersionResource, into map[configRef]string) error {
	what := resource.Resource + " in namespace " + namespace
	seen := 0
	return pages.Each(what, usePage, useLimit+usePage, func(o metav1.ListOptions) (int, string, error) {
		page, err := r.client.Resource(resource).Namespace(namespace).List(ctx, o)
		if err != nil {
			return 0, "", fmt.Errorf("list %s: %w", what, err)
		}
		for i := range page.Items {
			user := page.Items[i].GetKind() + " " + page.Items[i].GetName()
			addUses(page.Items[i].Object, user, into)
		}
		if seen += max(1, len(page.Items)); seen > useLimit || len(into) > useNames {
			return 0, "", fmt.Errorf("list %s: %w", what, errManyUses)
		}
		return len(page.Items), page.GetContinue(), nil
	})
}

func addUses(object map[string]any, user string, into map[configRef]string) {
	for _, ref := range configversion.References(object) {
		key := configRef{kind: ref.Kind, name: ref.Name}
		if into[key] == "" {
			into[key] = user
		}
	}
}

// readUses reads what refers to the earlier versions of ConfigMaps and Secrets that the plan would
// delete, and compares again.
func (pl *planner) readUses(ctx context.Context, p *Prepared) error {
	if !p.Plan.Unread().Uses {
		return nil
	}
	unread := func(i int) bool { return p.Plan.Changes[i].Unread.Uses }
	fresh := map[string]bool{} // by namespace
	for i := range p.states {
		if id := p.states[i].ID; unread(i) {
			fresh[id.Namespace] = fresh[id.Namespace] || p.due(id)
		}
	}
	own := p.ownUses()
	for _, namespace := range slices.Sorted(maps.Keys(fresh)) {
		others, err := pl.uses.in(ctx, namespace, fresh[namespace])
		if err != nil {
			return err
		}
		for i := range p.states {
			if s := &p.states[i]; unread(i) && s.ID.Namespace == namespace {
				ref := configRef{kind: s.ID.Kind, name: s.ID.Name}
				s.Used, s.UseRead = cmp.Or(own[namespace].of(ref), others.of(ref)), true
			}
		}
	}
	return p.compare(ctx)
}

// ownUses returns the references of the component's live objects, by namespace.
func (p *Prepared) ownUses() map[string]configUses {
	out := map[string]configUses{}
	for i := range p.states {
		s := &p.states[i]
		if s.Live == nil {
			continue
		}
		in := s.ID.Namespace
		if out[in].by == nil {
			out[in] = configUses{by: map[configRef]string{}}
		}
		addUses(s.Live, s.ID.String(), out[in].by)
	}
	return out
}

// usesNothing says that the earlier versions of an absent component go with it.
func usesNothing(states []differ.State) {
	for i := range states {
		states[i].UseRead = true
	}
}
