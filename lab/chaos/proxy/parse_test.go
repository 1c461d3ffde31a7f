package proxy

import (
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why, method, url string
		want             Request
	}{
		"Core": {
			why: "The core group has no name.", method: "GET", url: "/api/v1/namespaces/a/pods/p",
			want: Request{Verb: "get", Version: "v1", Namespace: "a", Resource: "pods", Name: "p"},
		},
		"Apply": {
			why: "Server-side apply is a patch.", method: "PATCH", url: "/apis/apps/v1/namespaces/a/deployments/d?fieldManager=x&force=true",
			want: Request{Verb: "patch", Group: "apps", Version: "v1", Namespace: "a", Resource: "deployments", Name: "d", FieldManager: "x"},
		},
		"DryRun": {
			why: "A dry run changes nothing.", method: "PATCH", url: "/apis/apps/v1/namespaces/a/deployments/d?dryRun=All",
			want: Request{Verb: "patch", Group: "apps", Version: "v1", Namespace: "a", Resource: "deployments", Name: "d", DryRun: true},
		},
		"Subresource": {
			why: "Scale is told from its object.", method: "PUT", url: "/apis/apps/v1/namespaces/a/deployments/d/scale",
			want: Request{Verb: "update", Group: "apps", Version: "v1", Namespace: "a", Resource: "deployments", Name: "d", Subresource: "scale"},
		},
		"Watch": {
			why: "A watch is a list with a parameter.", method: "GET", url: "/apis/apps/v1/deployments?watch=true&resourceVersion=1",
			want: Request{Verb: "watch", Group: "apps", Version: "v1", Resource: "deployments"},
		},
		"WatchOff": {
			why: "Unless it says false.", method: "GET", url: "/apis/apps/v1/deployments?watch=false",
			want: Request{Verb: "list", Group: "apps", Version: "v1", Resource: "deployments"},
		},
		"Namespace": {
			why: "A Namespace is a resource without one.", method: "GET", url: "/api/v1/namespaces/a",
			want: Request{Verb: "get", Version: "v1", Resource: "namespaces", Name: "a"},
		},
		"NamespaceStatus": {
			why: "And so are its subresources.", method: "PUT", url: "/api/v1/namespaces/a/finalize",
			want: Request{Verb: "update", Version: "v1", Resource: "namespaces", Name: "a", Subresource: "finalize"},
		},
		"Collection": {
			why: "A delete without a name takes all.", method: "DELETE", url: "/api/v1/namespaces/a/pods",
			want: Request{Verb: "deletecollection", Version: "v1", Namespace: "a", Resource: "pods"},
		},
		"Discovery": {
			why: "A group's document is no resource.", method: "GET", url: "/apis/apps/v1",
			want: Request{Verb: "get"},
		},
		"OpenAPI": {
			why: "Nor is a schema.", method: "GET", url: "/openapi/v3/apis/apps/v1",
			want: Request{Verb: "get"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequestWithContext(t.Context(), tc.method, tc.url, nil)
			tc.want.User, tc.want.Method, tc.want.Path = "u", tc.method, r.URL.Path
			if diff := cmp.Diff(tc.want, parse(r, "u")); diff != "" {
				t.Errorf("%s\n%s", tc.why, diff)
			}
		})
	}
}
