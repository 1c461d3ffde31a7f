package renderer

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/engine"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic" //nolint:depguard // Helm's interface is made of its types; nothing here talks to a cluster
)

// lookups replaces the client that Helm expects: it answers every lookup with "not found", which
// templates see as an empty map, and records it.
type lookups struct {
	asked []string
}

var _ engine.ClientProvider = (*lookups)(nil)

// GetClientFor implements [engine.ClientProvider].
func (l *lookups) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return &emptyResource{lookups: l, what: apiVersion + " " + kind}, true, nil
}

// emptyResource has no object. Helm calls only the methods below.
type emptyResource struct {
	dynamic.NamespaceableResourceInterface
	lookups   *lookups
	what      string
	namespace string
}

func (r *emptyResource) Namespace(ns string) dynamic.ResourceInterface {
	return &emptyResource{lookups: r.lookups, what: r.what, namespace: ns + "/"}
}

func (r *emptyResource) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	r.lookups.asked = append(r.lookups.asked, r.what+" "+r.namespace+name)
	return nil, notFound(name)
}

func (r *emptyResource) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	r.lookups.asked = append(r.lookups.asked, r.what+" "+r.namespace+"*")
	return nil, notFound("*")
}

// notFound returns an error that Helm recognizes with apierrors.IsNotFound.
func notFound(name string) *apierrors.StatusError {
	return apierrors.NewNotFound(schema.GroupResource{}, name)
}

// warnings returns a warning for each template line with a lookup. Helm doesn't say which line
// asked, so every such line is named, but none if the render asked nothing.
func (l *lookups) warnings(c *loadedChart) []string {
	if len(l.asked) == 0 {
		return nil
	}
	slices.Sort(l.asked)
	asked := strings.Join(slices.Compact(l.asked), ", ")
	var out []string
	for _, src := range c.templates {
		for _, line := range callLines(src.text, "lookup") {
			out = append(out, fmt.Sprintf("%s: lookup is answered empty, as helm template does (asked for %s)",
				chartPosition(c.version, src.file, line), asked))
		}
	}
	return out
}

// callLines returns the lines of a template on which an action calls a function.
func callLines(text, function string) []int {
	action := regexp.MustCompile(`(?s)\{\{.*?\}\}`)
	// Strings and comments may look like a call.
	quiet := regexp.MustCompile("(?s)/\\*.*?\\*/|\"(?:[^\"\\\\\n]|\\\\.)*\"|`[^`]*`")
	call := regexp.MustCompile(`(?:^|[^\w.$"])(` + regexp.QuoteMeta(function) + `)(?:[^\w]|$)`)
	var lines []int
	for _, a := range action.FindAllStringIndex(text, -1) {
		body := quiet.ReplaceAllStringFunc(text[a[0]:a[1]], blank)
		for _, m := range call.FindAllStringSubmatchIndex(body, -1) {
			lines = append(lines, 1+strings.Count(text[:a[0]+m[2]], "\n"))
		}
	}
	return slices.Compact(lines)
}

// blank replaces everything but line ends by spaces, so that offsets stay valid.
func blank(s string) string {
	b := []byte(s)
	for i := range b {
		if b[i] != '\n' {
			b[i] = ' '
		}
	}
	return string(b)
}
