package applier_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/renderer/redact"
)

// The redactor knows the Secrets of a plan as they are wanted and as they are,
// and forgets them with the cluster.
func TestHidden(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", `{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: NS}, stringData: {password: wanted-password}}`)
	w.apply(want)
	_, err := w.resource(secrets).Patch(t.Context(), "s", types.MergePatchType,
		[]byte(`{"stringData": {"token": "found-token", "password": "found-password"}}`), metav1.PatchOptions{FieldManager: "vault"})
	if err != nil {
		t.Fatal(err)
	}
	hidden := redact.New()
	c, err := applier.New(applier.Options{Name: "test", Config: server, Redactor: hidden})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Plan(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	const said = "wanted-password found-password found-token Zm91bmQtdG9rZW4="
	if got := hidden.Text(said); got != "*** *** *** ***" {
		t.Errorf("got %s", got)
	}
	c.Close()
	if n := hidden.Forms(); n != 0 || hidden.Text(said) != said {
		t.Errorf("%d forms are left", n)
	}
}
