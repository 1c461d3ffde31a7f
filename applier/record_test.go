package applier_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/applier/records"
)

// bodyOf reads a request's body and leaves it as it was.
func bodyOf(r *http.Request) []byte {
	if r.Body == nil {
		return nil
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil // and the server gets what was read, which it refuses
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	return data
}

// Records of format 1 are read, those of a later Keelson are not.
func TestFormats(t *testing.T) {
	const content = `"component":"COMPONENT","version":"v1","tree":"tree of v1","objects":[{"kind":"ConfigMap","namespace":"NS","name":"a","apiVersion":"v1",` +
		`"content":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"NS"}},"intended":true}]}`
	cases := map[string]struct {
		why, record, wrong string
		intent             records.Intent
	}{
		"One":    {"Objects that were intended had the intent to be created.", `{"format":1,` + content, "", records.IntentCreate},
		"Later":  {"What a later version means can't be known.", `{"format":3,` + content, "upgrade Keelson", ""},
		"None":   {"It is no record.", `{` + content, "format 0", ""},
		"Broken": {"It was cut off.", `{"format":1,"component"`, "decode", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.apply(w.want("v1", configMap("a", "x")))
			var packed bytes.Buffer
			z := gzip.NewWriter(&packed)
			_, err := z.Write([]byte(strings.NewReplacer("NS", w.ns, "COMPONENT", w.component).Replace(c.record)))
			if err != nil || z.Close() != nil {
				t.Fatal(err)
			}
			client := w.dynamic.Resource(secrets).Namespace("keelson-system")
			u, err := client.Get(t.Context(), "record-"+w.component, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			u.Object["data"] = map[string]any{"record": base64.StdEncoding.EncodeToString(packed.Bytes())}
			if _, err := client.Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.reconnect()
			r, err := w.cluster.Record(t.Context(), w.component)
			switch {
			case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
				t.Errorf("%s error is %v, want one with %q", c.why, err, c.wrong)
			case c.wrong == "" && err != nil:
				t.Fatal(err)
			case c.wrong == "":
				if r.Objects[0].Intent != c.intent {
					t.Errorf("%s intent is %q", c.why, r.Objects[0].Intent)
				}
				want := w.want("v1", configMap("a", "x"))
				w.apply(want)
				w.settled(want)
			}
		})
	}
}
