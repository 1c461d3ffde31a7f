package differ_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// kubectl get prints no managedFields. For such a live object, Keelson owns the recorded fields: a
// field or list item that left git is removed. A field that is not recorded remains another
// client's.
func TestOwnersByRecord(t *testing.T) {
	t.Parallel()
	const before = `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: prod, labels: {a: b}},
spec: {sessionAffinity: ClientIP, ports: [{port: 80}, {port: 81, name: b}]}}`
	const after = `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: prod}, spec: {ports: [{port: 80}]}}`
	recorded, target := objects(t, []byte(before))[0], objects(t, []byte(after))[0]
	live := runtime.DeepCopyJSON(recorded)
	live["metadata"].(map[string]any)["annotations"] = map[string]any{"of": "another client"}
	id, _ := differ.Identify(target)
	state := differ.State{ID: id, Recorded: recorded, Target: &renderer.Object{Content: target}, Live: live, OwnersRead: true}
	for _, byRecord := range []bool{true, false} {
		plan, err := differ.Compare(t.Context(), schemas(t), []differ.State{state}, differ.Policy{AnyComponent: true, OwnersByRecord: byRecord})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, f := range plan.Changes[0].Fields {
			got[f.Path] = f.Action.String()
		}
		want := "release"
		if byRecord {
			want = "remove"
		}
		for _, path := range []string{".metadata.labels.a", ".spec.sessionAffinity", `.spec.ports[port=81,protocol="TCP"].name`} {
			if got[path] != want {
				t.Errorf("with OwnersByRecord %t: %s is %q, want %s; all: %v", byRecord, path, got[path], want, got)
			}
		}
		if _, shown := got[".metadata.annotations.of"]; shown {
			t.Errorf("the annotation of another client is shown: %v", got)
		}
	}
}
