package livecache_test

import (
	"net/http"
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier/apiservertest"
)

// server is the API server of this package's tests; nil in -short runs.
var server *rest.Config

// patience is how long a test waits for an event.
const patience = 3 * time.Minute

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

func TestMain(m *testing.M) {
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { server = config }))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
