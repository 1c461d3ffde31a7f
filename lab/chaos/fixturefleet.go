package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/jsonpath"

	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// fixtureFleet is a fleet of small components that change during faults: git gets new
// values, objects are created and deleted, and objects drift. It holds the desired
// state of the cluster.
type fixtureFleet struct {
	*world
	repo       string
	client     dynamic.Interface
	components []*fixtureComponent
	// steady: objects change, but none is created or deleted.
	steady bool
}

// fixtureComponent is one component. Its namespace has the same name.
type fixtureComponent struct {
	name  string
	on    string // the cluster that it is delivered to
	value string // of fields of most of its objects
	extra bool   // git contains the ConfigMap extra
	still bool   // grow doesn't change extra
	port  int    // of its Service
}

// newFixtureFleet commits components of a template to a new repository. It starts no process. The
// components are distributed over the clusters in turn. All of these are the same real cluster,
// the world's.
func (w *world) newFixtureFleet(ctx context.Context, name string, components int, template string, clusters ...string) *fixtureFleet {
	g := &fixtureFleet{world: w, client: w.dynamic()}
	files := map[string]string{}
	for _, c := range clusters {
		files["clusters/"+c+"/cluster.yaml"] = apiVersion + "kind: Cluster\nconnection:\n  context: " + c + "\n"
	}
	for i := range components {
		p := &fixtureComponent{name: fmt.Sprintf("%s-%02d", name, i), on: clusters[i%len(clusters)], value: "first", extra: true, port: 8000}
		g.components = append(g.components, p)
		maps.Copy(files, p.files(template))
		w.ledger.OwnNamespace(p.name)
	}
	g.repo = w.repository(ctx, name, files)
	return g
}

const fixtureTemplate = `apiVersion: v1
kind: ServiceAccount
metadata: {name: app, annotations: {value: {{ .Values.value | quote }}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {value: {{ .Values.value | quote }}, constant: x}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec:
  clusterIP: None
  sessionAffinity: None
  selector: {app: app}
  ports: [{name: http, port: {{ .Values.port }}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 0
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      containers:
      - {name: app, image: "app:v1", env: [{name: VALUE, value: {{ .Values.value | quote }}}]}
{{- if .Values.extra }}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: extra}
data: {value: {{ .Values.value | quote }}}
{{- end }}
`

func (p *fixtureComponent) files(template string) map[string]string {
	files := componentFiles(p.name, "namespace: "+p.name+"\n", "1.0.0", template)
	files["components/"+p.name+"/template/values.yaml"] = "value: none\nport: 1\nextra: false\n"
	files[p.path()] = p.metaConfig()
	return files
}

// path returns the path of the component's meta-config.
func (p *fixtureComponent) path() string { return "clusters/" + p.on + "/" + p.name + ".yaml" }

func (p *fixtureComponent) metaConfig() string {
	return fmt.Sprintf("%skind: MetaConfig\nversion: HEAD\nvalues: {value: %q, port: %d, extra: %t}\n", apiVersion, p.value, p.port, p.extra)
}

// fixtureKinds returns the kinds of the objects of fixture components.
func fixtureKinds() map[string]schema.GroupVersionResource {
	return map[string]schema.GroupVersionResource{
		"ConfigMap":      {Version: "v1", Resource: "configmaps"},
		"ServiceAccount": {Version: "v1", Resource: "serviceaccounts"},
		"Service":        {Version: "v1", Resource: "services"},
		"Deployment":     {Group: "apps", Version: "v1", Resource: "deployments"},
	}
}

// changeGit changes some components in git, in one commit: values, ports, and whether extra
// objects exist.
func (g *fixtureFleet) changeGit(ctx context.Context, chance *rand.Rand, some int) {
	files := map[string]string{}
	for range some {
		p := g.components[chance.IntN(len(g.components))]
		switch chance.IntN(4) {
		case 0:
			if g.steady || p.still {
				continue
			}
			p.extra = !p.extra
			if !p.extra {
				g.ledger.MayDelete(time.Now(), "git no longer has it", oracle.Object{Resource: "configmaps", Namespace: p.name, Name: "extra"})
			}
		case 1:
			p.port = 8000 + chance.IntN(1000)
		default:
			p.value = fmt.Sprintf("value-%08x", chance.Uint32())
		}
		files[p.path()] = p.metaConfig()
	}
	g.push(ctx, g.repo, files)
}

// drift changes or deletes some objects directly in the cluster.
func (g *fixtureFleet) drift(ctx context.Context, chance *rand.Rand, some int) {
	patches := []struct{ kind, name, body string }{
		{kind: "ConfigMap", name: "settings"}, // deleted
		{"Service", "app", `{"spec":{"sessionAffinity":"ClientIP"}}`},
		{"ServiceAccount", "app", `{"metadata":{"annotations":{"value":"drifted"}}}`},
		{"ConfigMap", "settings", `{"data":{"value":"drifted","constant":null}}`},
	}
	for range some {
		p := g.components[chance.IntN(len(g.components))]
		d := patches[chance.IntN(len(patches))]
		objects := g.client.Resource(fixtureKinds()[d.kind]).Namespace(p.name)
		var err error
		switch {
		case d.body != "":
			_, err = objects.Patch(ctx, d.name, types.MergePatchType, []byte(d.body), metav1.PatchOptions{FieldManager: "kubectl-edit"})
		case !g.steady:
			err = objects.Delete(ctx, d.name, metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			must.Failf("make drift in %s: %w", p.name, err)
		}
	}
}

// asGitSays compares the objects of fixture components' kinds that Keelson manages with git. It fails with
// an error that names up to five differences.
func (g *fixtureFleet) asGitSays(ctx context.Context) {
	want := map[string]string{}
	for _, p := range g.components {
		for key, value := range p.want() {
			want[p.name+"/"+key] = value
		}
	}
	var wrong []string
	for kind, gvr := range fixtureKinds() {
		list := must.Get(g.client.Resource(gvr).List(ctx, metav1.ListOptions{LabelSelector: componentLabelOf}))
		for i := range list.Items {
			u := &list.Items[i]
			key := u.GetNamespace() + "/" + kind + " " + u.GetName()
			switch value, ok := want[key]; {
			case u.GetDeletionTimestamp() != nil:
				wrong = append(wrong, key+" is being deleted")
			case !ok:
				wrong = append(wrong, key+" is there and should not be")
			case value != shown(u):
				wrong = append(wrong, fmt.Sprintf("%s is %s and should be %s", key, shown(u), value))
			}
			delete(want, key)
		}
	}
	for key := range want {
		wrong = append(wrong, key+" is missing")
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		must.Failf("%d differ from git: %s", len(wrong), strings.Join(wrong[:min(len(wrong), 5)], "; "))
	}
}

// componentLabelOf selects the objects that Keelson manages.
const componentLabelOf = "keelson.io/component"

// want returns a component's objects with the fields as [shown] formats them.
func (p *fixtureComponent) want() map[string]string {
	out := map[string]string{
		"ServiceAccount app": p.value,
		"ConfigMap settings": fmt.Sprintf(`{"constant":"x","value":%q}`, p.value),
		"Service app":        fmt.Sprintf("None:%d", p.port),
		"Deployment app":     p.value,
	}
	if p.extra {
		out["ConfigMap extra"] = fmt.Sprintf(`{"value":%q}`, p.value)
	}
	return out
}

// shown returns the fields of an object that git sets, as text.
func shown(u *unstructured.Unstructured) string {
	var text strings.Builder
	fields := jsonpath.New("fields").AllowMissingKeys(true)
	must.Do(fields.Parse(map[string]string{
		"ServiceAccount": "{.metadata.annotations.value}",
		"ConfigMap":      "{.data}",
		"Service":        "{.spec.sessionAffinity}:{.spec.ports[*].port}",
		"Deployment":     "{.spec.template.spec.containers[*].env[*].value}",
	}[u.GetKind()]))
	must.Do(fields.Execute(&text, u.Object))
	return text.String()
}

// statuses returns the Deliveries of the fleet's components, by component. Clusters that are
// the same real one all show a component's record, so only the component's own counts.
func (g *fixtureFleet) statuses(ctx context.Context) map[string]harness.Delivery {
	all, out := must.Get(harness.Deliveries(ctx, g.client, "")), map[string]harness.Delivery{}
	for _, p := range g.components {
		if d, ok := all[p.on+"."+p.name]; ok {
			out[p.name] = d
		}
	}
	return out
}

// targets returns status.targetHash of the components' Deliveries, by component.
func (g *fixtureFleet) targets(ctx context.Context) map[string]string {
	out := map[string]string{}
	all := g.statuses(ctx)
	for _, p := range g.components {
		d, ok := all[p.name]
		if !ok {
			must.Failf("%s has no Delivery", p.name)
		}
		out[p.name] = d.TargetHash
	}
	return out
}

// synced fails unless the Deliveries of all components are Synced.
func (g *fixtureFleet) synced(ctx context.Context) {
	all := g.statuses(ctx)
	for _, p := range g.components {
		if d := all[p.name]; d.Sync != "Synced" {
			must.Failf("%s: %s", p.name, d)
		}
	}
}

// recovery is how long recovery may take after the end of a fault.
const recovery = time.Minute

// converged waits until the cluster matches git and all Deliveries are Synced. It
// returns the duration.
func (g *fixtureFleet) converged(ctx context.Context, patience time.Duration) time.Duration {
	started := time.Now()
	until(ctx, patience, func(ctx context.Context) {
		must.Each(func() { g.asGitSays(ctx) }, func() { g.synced(ctx) })
	})
	return time.Since(started)
}
