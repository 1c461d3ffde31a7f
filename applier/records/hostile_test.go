package records_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/records"
)

func packed(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// recordText is a record whose one object has a list of what is given, n times.
func recordText(component, item string, n int) string {
	return `{"format":2,"component":"` + component + `","objects":[{"kind":"ConfigMap","name":"a","namespace":"b","apiVersion":"v1",` +
		`"content":{"apiVersion":"v1","kind":"ConfigMap","data":[` + strings.TrimSuffix(strings.Repeat(item, n), ",") + `]}}]}`
}

// recordServer is an API server that has Secrets, and pages of them for ever when it is
// endless.
func recordServer(t *testing.T, endless bool, secrets ...corev1.Secret) (*records.Store, *atomic.Int64) {
	t.Helper()
	requests := &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		const path = "/api/v1/namespaces/" + v1alpha1.Namespace + "/secrets"
		if r.URL.Path == path {
			var list corev1.SecretList
			list.APIVersion, list.Kind = "v1", "SecretList"
			if r.URL.Query().Get("labelSelector") == records.Label {
				list.Items = secrets
			}
			if endless {
				list.Continue = fmt.Sprint("page", requests.Load())
			}
			_ = json.NewEncoder(w).Encode(list)
			return
		}
		for i := range secrets {
			if r.URL.Path == path+"/"+secrets[i].Name {
				_ = json.NewEncoder(w).Encode(secrets[i])
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Details: &metav1.StatusDetails{}})
	}))
	t.Cleanup(s.Close)
	own, err := records.NewSecrets(&rest.Config{Host: s.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return records.NewStore(records.Options{
		Cluster: "hostile", Secrets: own, Packer: &records.Packer{}, Writer: records.Writer{Identity: "test"},
		Check: func(context.Context) error { return nil },
	}), requests
}

func recordSecret(t *testing.T, component, text string) corev1.Secret {
	t.Helper()
	return corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: "record-" + component, Namespace: v1alpha1.Namespace, ResourceVersion: "1", Labels: map[string]string{records.Label: component}},
		Data:       map[string][]byte{"record": packed(t, text)},
	}
}

// TestDamagedRecord: a record that can't be read is an error of its component, and never
// no record; the other components of the cluster go on.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	c, _ := recordServer(t, false,
		recordSecret(t, "bomb", recordText("bomb", "{},", 1<<20)),
		recordSecret(t, "web", recordText("web", "1,", 3)),
		recordSecret(t, "zero", "{"),
	)
	names, err := c.List(t.Context())
	if err != nil || fmt.Sprint(names) != "[bomb web zero]" {
		t.Errorf("the components that have a record are %v (%v)", names, err)
	}
	if r, err := c.Read(t.Context(), "web"); err != nil || len(r.Objects) != 1 {
		t.Errorf("a sound record has %d objects (%v)", len(r.Objects), err)
	}
	for component, want := range map[string]string{"bomb": "more than 300000 JSON values", "zero": "decode"} {
		_, err := c.Read(t.Context(), component)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "cluster hostile: record of "+component) {
			t.Errorf("%s: the error is %v", component, err)
		}
	}
}

// TestRecordsForEver: a list that never ends is an error after as many records as a cluster
// may have, also where its pages are empty.
func TestRecordsForEver(t *testing.T) {
	t.Parallel()
	for name, secrets := range map[string][]corev1.Secret{
		"EmptyPages": nil,
		"Records":    {recordSecret(t, "a", recordText("a", "1,", 1)), recordSecret(t, "b", recordText("b", "1,", 1))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, requests := recordServer(t, true, secrets...)
			_, err := c.List(t.Context())
			if err == nil || !strings.Contains(err.Error(), "cluster hostile: list records: the API server has more than 2000") {
				t.Errorf("the error is %v", err)
			}
			if n := requests.Load(); n > 2_003 { // with those that say whose cluster it is, and what was announced
				t.Errorf("it was asked %d times", n)
			}
		})
	}
}

// TestRecordsInMemory: forged records take no more memory together than those of one
// cluster may. Each can be read all the same.
func TestRecordsInMemory(t *testing.T) {
	t.Parallel()
	var forged []corev1.Secret
	for i := range 20 {
		name := fmt.Sprintf("c%02d", i)
		forged = append(forged, recordSecret(t, name, recordText(name, `{"a":1},`, 15_000)))
	}
	c, _ := recordServer(t, false, forged...)
	if _, err := c.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if bytes := c.RememberedBytes(); bytes > 32<<20 {
		t.Errorf("%d MiB of records are remembered", bytes>>20)
	}
	for i := range forged {
		if r, err := c.Read(t.Context(), fmt.Sprintf("c%02d", i)); err != nil || len(r.Objects) != 1 {
			t.Errorf("record %d has %d objects (%v)", i, len(r.Objects), err)
		}
	}
	if bytes := c.RememberedBytes(); bytes > 32<<20 {
		t.Errorf("%d MiB of records are remembered", bytes>>20)
	}
}

// TestRecordedIDsInMemory: however many objects the records of a cluster name, the memory for their
// IDs is bounded. A record beyond that is read before an object counts as new.
func TestRecordedIDsInMemory(t *testing.T) {
	t.Parallel()
	kept, doubtful := records.KeptIDs(60, 10_000)
	if kept != 500_000 || doubtful != 10 {
		t.Errorf("%d IDs are in memory and %d records are in doubt, want 500000 and 10", kept, doubtful)
	}
}
