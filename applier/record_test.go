package applier_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/applier"
)

// noise is a text that does not compress.
func noise(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, seed))
	data := make([]byte, n*3/4)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return base64.StdEncoding.EncodeToString(data)
}

// parts are the Secrets that the record is continued in.
func (w *world) parts() []unstructured.Unstructured {
	w.t.Helper()
	list, err := w.dynamic.Resource(secrets).Namespace("keelson-system").List(w.t.Context(),
		metav1.ListOptions{LabelSelector: "keelson.io/record-part=" + w.component})
	if err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// A part that is missing is an error and no absence: nothing is planned.
func TestMissingPart(t *testing.T) {
	w := newWorld(t)
	var objects []string
	for i := range 4 {
		objects = append(objects, configMap(fmt.Sprint("c", i), noise(uint64(i), 400<<10)))
	}
	want := w.want("v1", objects...)
	w.apply(want)
	lost := w.parts()[1].GetName()
	if err := w.dynamic.Resource(secrets).Namespace("keelson-system").Delete(t.Context(), lost, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.reconnect()
	if _, err := w.cluster.Plan(t.Context(), want); err == nil || !strings.Contains(err.Error(), lost) {
		t.Errorf("error is %v, want one that names %s", err, lost)
	}
}

// Records of format 1 are read, those of a later Keelson are not.
func TestFormats(t *testing.T) {
	const content = `"component":"COMPONENT","version":"v1","tree":"tree of v1","objects":[{"kind":"ConfigMap","namespace":"NS","name":"a","apiVersion":"v1",` +
		`"content":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"NS"}},"intended":true}]}`
	cases := map[string]struct {
		why, record, wrong string
		intent             applier.Intent
	}{
		"One":    {"Objects that were intended had the intent to be created.", `{"format":1,` + content, "", applier.IntentCreate},
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
