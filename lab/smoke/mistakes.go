package main

import (
	"context"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// selector publishes a version with a changed selector, which must be held. Then it approves the
// change, so that Keelson replaces the Deployment.
func selector(ctx context.Context, r *run) string {
	return r.withChange(ctx, func(u *undo) string {
		from := r.marks()
		file := r.repo.templateWith(dns, "kind: Deployment")
		r.repo.replace(file, `(?m)^(\s*)matchLabels:\s*$`, "${1}matchLabels:\n${1}  smoke: selector")
		r.repo.replace(file, `(?ms)^  template:\n    metadata:\n      labels:\n`, "${0}        smoke: selector\n")
		r.coredns.publish(ctx, "v1.13.0")
		d := r.coredns.stops(ctx, "Held", func(d harness.Delivery) bool { return strings.Contains(d.Held, "workload-selector") })
		for _, e := range r.writes(testing, from) {
			if e.Resource.Resource == "deployments" && e.Resource.Name == dns {
				must.Failf("the held object moved: %s", e)
			}
		}

		before := r.coredns.deployment(ctx, testing)
		u.clusters = func(ctx context.Context) { // the revert changes the selector too, so it needs approval
			r.coredns.stops(ctx, "Held", func(harness.Delivery) bool { return true })
			r.coredns.approve(ctx)
		}
		r.coredns.approve(ctx)
		r.at(ctx, dns, "v1.13.0", testing)
		after := r.coredns.deployment(ctx, testing)
		labels, _, err := unstructured.NestedStringMap(after.Object, "spec", "selector", "matchLabels")
		must.Do(err)
		if labels["smoke"] != "selector" || after.GetUID() == before.GetUID() {
			must.Failf("approved, and the Deployment was not replaced: selector %v", labels)
		}
		return "held, and no write of that Deployment is in the audit log: " + d.Message + "; approved in git, it was replaced"
	})
}

// mistake is a mistake with coredns on the testing cluster, and text of the message about it.
type mistake struct {
	where string
	make  func(context.Context, *run, *undo)
}

// clusterFile is the start of a message about the file of coredns on the testing cluster.
const clusterFile = "clusters/" + testing + "/coredns.yaml:"

var mistakes = map[string]mistake{ //nolint:gochecknoglobals // a table
	"broken-template": {"templates/", func(ctx context.Context, r *run, _ *undo) {
		r.coredns.breakTemplate(ctx, `{{ fail "broken on purpose" }}`, "v1.13.1")
	}},
	// The beacon must arrive although the template is still rendered.
	"endless-template": {"and was ended", func(ctx context.Context, r *run, _ *undo) {
		r.coredns.breakTemplate(ctx, "{{ range 1000000000000 }}{{ end }}", "v1.13.3")
	}},
	"broken-values": {clusterFile, func(ctx context.Context, r *run, _ *undo) {
		r.repo.setValue(testing, dns, r.repo.integerValue(dns), "many")
		r.repo.push(ctx, "many replicas")
	}},
	"unknown-key": {clusterFile, func(ctx context.Context, r *run, _ *undo) {
		r.repo.metaConfig(testing, dns, func(m map[string]any) { m["valeus"] = map[string]any{} })
		r.repo.push(ctx, "a misspelt key")
	}},
	"moved-tag": {"moved", func(ctx context.Context, r *run, u *undo) { // the tag of the running version
		tag := dns + "/" + r.deliveries(ctx)[testing+"."+dns].Version
		old := r.repo.git(ctx, "rev-parse", tag)
		r.repo.write("components/coredns/template/templates/extra.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: coredns-extra\n")
		r.repo.push(ctx, "not a new version")
		u.git = func(ctx context.Context) { r.repo.moveTag(ctx, tag, old) }
		r.repo.moveTag(ctx, tag, "HEAD")
	}},
	"missing-tag": {clusterFile, func(ctx context.Context, r *run, _ *undo) {
		r.repo.setVersion(testing, dns, "v9.9.9")
		r.repo.push(ctx, "a version that does not exist")
	}},
	"symlink": {"secrets.yaml", func(ctx context.Context, r *run, _ *undo) {
		must.Do(os.Symlink("/etc/passwd", r.repo.Path("components/coredns/template/templates/secrets.yaml")))
		r.coredns.publish(ctx, "v1.13.2")
	}},
}

// blocked returns a step that makes a mistake, and in the same push a valid change of the beacon. The
// delivery must report where the mistake is. coredns must stay unchanged, and the beacon must arrive
// everywhere.
func blocked(name string) func(context.Context, *run) string {
	return func(ctx context.Context, r *run) string {
		return r.withChange(ctx, func(u *undo) string {
			from := r.marks()
			push := r.beacon.set()
			mistakes[name].make(ctx, r, u)
			d := r.coredns.stops(ctx, "Blocked", func(d harness.Delivery) bool { return strings.Contains(d.Message, mistakes[name].where) })
			r.beacon.arrives(ctx, push)
			must.Sleep(ctx, 3*time.Second)
			for _, c := range r.clusters {
				for _, e := range r.writes(c, from) {
					if e.Resource.Name != beaconName {
						must.Failf("a mistake changed %s: %s", c, e)
					}
				}
			}
			return d.Message + "\nthe clusters stayed as they were; the other change of the same push arrived on all"
		})
	}
}
