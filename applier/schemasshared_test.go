package applier_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apiservertest"
)

// reads counts the OpenAPI documents that are read.
type reads struct {
	next  http.RoundTripper
	count *atomic.Int64
}

func (r reads) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasPrefix(req.URL.Path, "/openapi/v3/") {
		r.count.Add(1)
	}
	return r.next.RoundTrip(req)
}

// Real API servers publish the digest of what they serve, so a second cluster of the same
// version reads no document.
func TestSchemasAreShared(t *testing.T) {
	t.Parallel()
	apiservertest.Need(t, server)
	cache := applier.NewShared()
	core := schema.GroupVersion{Version: "v1"}
	for i, want := range []int64{2, 0} {
		var count atomic.Int64
		config := rest.CopyConfig(server)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return reads{next, &count} })
		c, err := applier.New(applier.Options{Name: fmt.Sprint(i), Config: config, Shared: cache})
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.SchemasFor(t.Context(), core, schema.GroupVersion{Group: "apps", Version: "v1"})
		if err != nil || len(got) != 2 {
			t.Fatalf("%d schemas, %v", len(got), err)
		}
		if count.Load() != want {
			t.Errorf("cluster %d reads %d documents, want %d", i, count.Load(), want)
		}
	}
}
