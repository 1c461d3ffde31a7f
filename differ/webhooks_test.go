package differ_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/differ"
)

// A webhook of a policy engine has hundreds of rules. One that goes is found, and is no more than it is.
func TestLargeWebhook(t *testing.T) {
	t.Parallel()
	rules, err := differ.NewRules(differ.Scopes{})
	if err != nil {
		t.Fatal(err)
	}
	webhook := func(n int) object {
		var list strings.Builder
		for i := range n {
			fmt.Fprintf(&list, `{apiGroups: [g%d.example.com], apiVersions: [v1, v1beta1], operations: [CREATE], resources: [a, b, c, d, e, f, g, h], scope: '*'},`, i)
		}
		return objects(t, []byte(`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: web},
webhooks: [{name: a.example.com, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {service: {name: hook, namespace: web}}, rules: [`+list.String()+`]}]}`))[0]
	}
	c := catalogueCase{Before: webhook(300), After: webhook(299)}
	plan, err := differ.Compare(t.Context(), schemas(t), c.states(t), differ.Policy{Component: component, Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	if text := asJSON(t, plan); strings.Contains(text, "not known") || firesOf(plan, "webhook-widened") != "none" || firesOf(plan, "webhook-rules-lost") != "warn" {
		t.Errorf("widened %s, lost %s:\n%.600s", firesOf(plan, "webhook-widened"), firesOf(plan, "webhook-rules-lost"), text)
	}
}
