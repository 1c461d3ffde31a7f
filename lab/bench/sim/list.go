package sim

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"sort"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// token is the content of a continue token: as in API servers, but with other field names.
type token struct {
	Version  uint64 `json:"rv"`
	After    string `json:"after"` // namespace of the last object that was sent; AfterOne is its name
	AfterOne string `json:"name"`
}

func (a *answer) listOptions() (*metav1.ListOptions, error) {
	o := &metav1.ListOptions{}
	query := a.r.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_ListOptions(&query, o, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return o, nil
}

func (a *answer) list(k *kind) error {
	o, err := a.listOptions()
	if err != nil {
		return err
	}
	chosen, err := newSelection(k, a.about.Namespace, o)
	if err != nil {
		return err
	}
	objects, version, err := a.listed(k, o)
	if err != nil {
		return err
	}
	list := metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)}
	found := make([]*object, 0, len(objects))
	for _, one := range objects {
		if chosen.matches(one) {
			found = append(found, one)
		}
	}
	if n := o.Limit; n > 0 && int64(len(found)) > n {
		if list.Continue, err = a.goesOn(k, found[n-1], version, objects, o.Continue == ""); err != nil {
			return err
		}
		if o.LabelSelector == "" && o.FieldSelector == "" {
			list.RemainingItemCount = new(int64(len(found)) - n)
		}
		found = found[:n]
	}
	return a.objects(k, list, found)
}

// listed returns the objects of a kind: the current ones, or the list at the start of a paged read.
func (a *answer) listed(k *kind, o *metav1.ListOptions) ([]*object, uint64, error) {
	gr := k.groupResource()
	if o.Continue != "" {
		var t token
		data, err := base64.RawURLEncoding.DecodeString(o.Continue)
		if err == nil {
			err = json.Unmarshal(data, &t)
		}
		if err != nil {
			return nil, 0, apierrors.NewBadRequest(fmt.Sprintf("continue key is not valid: %v", err))
		}
		objects, ok := a.server.store.listAt(gr, t.Version)
		if !ok {
			return nil, 0, apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
				"You can start a new list without the continue parameter.")
		}
		last := key{t.After, t.AfterOne}
		at := sort.Search(len(objects), func(i int) bool { return objects[i].compare(last) > 0 })
		return objects[at:], t.Version, nil
	}
	objects, version := a.server.store.list(gr)
	wanted, err := versionOf(o.ResourceVersion)
	switch {
	case err != nil:
		return nil, 0, err
	case wanted > version:
		return nil, 0, storage.NewTooLargeResourceVersionError(wanted, version, 1) //nolint:wrapcheck // it is the answer
	case o.ResourceVersionMatch == metav1.ResourceVersionMatchExact && wanted != version:
		kept, ok := a.server.store.listAt(gr, wanted)
		if !ok {
			return nil, 0, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d", wanted))
		}
		return kept, wanted, nil
	}
	return objects, version, nil
}

func versionOf(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q: %v", text, err))
	}
	return v, nil
}

// goesOn returns the continue token for the next page. The first page stores the list.
func (a *answer) goesOn(k *kind, last *object, version uint64, all []*object, first bool) (string, error) {
	if first {
		a.server.store.keep(page{of: k.groupResource(), version: version, objects: all})
	}
	data, err := json.Marshal(token{Version: version, After: last.namespace, AfterOne: last.name})
	if err != nil {
		return "", fmt.Errorf("encode where a list goes on: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(data), nil
}

// objects sends a list in the negotiated encoding.
func (a *answer) objects(k *kind, list metav1.ListMeta, found []*object) error {
	if !a.protobuf && !a.partial {
		return a.texts(k, list, found)
	}
	items := make([]runtime.Object, len(found))
	for i, o := range found {
		var err error
		if items[i], err = a.convert(k, o); err != nil {
			return err
		}
	}
	var out runtime.Object = &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
	if !a.partial {
		gvk := k.GroupVersion().WithKind(k.Kind + "List")
		var err error
		if out, err = typed.New(gvk); err != nil {
			return fmt.Errorf("list %s: %w", k.Kind, err)
		}
		out.GetObjectKind().SetGroupVersionKind(gvk)
	}
	if err := meta.SetList(out, items); err != nil {
		return fmt.Errorf("list %s: %w", k.Kind, err)
	}
	m, err := meta.ListAccessor(out)
	if err != nil {
		return fmt.Errorf("list %s: %w", k.Kind, err)
	}
	m.SetResourceVersion(list.ResourceVersion)
	m.SetContinue(list.Continue)
	m.SetRemainingItemCount(list.RemainingItemCount)
	return a.typed(http.StatusOK, out)
}

// texts sends a list as JSON.
func (a *answer) texts(k *kind, list metav1.ListMeta, found []*object) error {
	head, err := json.Marshal(struct {
		metav1.TypeMeta
		Metadata metav1.ListMeta `json:"metadata"`
	}{metav1.TypeMeta{APIVersion: k.GroupVersion().String(), Kind: k.Kind + "List"}, list})
	if err != nil {
		return fmt.Errorf("encode a list: %w", err)
	}
	out := append(head[:len(head)-1], `,"items":[`...)
	for i, o := range found {
		if i > 0 {
			out = append(out, ',')
		}
		out = o.append(out)
	}
	a.send(http.StatusOK, runtime.ContentTypeJSON, append(out, "]}"...))
	return nil
}
