package differ_test

import (
	"testing"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// A deletion that is judged alone, such as that of a hook, is judged beside the component's other
// objects: the deletion of a ConfigMap that a Deployment uses is held.
func TestJudgeDeletionAmong(t *testing.T) {
	t.Parallel()
	rules, err := differ.NewRules(differ.Scopes{})
	if err != nil {
		t.Fatal(err)
	}
	used := objects(t, []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: web}, data: {a: b}}"))[0]
	user := objects(t, []byte(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: web}, spec: {selector: {matchLabels: {a: b}},
template: {metadata: {labels: {a: b}}, spec: {containers: [{name: d, image: d, envFrom: [{configMapRef: {name: c}}]}]}}}}`))[0]
	id, _ := differ.Identify(used)
	userID, _ := differ.Identify(user)
	policy := differ.Policy{Component: component, Rules: rules}
	for why, c := range map[string]struct {
		policy differ.Policy
		want   differ.ObjectState
	}{
		"beside its Deployment": {policy.Among([]differ.State{{ID: userID, Target: &renderer.Object{Content: user}}}), differ.StateHeld},
		"alone":                 {policy, differ.StateChanged},
	} {
		change, err := differ.JudgeDeletion(t.Context(), schemas(t), id, used, c.policy)
		if err != nil || change.State != c.want {
			t.Errorf("%s: %s by rule %q, %v, want %s", why, change.State, change.Rule, err, c.want)
		}
	}
}
