package preview_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/controllers/preview"
)

// What lets a later change through alters no object itself. It is a change all the same,
// and each is named: a reviewer looks for it there.
func TestPolicyChanges(t *testing.T) {
	t.Parallel()
	const stages = header + "Pipeline\nstages:\n- {name: all, clusterSelector: {}}\n"
	const job = "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: smoke, image: smoke}]}}}\n"
	const rule = "danger:\n- {name: mine, path: .spec.replicas, effect: deny, because: they say so}\n"
	approval := func(cluster string) string {
		return header + "Approvals\napprovals:\n- {" + cluster + "component: web, object: Deployment.apps web/web, hash: \"" + strings.Repeat("0", 32) + "\", because: x}\n"
	}
	cases := map[string]struct {
		why    string
		before func(*fleet)
		change func(*fleet)
		want   []string
	}{
		"Nothing": {why: "A note decides nothing.", change: func(f *fleet) { f.write("README.md", "x") }},
		"Freeze": {
			why: "A freeze that goes lets everything through.",
			before: func(f *fleet) {
				f.write("freezes/friday.yaml", header+"Freeze\nreason: Black Friday\nclusterSelector: {}\n")
			},
			change: func(f *fleet) { f.remove("freezes/friday.yaml") }, want: []string{"freeze friday is removed"},
		},
		"FreezeShorter": {
			why: "And so does one that ends sooner.",
			before: func(f *fleet) {
				f.write("freezes/friday.yaml", header+"Freeze\nreason: Black Friday\nclusterSelector: {}\nuntil: 2026-12-01T00:00:00Z\n")
			},
			change: func(f *fleet) { f.edit("freezes/friday.yaml", "2026-12-01", "2026-11-01") }, want: []string{"freeze friday is changed"},
		},
		"Rule": {
			why: "A rule that the fleet gives up.", before: func(f *fleet) { f.write("fleet.yaml", header+"Fleet\nname: test\n"+rule) },
			change: func(f *fleet) { f.write("fleet.yaml", header+"Fleet\nname: test\n") }, want: []string{"fleet.yaml: danger rule mine is removed"},
		},
		"RuleWeaker": {
			why: "Or makes weaker.", before: func(f *fleet) { f.write("fleet.yaml", header+"Fleet\nname: test\n"+rule) },
			change: func(f *fleet) { f.edit("fleet.yaml", "deny", "hold") }, want: []string{"fleet.yaml: danger rule mine is changed"},
		},
		"RuleOrder": {
			why: "The first rule decides.", before: func(f *fleet) {
				f.write("fleet.yaml", header+"Fleet\nname: test\n"+rule+"- {name: other, path: .spec, effect: allow, because: they say so}\n")
			},
			change: func(f *fleet) {
				f.write("fleet.yaml", header+"Fleet\nname: test\ndanger:\n- {name: other, path: .spec, effect: allow, because: they say so}\n"+strings.TrimPrefix(rule, "danger:\n"))
			},
			want: []string{"fleet.yaml: the order of the danger rules changes"},
		},
		"Settings": {
			why: "Settings of the fleet.", change: func(f *fleet) {
				f.write("fleet.yaml", header+"Fleet\nname: test\ndrift: report\npromotableTags: all\n")
			},
			want: []string{"fleet.yaml: drift: (none) → report", "fleet.yaml: promotableTags: (none) → all"},
		},
		"Approval": {
			why: "An approval lets through what is held.", change: func(f *fleet) { f.write("approvals/one.yaml", approval("cluster: a, ")) },
			want: []string{"web: approval of Deployment.apps web/web (hash " + strings.Repeat("0", 32) + ") is added on a"},
		},
		"ApprovalOfMany": {
			why: "On all clusters that it is for.", change: func(f *fleet) { f.write("approvals/one.yaml", approval("clusterSelector: {}, ")) },
			want: []string{"web: approval of Deployment.apps web/web (hash " + strings.Repeat("0", 32) + ") is added on a, b"},
		},
		"Label": {
			why: "A label chooses stage, layers and freezes.", change: func(f *fleet) { f.edit("clusters/b/cluster.yaml", "name: b", "name: b, stage: testing") },
			want: []string{"label stage: (none) → testing on b"},
		},
		"Connection": {
			why: "What is for one cluster goes to another.", change: func(f *fleet) { f.edit("clusters/b/cluster.yaml", "context: b", "context: c") },
			want: []string{"connection changes: Keelson will apply the cluster's components to another API server on b"},
		},
		"Pipeline": {
			why: "Without its pipeline a change goes everywhere at once.", before: func(f *fleet) {
				f.write("pipelines/slow.yaml", stages)
				f.write("fleet.yaml", header+"Fleet\nname: test\npipeline: slow\n")
			},
			change: func(f *fleet) { f.write("fleet.yaml", header+"Fleet\nname: test\n"); f.remove("pipelines/slow.yaml") },
			want:   []string{"pipeline slow is removed", "fleet.yaml: pipeline: slow → (none)"},
		},
		"JobOfCheck": {
			why: "A Job of a check runs on clusters, and its file is not the pipeline's.", before: func(f *fleet) {
				f.write("pipelines/slow.yaml", strings.Replace(stages, "clusterSelector: {}", "clusterSelector: {}, after: [{name: smoke, job: {template: checks/smoke.yaml}}]", 1))
				f.write("fleet.yaml", header+"Fleet\nname: test\npipeline: slow\n")
				f.write("checks/smoke.yaml", job)
			},
			change: func(f *fleet) { f.edit("checks/smoke.yaml", "image: smoke", "image: other") },
			want:   []string{"checks/smoke.yaml of pipeline slow is changed"},
		},
		"ObjectOfProbe": {
			why: "A probe makes the object of a file on clusters.", before: func(f *fleet) {
				f.write("probes/backup.yaml", header+"Probe\nclusterSelector: {}\nnamespace: probes\nsubjects:\n- {name: backup, custom: {template: manifests/backup.yaml, ready: \"true\"}}\n")
				f.write("manifests/backup.yaml", "apiVersion: backups.example/v1\nkind: Backup\nspec: {keep: 1}\n")
			},
			change: func(f *fleet) { f.edit("manifests/backup.yaml", "keep: 1", "keep: 9") },
			want:   []string{"manifests/backup.yaml of probe backup is changed"},
		},
		"JobOfCheckMended": {
			why: "A Job that could not be read is mended, with another image: the old one was never shown.", before: func(f *fleet) {
				f.write("pipelines/slow.yaml", strings.Replace(stages, "clusterSelector: {}", "clusterSelector: {}, after: [{name: smoke, job: {template: checks/smoke.yaml}}]", 1))
				f.write("fleet.yaml", header+"Fleet\nname: test\npipeline: slow\n")
				f.write("checks/smoke.yaml", "kind: [\n")
			},
			change: func(f *fleet) { f.write("checks/smoke.yaml", job) },
			want:   []string{"checks/smoke.yaml of pipeline slow can be used now, and could not before"},
		},
		"ComponentRenamed": {
			why: "Under another name a component loses its service account, and gets more rights.", before: func(f *fleet) {
				f.write("components/web/component.yaml", header+"Component\nnamespace: web\nserviceAccount: limited\n")
			},
			change: func(f *fleet) {
				f.component("site", deployment)
				f.edit("layers/10-base.yaml", "  web:", "  site:")
			},
			want: []string{"site: it is new, and has no serviceAccount: it gets Keelson's own rights on a, b"},
		},
		"ClusterRenamed": {
			why: "Under another name a cluster brings its approvals, and what its components may.", before: func(f *fleet) {
				f.write("components/web/component.yaml", header+"Component\nnamespace: web\nadopt: true\n")
			},
			change: func(f *fleet) {
				f.git("mv", "clusters/b", "clusters/c")
				f.write("approvals/one.yaml", approval("cluster: c, "))
			},
			want: []string{"web: approval of Deployment.apps web/web (hash " + strings.Repeat("0", 32) + ") is added on c", "web: it may adopt objects on c"},
		},
		"PipelineOfComponent": {
			why: "A component may choose another one.", before: func(f *fleet) {
				f.write("pipelines/slow.yaml", stages)
				f.write("pipelines/fast.yaml", stages)
				f.write("fleet.yaml", header+"Fleet\nname: test\npipeline: slow\n")
			},
			change: func(f *fleet) {
				f.edit("components/web/component.yaml", "namespace: web", "namespace: web\npipeline: fast")
			},
			want: []string{"web: pipeline: slow → fast"},
		},
		"Component": {
			why: "What a version claims for itself.", before: func(f *fleet) {
				f.edit("components/web/component.yaml", "namespace: web", "namespace: web\nserviceAccount: writer")
			},
			change: func(f *fleet) {
				f.write("components/web/component.yaml", header+"Component\nnamespace: web\nadopt: true\n"+strings.Replace(rule, "deny", "allow", 1))
			},
			want: []string{
				"web: serviceAccount: writer → (Keelson's own rights) on a, b", "web: danger rule mine (allow) is added on a, b", "web: it may adopt objects on a, b",
			},
		},
		"FleetOrder": {
			why: "The order of the fleet's rules, beside another change of them.", before: func(f *fleet) {
				f.write("fleet.yaml", header+"Fleet\nname: test\ndanger:\n- {name: one, path: .spec.replicas, effect: hold, because: a}\n"+
					"- {name: two, path: .spec.replicas, effect: allow, because: b}\n- {name: three, path: .spec.paused, effect: hold, because: c}\n")
			},
			change: func(f *fleet) {
				f.write("fleet.yaml", header+"Fleet\nname: test\ndanger:\n- {name: two, path: .spec.replicas, effect: allow, because: b}\n"+
					"- {name: one, path: .spec.replicas, effect: hold, because: a}\n- {name: three, path: .spec.paused, effect: hold, because: other words}\n")
			},
			want: []string{"fleet.yaml: danger rule three is changed", "fleet.yaml: the order of the danger rules changes"},
		},
		"Unpaused": {
			why: "What came during a pause is applied, whatever else changes.", before: func(f *fleet) {
				f.write("clusters/b/web.yaml", header+"MetaConfig\nversion: HEAD\npaused: true\n")
			},
			change: func(f *fleet) {
				f.write("clusters/b/web.yaml", header+"MetaConfig\nversion: HEAD\nvalues: {replicas: 7}\n")
			},
			want: []string{"web: it is no longer paused on b"},
		},
		"ClusterMended": {
			why: "Approvals for a cluster that could not be read count from now on.", before: func(f *fleet) {
				f.write("clusters/b/cluster.yaml", "kind: [\n")
				f.write("approvals/one.yaml", approval("cluster: b, "))
			},
			change: func(f *fleet) {
				f.write("clusters/b/cluster.yaml", header+"Cluster\nlabels: {name: b}\nconnection: {context: b}\n")
			},
			want: []string{"web: approval of Deployment.apps web/web (hash " + strings.Repeat("0", 32) + ") is added on b"},
		},
		"Mended": {
			why: "What could not be read before is new to reviewers, with all that it may.", before: func(f *fleet) {
				f.write("components/web/component.yaml", header+"Component\nnamespace: web\ndanger: x\n")
			},
			change: func(f *fleet) {
				f.write("components/web/component.yaml", header+"Component\nnamespace: web\n"+strings.Replace(rule, "deny", "allow", 1))
			},
			want: []string{
				"web: it has no serviceAccount, and what it had could not be read: it gets Keelson's own rights on a, b",
				"web: danger rule mine (allow) is added on a, b", "web: its component.yaml can be used now, and could not before on a, b",
			},
		},
		"Order": {
			why: "The first rule that matches decides; and what else a version takes less care of.", before: func(f *fleet) {
				f.component("db", "")
				f.write("clusters/a/db.yaml", header+"MetaConfig\nversion: HEAD\n")
				f.write("components/web/component.yaml", header+"Component\nnamespace: web\ndependsOn: [db]\ndanger:\n"+
					"- {name: one, path: .spec.replicas, effect: hold, because: a}\n- {name: two, path: .spec.replicas, effect: allow, because: b}\n")
				f.write("clusters/b/db.yaml", header+"MetaConfig\nversion: HEAD\n")
			},
			change: func(f *fleet) {
				f.write("components/web/component.yaml", header+"Component\nnamespace: web\ndeterminism: report\ntimeout: 1s\ndanger:\n"+
					"- {name: two, path: .spec.replicas, effect: allow, because: b}\n- {name: one, path: .spec.replicas, effect: hold, because: a}\n")
			},
			want: []string{
				"web: the order of the danger rules changes on a, b", "web: determinism: (none) → report on a, b",
				"web: it no longer waits for db on a, b", "web: timeout: (none) → 1s on a, b",
			},
		},
		"NewComponent": {
			why: "A new component brings its own profile, and may take over what is there.", before: func(f *fleet) {
				f.component("db", "")
				f.write("components/db/component.yaml", header+"Component\nnamespace: db\nadopt: true\ndangerProfile: \"off\"\n")
			},
			change: func(f *fleet) { f.write("clusters/b/db.yaml", header+"MetaConfig\nversion: HEAD\n") },
			want:   []string{"db: dangerProfile: (none) → off on b", "db: it may adopt objects on b"},
		},
		"Project": {
			why: "A project that is made wider.", before: func(f *fleet) {
				f.write("projects/web.yaml", header+"Project\ncomponents: [web]\nobjects: [{namespace: web}]\n")
			},
			change: func(f *fleet) { f.edit("projects/web.yaml", "namespace: web", "namespace: \"*\"") }, want: []string{"project web is changed"},
		},
		"Notification": {
			why: "Another receiver hears of everything.", change: func(f *fleet) {
				f.write("notifications/mine.yaml", header+"Notification\nwebhook: {url: \"https://hooks.example/x\"}\n")
			},
			want: []string{"notification mine is added"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "a", "b")
			if c.before != nil {
				c.before(f)
			}
			f.commit()
			c.change(f)
			p := f.preview()
			var got []string
			for i := range p.Policy {
				got = append(got, p.Policy[i].Text(60))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", c.why, diff)
			}
			text := p.Markdown()
			for _, line := range c.want {
				if !strings.Contains(text, line) {
					t.Errorf("the comment lacks %q:\n%s", line, text)
				}
			}
			if nothing := strings.Contains(p.Summary(), "nothing changes"); nothing != (c.want == nil) || p.Changes() != (c.want != nil) {
				t.Errorf("%s It says %q", c.why, p.Summary())
			}
		})
	}
}

// Many changes fit into a comment, and what is left out is counted.
func TestPolicyChangesFit(t *testing.T) {
	t.Parallel()
	p := &preview.Preview{Policy: make([]preview.PolicyChange, 5000)}
	for i := range p.Policy {
		p.Policy[i] = preview.PolicyChange{About: preview.AreaLabel, What: strings.Repeat("x", 5000)}
	}
	if text := p.Markdown(); len(text) > 64<<10 || !strings.Contains(text, "- and 4970 more about labels") {
		t.Errorf("it has %d bytes", len(text))
	}
}

// A pull request that wants to hide a change can't do it behind many changes of another area.
func TestPolicyChangesHideNone(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b")
	f.write("components/web/component.yaml", header+"Component\nnamespace: web\nserviceAccount: limited\n")
	f.commit()
	var approvals strings.Builder
	approvals.WriteString(header + "Approvals\napprovals:\n")
	for i := range 200 {
		fmt.Fprintf(&approvals, "- {clusterSelector: {}, component: web, object: ConfigMap a/%d, hash: \"%032d\", because: x}\n", i, i)
	}
	f.write("approvals/many.yaml", approvals.String())
	f.write("components/web/component.yaml", header+"Component\nnamespace: web\nadopt: true\n")
	f.edit("clusters/b/cluster.yaml", "name: b", "name: b, stage: testing")
	text := f.preview().Markdown()
	for _, line := range []string{
		"web: serviceAccount: limited → (Keelson's own rights) on a, b", "web: it may adopt objects on a, b",
		"label stage: (none) → testing on b", "- and 173 more about approvals",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("the comment lacks %q:\n%s", line, text)
		}
	}
}

// Nor behind many changes of the same area that mean less.
func TestPolicyChangesHideNoneOfTheirArea(t *testing.T) {
	t.Parallel()
	const account = "components/web/component.yaml"
	rules := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "- {name: r%02d, path: .spec.x%02d, effect: deny, because: x}\n", i, i)
		}
		return b.String()
	}
	cases := map[string]struct {
		why            string
		before, change func(*fleet)
		want           string
	}{
		"Account": {
			"New components without an account.", func(f *fleet) { f.write(account, header+"Component\nnamespace: web\nserviceAccount: limited\n") },
			func(f *fleet) {
				f.write(account, header+"Component\nnamespace: web\n")
				for i := range 31 {
					name := fmt.Sprintf("a%02d", i)
					f.component(name, "")
					f.write("clusters/a/"+name+".yaml", header+"MetaConfig\nversion: HEAD\n")
				}
			}, "web: serviceAccount: limited → (Keelson's own rights) on a",
		},
		"Rule": {
			"New rules of a component.", func(f *fleet) {
				f.write("fleet.yaml", header+"Fleet\nname: test\ndanger:\n"+strings.ReplaceAll(rules(1), "r00", "mine"))
			},
			func(f *fleet) {
				f.write("fleet.yaml", header+"Fleet\nname: test\n")
				f.write(account, header+"Component\nnamespace: web\ndanger:\n"+rules(31))
			}, "fleet.yaml: danger rule mine is removed",
		},
		"Mended": {
			"A component that could not be read is mended, without the account that it had.",
			func(f *fleet) {
				f.write(account, header+"Component\nnamespace: web\nserviceAccount: limited\ndanger: x\n")
			},
			func(f *fleet) { f.write(account, header+"Component\nnamespace: web\n") },
			"web: it has no serviceAccount, and what it had could not be read: it gets Keelson's own rights on a",
		},
		"RenamedUnread": {
			"The only component with an account can't be read, and gets another name.",
			func(f *fleet) {
				f.write(account, header+"Component\nnamespace: web\nserviceAccount: limited\ndanger: x\n")
			},
			func(f *fleet) { f.component("site", deployment); f.edit("layers/10-base.yaml", "  web:", "  site:") },
			"site: it is new, and has no serviceAccount: it gets Keelson's own rights on a",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "a")
			c.before(f)
			f.commit()
			c.change(f)
			if text := f.preview().Markdown(); !strings.Contains(text, c.want) {
				t.Errorf("%s The comment lacks %q:\n%s", c.why, c.want, text)
			}
		})
	}
}
