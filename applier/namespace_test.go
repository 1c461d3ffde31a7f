package applier_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
)

// TestNamespace says what the namespace of a component costs, and that a request
// is refused neither where Keelson may create any nor where it may not.
func TestNamespace(t *testing.T) {
	everything := []string{"get", "list", "create", "update", "patch", "delete"}
	cases := map[string]struct {
		why             string
		there, may, end bool
		want            []string
		wantErr         bool
	}{
		"New":           {why: "It is created, and not looked for first.", may: true, want: []string{"POST 201"}},
		"There":         {why: "The answer says that it exists.", there: true, may: true, want: []string{"POST 409"}},
		"Granted":       {why: "Who grants the printed rights makes it; Keelson looks for it and creates none.", there: true, want: []string{"GET 200"}},
		"Ending":        {why: "What belongs there is created when it is gone; that passes.", there: true, may: true, end: true, want: []string{"POST 409"}, wantErr: true},
		"EndingGranted": {why: "As above, where it is looked for.", there: true, end: true, want: []string{"GET 200"}, wantErr: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			other := *w // its accounts stand in a namespace of their own
			other.ns = w.ns + "-accounts"
			other.allow("none", other.deployer())
			rules := []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"}, Verbs: everything},
				{APIGroups: []string{"autoscaling", "autoscaling.k8s.io", "keda.sh"}, Resources: []string{"*"}, Verbs: everything},
				{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}},
			}
			if c.may {
				rules[2].Verbs = append(rules[2].Verbs, "create")
			}
			namespaces := w.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
			if c.there {
				if err := w.namespace(); err != nil {
					t.Fatal(err)
				}
			}
			config := rest.CopyConfig(other.serviceAccount("keelson", rules...))
			var mu sync.Mutex
			var asked []string
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					about := strings.HasSuffix(r.URL.Path, "/namespaces/"+w.ns)
					if strings.HasSuffix(r.URL.Path, "/namespaces") {
						about = bytes.Contains(bodyOf(r), []byte(`"`+w.ns+`"`))
					}
					answer, err := next.RoundTrip(r)
					if err == nil && about {
						mu.Lock()
						defer mu.Unlock()
						asked = append(asked, fmt.Sprint(r.Method, " ", answer.StatusCode))
					}
					return answer, err
				})
			})
			w.connect(config)
			if c.end {
				if err := namespaces.Delete(t.Context(), w.ns, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			_, err := w.cluster.Apply(t.Context(), w.plan(w.want("v1", accountMap)), applier.ApplyOptions{Now: time.Unix(1, 0)})
			if !c.wantErr && err != nil || c.wantErr && !errors.As(err, new(*applier.TerminatingError)) {
				t.Errorf("%s\ngot %v", c.why, err)
			}
			if c.wantErr && applier.Refused(err) {
				t.Errorf("%s\n%v is no refusal", c.why, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(c.want, asked); diff != "" {
				t.Errorf("%s\nrequests about the namespace, -want +got:\n%s", c.why, diff)
			}
		})
	}
}
