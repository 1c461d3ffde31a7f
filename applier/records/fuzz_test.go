package records_test

import (
	"bytes"
	"compress/gzip"
	"testing"

	"github.com/keelson-io/keelson/applier/records"
)

// A record is read from a cluster: whatever is in it, an error is the worst.
func FuzzRecord(f *testing.F) {
	for _, seed := range []string{
		`{"format":2,"component":"a","objects":[{"kind":"ConfigMap","name":"a","apiVersion":"v1","content":{"apiVersion":"v1","kind":"ConfigMap"},"intent":"create"}]}`,
		`{"format":1,"objects":[{"content":{"kind":"A"},"intended":true}]}`, `{"format":2,"objects":[{"content":null}]}`, `{`, ``,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, compress bool) {
		if compress {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			if _, err := z.Write(data); err != nil || z.Close() != nil {
				t.Fatal(err)
			}
			data = b.Bytes()
		}
		r, err := records.Unpack(data)
		if err != nil {
			return
		}
		for _, o := range r.Objects {
			if o.Content == nil {
				t.Error("an object without content")
			}
		}
	})
}
