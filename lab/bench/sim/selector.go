package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// selectable returns the fields by which objects of a kind can be selected, besides name and
// namespace.
func selectable(kind string) []string {
	switch kind {
	case "Event":
		return []string{
			"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid", "involvedObject.apiVersion",
			"involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
		}
	case "Pod":
		return []string{"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase", "status.podIP"}
	case "Secret":
		return []string{"type"}
	case "Namespace":
		return []string{"status.phase"}
	}
	return nil
}

// selection holds the selectors of a list or watch.
type selection struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

func newSelection(k *kind, namespace string, o *metav1.ListOptions) (*selection, error) {
	s := &selection{namespace: namespace}
	var err error
	if s.labels, err = labels.Parse(o.LabelSelector); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("unable to parse requirement: %v", err))
	}
	if s.fields, err = fields.ParseSelector(o.FieldSelector); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, r := range s.fields.Requirements() {
		if r.Field != "metadata.name" && r.Field != "metadata.namespace" && !slices.Contains(selectable(k.Kind), r.Field) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only %q, %q", r.Field, "metadata.name", "metadata.namespace"))
		}
	}
	return s, nil
}

func (s *selection) matches(o *object) bool {
	return (s.namespace == "" || o.namespace == s.namespace) && s.labels.Matches(labels.Set(o.labels)) && s.fields.Matches(objectFields{o})
}

// objectFields gives access to the fields of an object for [fields.Selector].
type objectFields struct{ *object }

// Has implements [fields.Fields].
func (o objectFields) Has(path string) bool { return o.Get(path) != "" }

// Get implements [fields.Fields]. It returns the value of a field as text.
func (o objectFields) Get(path string) string {
	switch path {
	case "metadata.name":
		return o.name
	case "metadata.namespace":
		return o.namespace
	}
	content, err := o.content()
	if err != nil {
		return ""
	}
	value, _, _ := unstructured.NestedFieldNoCopy(content, strings.Split(path, ".")...)
	switch v := value.(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	}
	return ""
}
