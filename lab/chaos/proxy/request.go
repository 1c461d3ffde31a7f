package proxy

import (
	"net/http"
	"slices"
	"strings"
)

// Request is the input of the function of [Proxy.Use].
type Request struct {
	User      string // a key of Options.Upstream
	UserAgent string
	Method    string // HTTP method
	Path      string
	// Verb of Kubernetes: get, list, watch, create, update, patch, delete,
	// deletecollection. For a path that isn't a resource, the method in lower case.
	Verb string
	// The resource. Empty for a path that isn't a resource, such as /openapi/v3.
	Group, Version, Resource, Subresource, Namespace, Name string
	// PatchType is the content type of a patch: application/apply-patch+yaml …
	PatchType string
	// FieldManager of a write, from the query.
	FieldManager string
	DryRun       bool
	// Body of a write, if Options.Bodies is set. It must not be changed.
	Body []byte
}

// Watch reports whether the request is a watch.
func (r Request) Watch() bool { return r.Verb == "watch" }

// Write reports whether the verb of the request changes objects. A dry run counts.
func (r Request) Write() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, r.Verb)
}

// parse reads a request as an API server does: /api/VERSION or
// /apis/GROUP/VERSION, then [namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]].
func parse(r *http.Request, user string) Request {
	query := r.URL.Query()
	out := Request{
		User: user, UserAgent: r.UserAgent(), Method: r.Method, Path: r.URL.Path,
		Verb: strings.ToLower(r.Method), FieldManager: query.Get("fieldManager"), DryRun: query.Get("dryRun") == "All",
	}
	if r.Method == http.MethodPatch {
		out.PatchType = r.Header.Get("Content-Type")
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		out.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		out.Group, out.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return out
	}
	// A Namespace and its subresources status and finalize are not namespaced.
	if parts[0] == "namespaces" && len(parts) >= 3 && !slices.Contains([]string{"status", "finalize"}, parts[2]) {
		out.Namespace, parts = parts[1], parts[2:]
	}
	out.Resource = parts[0]
	if len(parts) > 1 {
		out.Name = parts[1]
	}
	if len(parts) > 2 {
		out.Subresource = strings.Join(parts[2:], "/")
	}
	out.Verb = verb(r, out.Name != "")
	return out
}

func verb(r *http.Request, named bool) string {
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodDelete:
		if named {
			return "delete"
		}
		return "deletecollection"
	case http.MethodGet, http.MethodHead:
		switch watch := r.URL.Query().Get("watch"); {
		case watch == "true" || watch == "1":
			return "watch"
		case named:
			return "get"
		default:
			return "list"
		}
	default:
		return strings.ToLower(r.Method)
	}
}
