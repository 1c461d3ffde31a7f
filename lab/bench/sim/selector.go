package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
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

func newSelection(k *kind, namespace string, o *metav1.ListOptions) (*selectionOf, error) {
	s := &selectionOf{namespace: namespace, fields: map[string]string{}, not: map[string]string{}}
	var err error
	if s.labels, err = labels.Parse(o.LabelSelector); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("unable to parse requirement: %v", err))
	}
	chosen, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, r := range chosen.Requirements() {
		if r.Field != "metadata.name" && r.Field != "metadata.namespace" && !slices.Contains(selectable(k.Kind), r.Field) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only %q, %q", r.Field, "metadata.name", "metadata.namespace"))
		}
		if r.Operator == selection.NotEquals {
			s.not[r.Field] = r.Value
		} else {
			s.fields[r.Field] = r.Value
		}
	}
	return s, nil
}

// field returns the value of a field as text.
func (o *object) field(path string) string {
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
	for part := range strings.SplitSeq(path, ".") {
		switch v := content[part].(type) {
		case map[string]any:
			content = v
		case string:
			return v
		case int64:
			return strconv.FormatInt(v, 10)
		default:
			return ""
		}
	}
	return ""
}
