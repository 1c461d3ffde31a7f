package hubstatus

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
)

// server is the API server of this package's tests; nil in -short runs.
var server *rest.Config

func TestMain(m *testing.M) {
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { server = config }))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The Deliveries of a hub are read page by page, all of them, and the list has a version to watch
// from.
func TestDeliveriesInPages(t *testing.T) {
	t.Parallel()
	apiservertest.Need(t, server)
	var requests atomic.Int32
	config := rest.CopyConfig(server)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			requests.Add(1)
			return next.RoundTrip(r)
		})
	})
	w, err := New(Options{Hub: config, Now: time.Now, PageSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Prepare(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 5 {
		name := fmt.Sprintf("paged.component-%d", i)
		d := &v1alpha1.Delivery{ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.Namespace, Name: name, Labels: map[string]string{v1alpha1.LabelCluster: "paged"},
		}}
		if err := w.client.Create(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
	}

	requests.Store(0)
	var got []string
	version, err := w.list(t.Context(), func(d *v1alpha1.Delivery, _ *known) { got = append(got, d.Name) }, client.MatchingLabels{v1alpha1.LabelCluster: "paged"})
	if err != nil || version == "" || !slices.Equal(got, want) {
		t.Errorf("%v at version %q, %v; want %v", got, version, err, want)
	}
	if n := requests.Load(); n != 3 {
		t.Errorf("5 in pages of 2 took %d requests", n)
	}
}
