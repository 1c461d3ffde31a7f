package cmd_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// TestApplyTidies renames a component. The record of the old name goes with the apply. If another
// writer changes that record meanwhile, the apply succeeds, says so, and a later apply tidies.
func TestApplyTidies(t *testing.T) {
	c := live(t)
	f := newFleet(t, "tidies")
	f.keelson("apply", "prod", "gadgets", "--yes").want(t, 0)
	f.git("mv", "components/gadgetstidies", "components/renamedtidies")
	f.edit("layers/10-base.yaml", "  gadgets:", "  renamedtidies:")
	f.git("rm", "-q", "-r", "components/webtidies", "clusters/prod/webtidies.yaml")
	f.edit("layers/10-base.yaml", "  web:\n    version: v1.0.0\n    values:\n      replicas: 2\n", "")
	f.commit()
	f.tag("renamedtidies/v1.0.0")

	records := func() string {
		list, err := c.CoreV1().Secrets("keelson-system").List(t.Context(), metav1.ListOptions{LabelSelector: "keelson.io/record in (gadgetstidies,renamedtidies)"})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return strings.Join(names, " ")
	}
	direct := f.kubeconfig
	f.kubeconfig = beside(t, c, "record-gadgetstidies")
	f.keelson("apply", "prod", "--yes").want(t, 0).says(t, "renamedtidies v1.0.0 synced",
		"keelson: component gadgets is not in git, and another writer changed its record meanwhile: it stays as it is until the next apply")
	if got := records(); got != "record-gadgetstidies record-renamedtidies" {
		t.Errorf("the records are %s, want both: the old one was another writer's", got)
	}
	f.kubeconfig = direct
	f.keelson("apply", "prod", "--yes").want(t, 0).saysNot(t, "another writer")
	if got := records(); got != "record-renamedtidies" {
		t.Errorf("the records are %s, want that of the new name", got)
	}
}

// beside returns a kubeconfig of the shared API server, behind which another writer changes a Secret
// of Keelson's before each write to it.
func beside(t *testing.T, c kubernetes.Interface, secret string) string {
	t.Helper()
	transport, err := rest.TransportFor(server)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(server.Host)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		if r.In.Method != http.MethodGet && strings.HasSuffix(r.In.URL.Path, "/secrets/"+secret) {
			_, _ = c.CoreV1().Secrets("keelson-system").Patch(r.In.Context(), secret, types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"example.com/changed":"`+r.In.Method+`"}}}`), metav1.PatchOptions{})
		}
		r.SetURL(target)
	}})
	t.Cleanup(func() { front.CloseClientConnections(); front.Close() })
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfigOf(front.URL), path); err != nil {
		t.Fatal(err)
	}
	return path
}
