package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// ownBranch is the branch on which Keelson proposes web's versions for production.
const ownBranch = "keelson/promote/main/web/production"

// pull is a pull request in Gitea's API.
type pull struct {
	Number int64
	State  string
	Merged bool
	Title  string
	Body   string
	User   struct{ Login string }
	Head   struct{ Label, Sha string }
}

// TestForgePromotes publishes versions on a real Gitea. Keelson promotes them to staging by
// commits, and to production by pull requests, which people merge or close.
func TestForgePromotes(t *testing.T) {
	must.Test(t, func() {
		r := newReview(t)
		const stage = "- {name: %[1]s, clusterSelector: {matchLabels: {stage: %[1]s}}, bake: %[2]s, promotion: %[3]s}\n"
		r.publish(fmt.Sprintf(stage, staging, bake, "{}")+fmt.Sprintf(stage, production, bake, "{range: ~1, by: pullRequest}"), "one")
		for _, name := range []string{staging, production} {
			r.layer(name, "v1.0.0")
		}
		r.push("main")
		r.git("tag", "web/v1.0.0")
		r.git("push", "-q", "origin", "web/v1.0.0")
		r.start("--promote", "--push-credentials", r.file("logins", fmt.Sprintf("%s: {username: keelson, password: %s}", r.forge.URL, r.robot)))
		r.have("one")

		r.version("two", "v1.1.0")
		r.have("two", staging)
		first := r.proposes("v1.1.0")
		r.shows(first.Number, first.Head.Sha, "success", "web") // it has a preview like any pull request
		r.have("one", production)
		r.merge(first.Number)
		r.have("two", production)
		r.through()
		r.until("its branch stays", startTime, func(ctx context.Context) {
			var branches []struct{ Name string }
			if r.call(ctx, http.MethodGet, "repos/"+repo+"/branches", nil, &branches); len(branches) != 1 {
				must.Failf("there are %v", branches)
			}
		})

		r.version("three", "v1.2.0")
		second := r.proposes("v1.2.0")
		r.version("four", "v1.3.0")
		if third := r.proposes("v1.3.0"); third.Number != second.Number || third.Head.Sha == second.Head.Sha {
			t.Errorf("it is another request, or the same commit: %+v, and before %+v", third, second)
		}
		r.call(t.Context(), http.MethodPatch, fmt.Sprintf("repos/%s/pulls/%d", repo, second.Number), map[string]any{"state": "closed"}, nil)
		r.version("five", "v1.4.0")
		last := r.proposes("v1.4.0")
		if last.Number == second.Number {
			t.Errorf("what was closed is open again: %+v", last)
		}
		var all []pull
		r.call(t.Context(), http.MethodGet, "repos/"+repo+"/pulls?state=all", nil, &all)
		if len(all) != 3 {
			t.Errorf("there are %d pull requests: %+v", len(all), all)
		}
		r.have("five", staging)
		r.have("two", production)
		r.merge(last.Number)
		r.have("five", production)
		r.git("fetch", "-q", "origin", "main")
		t.Logf("main has\n%s", r.git("log", "--format=%an: %s", "--reverse", "FETCH_HEAD"))
	})
}

// layer sets the version that a stage runs.
func (r *review) layer(stage, version string) {
	r.content("layers/"+stage+".yaml", "apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {matchLabels: {stage: "+stage+"}}\ncomponents:\n  web:\n    version: "+version+"\n")
}

// version publishes a version of web.
func (r *review) version(text, version string) {
	r.git("pull", "-q", "--ff-only", "origin", "main")
	r.content("components/web/template/templates/text.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: "+text+"}\n")
	r.git("commit", "-q", "-a", "-m", "web "+version)
	r.git("tag", "web/"+version)
	r.git("push", "-q", "origin", "HEAD:main", "web/"+version)
}

// proposes waits for the only open pull request, which must be for the version.
func (r *review) proposes(version string) pull {
	var one pull
	r.until("no pull request promotes "+version, startTime, func(ctx context.Context) {
		var open []pull
		r.call(ctx, http.MethodGet, "repos/"+repo+"/pulls?state=open", nil, &open)
		if len(open) != 1 || open[0].Title != "promote web to "+version+" in production" {
			must.Failf("there are %+v", open)
		}
		if one = open[0]; one.Head.Label != ownBranch || one.User.Login != "keelson" || !strings.Contains(one.Body, "it passed stage staging at ") {
			must.Failf("it is %s of %s: %s", one.Head.Label, one.User.Login, one.Body)
		}
	})
	return one
}
