package applier_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/differ"
)

// A lost record is rebuilt from the fields that Keelson owns, so that what
// leaves the chart afterwards still goes; no object is deleted by inference.
func TestRecordLost(t *testing.T) {
	w := newWorld(t)
	labelled := strings.Replace(deployment, "{name: web, namespace: NS}", "{name: web, namespace: NS, labels: {old: label}}", 1)
	w.apply(w.want("v1", labelled, configMap("a", "x"), configMap("b", "x")))
	w.loseRecord()
	want := w.want("v2", deployment, configMap("a", "x"))
	p := w.apply(want)
	if n := p.Plan.Count(differ.OpCreate) + p.Plan.Count(differ.OpDelete); n != 0 {
		t.Errorf("want neither creates nor deletions:\n%s", show(p))
	}
	if w.get(deployments, "web").GetLabels()["old"] != "" {
		t.Error("a removed label stayed")
	}
	w.get(configMaps, "b")
	w.settled(want)
}

// Another client writes between plan and apply. Its write is not lost.
func TestConcurrentWriter(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x")))
	p := w.plan(w.want("v2", configMap("a", "changed")))
	_, err := w.resource(configMaps).Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"data":{"key":"theirs"}}`), metav1.PatchOptions{FieldManager: "other-client"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.cluster.Apply(t.Context(), p, applier.ApplyOptions{})
	if !errors.Is(err, applier.ErrStale) {
		t.Errorf("error is %v, want ErrStale", err)
	}
	if v, _, _ := unstructured.NestedString(w.get(configMaps, "a").Object, "data", "key"); v != "theirs" {
		t.Errorf("their write was lost: %q", v)
	}
}

// A process that is killed between the record of what it intends and the
// record of what it did neither doubles nor forgets an object.
func TestKilledInTheMiddle(t *testing.T) {
	w := newWorld(t)
	ctx, kill := context.WithCancel(t.Context())
	reader := &failingReader{after: 1, kill: kill}
	c, err := applier.New(applier.Options{Name: "test", Config: server, Progress: func(applier.Step) { reader.step() }})
	if err != nil {
		t.Fatal(err)
	}
	want := w.want("v1", configMap("a", "x"), service, deployment)
	p, err := c.Plan(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Apply(ctx, p, applier.ApplyOptions{}); err == nil {
		t.Fatal("the apply was not cut off")
	}
	w.reconnect()
	w.apply(want)
	w.settled(want)
	w.prune(w.want("v2", deployment, service))
	w.collect()
	if _, err := w.resource(configMaps).Get(t.Context(), "a", metav1.GetOptions{}); err == nil {
		t.Error("what was created before the kill was forgotten")
	}
}

// failingReader ends a context after some steps.
type failingReader struct {
	after int
	kill  context.CancelFunc
}

func (r *failingReader) step() {
	if r.after--; r.after == 0 {
		r.kill()
	}
}

// A version can't change: a tag that names another tree is refused.
func TestMovedTag(t *testing.T) {
	w := newWorld(t)
	w.apply(w.want("v1", configMap("a", "x")))
	moved := w.want("v1", configMap("a", "changed"))
	moved.Tree = "another tree"
	var want *applier.TagMovedError
	if _, err := w.cluster.Plan(t.Context(), moved); !errors.As(err, &want) {
		t.Errorf("error is %v, want a TagMovedError", err)
	}
}

// A read that fails is no absence: no plan is made.
func TestFailedReadIsNoAbsence(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", configMap("a", "x"))
	w.apply(want)
	broken := errors.New("broken")
	c, err := applier.New(applier.Options{Name: "test", Config: server, Reader: brokenReader{broken}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Plan(t.Context(), want); !errors.Is(err, broken) {
		t.Errorf("error is %v, want %v", err, broken)
	}
}

type brokenReader struct{ err error }

func (r brokenReader) Get(context.Context, *meta.RESTMapping, differ.ID) (map[string]any, error) {
	return nil, r.err
}

func (r brokenReader) Fresh(context.Context, *meta.RESTMapping, differ.ID) (map[string]any, error) {
	return nil, r.err
}

func (r brokenReader) Scaled(context.Context, []schema.GroupVersionResource) (map[differ.ID]differ.Scaling, error) {
	return nil, nil
}
func (r brokenReader) Wrote(differ.ID, map[string]any) {}

// readerOf reads what a user may read.
type readerOf struct {
	brokenReader
	dynamic dynamic.Interface
}

func (r readerOf) Get(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	return observe.Get(ctx, r.dynamic, m, id)
}

func (r readerOf) Fresh(ctx context.Context, m *meta.RESTMapping, id differ.ID) (map[string]any, error) {
	return observe.Get(ctx, r.dynamic, m, id)
}

// A Secret's data is in no plan and no record.
func TestSecretStaysSecret(t *testing.T) {
	w := newWorld(t)
	const secret = `
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: NS}
stringData: {password: hunter2-canary}
`
	want := w.want("v1", secret)
	p := w.apply(want)
	record, err := w.cluster.Record(t.Context(), w.component)
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{"plan": show(p), "record": fmt.Sprint(record)} {
		if strings.Contains(text, "canary") || strings.Contains(text, "aHVudGVyMi1jYW5hcnk") {
			t.Errorf("the %s shows the secret", what)
		}
	}
	w.settled(want)
}
