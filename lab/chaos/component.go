package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/chaos/oracle"
)

// component is a component that a scenario makes up, in two versions. Two components
// of the same input differ only in their names.
type component struct {
	name      string // of the component and of its namespace
	old, next []piece
	// removed are only in old. replaced can't be updated to next.
	removed, replaced []oracle.Object
	// done are hooks, which are deleted after they have run.
	done []oracle.Object
	// adopted is the value of a ConfigMap that another writer creates before next adds it.
	adopted string
}

// piece is one object of a component.
type piece struct {
	oracle.Object
	manifest string
}

// componentInput is the input of buildComponent.
type componentInput struct {
	seed   uint64
	with   extra
	secret string // the value of its Secret
}

// extra is an optional part of a component. Most components have none, because the
// parts take long.
type extra string

const (
	plain    extra = "plain"
	withKind extra = "kind" // a CRD, and an object of its kind
	withHook extra = "hook" // a Job before each upgrade
	// few gives the component so few objects that all may be deleted at once without
	// an approval.
	few extra = "few"
)

// buildComponent makes a component. The seed decides how many objects of each kind there
// are, their contents, and which objects change.
func buildComponent(name string, r componentInput) component {
	k := fixtureBuilder{c: component{name: name}, rand: rand.New(rand.NewPCG(r.seed, 1))} //nolint:gosec // chance to be repeated
	k.login(r.secret)
	k.network()
	if r.with != few {
		k.config()
		k.rights()
	}
	k.workloads()
	switch r.with {
	case withKind:
		k.kinds()
	case withHook:
		k.hook()
	case plain, few:
	}
	k.later()
	return k.c
}

type fixtureBuilder struct {
	c    component
	rand *rand.Rand
}

// versions is the set of versions of the component that contain an object.
type versions uint8

const (
	inOld versions = 1 << iota
	inNext
)

// add adds an object with its body in the old version and its body in the next version.
func (k *fixtureBuilder) add(in versions, o oracle.Object, head, before, after string) {
	o.Namespace = k.c.name
	manifest := func(body string) string {
		return fmt.Sprintf("%s\nmetadata:\n  name: %s\n  namespace: %s\n%s\n", head, o.Name, o.Namespace, body)
	}
	if in&inOld != 0 {
		k.c.old = append(k.c.old, piece{o, manifest(before)})
	}
	if in&inNext != 0 {
		k.c.next = append(k.c.next, piece{o, manifest(after)})
	}
	if in == inOld {
		k.c.removed = append(k.c.removed, o)
	}
}

func (k *fixtureBuilder) word() string { return fmt.Sprintf("%08x", k.rand.Uint32()) }

func configMap(name string) oracle.Object { return oracle.Object{Resource: "configmaps", Name: name} }

const (
	configMapHead = "apiVersion: v1\nkind: ConfigMap"
	secretHead    = "apiVersion: v1\nkind: Secret"
)

func (k *fixtureBuilder) login(secret string) {
	body := func() string {
		return fmt.Sprintf("type: Opaque\nstringData:\n  password: %q\n  more: %q\n", secret, k.word())
	}
	k.add(inOld|inNext, oracle.Object{Resource: "secrets", Name: "login"}, secretHead, body(), body())
}

func (k *fixtureBuilder) config() {
	data := func() string { return fmt.Sprintf("data:\n  key: %q\n  list: |\n    %s\n", k.word(), k.word()) }
	for i := range 2 + k.rand.IntN(3) {
		before := data()
		after := before
		if i == 0 || k.rand.IntN(2) == 0 {
			after = data()
		}
		k.add(inOld|inNext, configMap(fmt.Sprintf("settings-%d", i)), configMapHead, before, after)
	}
	for i := range 1 + k.rand.IntN(2) {
		k.add(inOld, configMap(fmt.Sprintf("gone-%d", i)), configMapHead, data(), "")
		k.add(inNext, configMap(fmt.Sprintf("new-%d", i)), configMapHead, "", data())
	}
	// A rule keeps the field .data.kept, so Keelson gives up its ownership.
	k.add(inOld|inNext, configMap("kept"), configMapHead, "data:\n  kept: before\n  other: a\n", "data:\n  kept: after\n  other: b\n")
}

func (k *fixtureBuilder) rights() {
	const group = "rbac.authorization.k8s.io"
	for i := range 1 + k.rand.IntN(2) {
		name := fmt.Sprintf("reader-%d", i)
		k.add(inOld|inNext, oracle.Object{Resource: "serviceaccounts", Name: name}, "apiVersion: v1\nkind: ServiceAccount",
			"", "automountServiceAccountToken: false")
		role := "rules:\n- apiGroups: [\"\"]\n  resources: [configmaps]\n  verbs: [get]\n"
		k.add(inOld|inNext, oracle.Object{Group: group, Resource: "roles", Name: name},
			"apiVersion: rbac.authorization.k8s.io/v1\nkind: Role", role, role)
		binding := func(to string) string {
			return fmt.Sprintf("roleRef: {apiGroup: %s, kind: Role, name: %s}\nsubjects:\n- {kind: ServiceAccount, name: %s, namespace: %s}\n", group, to, name, k.c.name)
		}
		o := oracle.Object{Group: group, Resource: "rolebindings", Name: name}
		// The roleRef of a binding can't be changed, so Keelson replaces the binding.
		k.add(inOld|inNext, o, "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding", binding(name), binding(name+"-more"))
		o.Namespace = k.c.name
		k.c.replaced = append(k.c.replaced, o)
	}
}

func (k *fixtureBuilder) network() {
	for i := range 1 + k.rand.IntN(2) {
		service := func(port int) string {
			return fmt.Sprintf("spec:\n  clusterIP: None\n  selector: {app: app-%d}\n  ports:\n  - {name: web, port: %d}\n", i, port)
		}
		k.add(inOld|inNext, oracle.Object{Resource: "services", Name: fmt.Sprintf("app-%d", i)},
			"apiVersion: v1\nkind: Service", service(80), service(8000+k.rand.IntN(1000)))
	}
}

func (k *fixtureBuilder) workloads() {
	for i := range 1 + k.rand.IntN(2) {
		deployment := func(tag, wave string) string {
			return fmt.Sprintf(`  annotations: {keelson.io/wave: %q}
spec:
  replicas: 0
  selector: {matchLabels: {app: app-%[2]d}}
  template:
    metadata: {labels: {app: app-%[2]d}}
    spec:
      containers:
      - {name: app, image: "app:%[3]s"}
`, wave, i, tag)
		}
		k.add(inOld|inNext, oracle.Object{Group: "apps", Resource: "deployments", Name: fmt.Sprintf("app-%d", i)},
			"apiVersion: apps/v1\nkind: Deployment", deployment("v1", "0"), deployment("v2-"+k.word(), "0"))
	}
	last := func(s string) string {
		return fmt.Sprintf("  annotations: {keelson.io/wave: \"1\"}\ndata: {last: %q}\n", s)
	}
	k.add(inOld|inNext, configMap("second-wave"), configMapHead, last(k.word()), last(k.word()))
}

// kinds adds a CRD, which is cluster-scoped, and an object of its kind.
func (k *fixtureBuilder) kinds() {
	group := k.c.name + ".chaos.example"
	crd := fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.%[1]s
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer}}}
`, group)
	o := piece{oracle.Object{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Name: "widgets." + group}, crd}
	k.c.old, k.c.next = append(k.c.old, o), append(k.c.next, o)
	size := func() string { return fmt.Sprintf("spec: {size: %d}", 1+k.rand.IntN(9)) }
	k.add(inOld|inNext, oracle.Object{Group: group, Resource: "widgets", Name: "one"},
		"apiVersion: "+group+"/v1\nkind: Widget", size(), size())
}

// hook adds a Job that runs before the upgrade and is deleted after it succeeded.
func (k *fixtureBuilder) hook() {
	o := oracle.Object{Group: "batch", Resource: "jobs", Namespace: k.c.name, Name: "migrate"}
	k.c.next = append(k.c.next, piece{o, fmt.Sprintf(`apiVersion: batch/v1
kind: Job
metadata:
  name: migrate
  namespace: %s
  annotations:
    helm.sh/hook: pre-upgrade
    helm.sh/hook-delete-policy: hook-succeeded
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: migrate, image: "migrate:%s"}
`, k.c.name, k.word())})
	k.c.done = append(k.c.done, o)
}

// later adds a ConfigMap that is applied with kubectl before git contains it.
func (k *fixtureBuilder) later() {
	k.c.adopted = k.word()
	k.add(inNext, configMap("adopted"), configMapHead, "", fmt.Sprintf("data: {key: %q}\n", k.c.adopted))
}

const danger = `danger:
- {name: immutable, effect: allow, because: bindings are cheap, path: .roleRef}
- {name: kept, effect: keep, because: another client sets it, match: {kinds: [ConfigMap], name: kept}, path: .data.kept}
`

// componentFiles returns the files of a component with a chart of one template, in a fleet
// repository. fields are those of its component.yaml.
func componentFiles(name, fields, version, template string) map[string]string {
	folder := "components/" + name + "/"
	return map[string]string{
		folder + "component.yaml":              apiVersion + "kind: Component\n" + fields,
		folder + "template/Chart.yaml":         "apiVersion: v2\nname: " + name + "\nversion: " + version + "\n",
		folder + "template/templates/all.yaml": template,
	}
}

// files returns the files of a version of the component in a fleet repository.
func (c *component) files(pieces []piece) map[string]string {
	var all []string
	for _, p := range pieces {
		all = append(all, p.manifest)
	}
	files := componentFiles(c.name, "namespace: "+c.name+"\nadopt: true\n"+danger, "1.0.0", strings.Join(all, "---\n"))
	files["clusters/"+target+"/"+c.name+".yaml"] = apiVersion + "kind: MetaConfig\nversion: HEAD\n"
	return files
}

// absentFiles returns the file that removes the component from the cluster.
func (c *component) absentFiles() map[string]string {
	return map[string]string{"clusters/" + target + "/" + c.name + ".yaml": apiVersion + "kind: MetaConfig\nversion: HEAD\nabsent: true\n"}
}

// allowAbsent permits in the ledger the deletion of all objects of the component.
func (c *component) allowAbsent(l *oracle.Ledger, from time.Time) {
	for _, p := range c.next {
		l.MayDelete(from, "the component is to be absent", p.Object)
	}
}

// allow enters in the ledger the objects that the component owns in either version.
func (c *component) allow(l *oracle.Ledger) {
	l.Own(oracle.Object{Resource: "namespaces", Name: c.name})
	for _, p := range append(c.old, c.next...) {
		l.Own(p.Object)
	}
}

// allowNext permits in the ledger the deletions of the upgrade to the next version.
func (c *component) allowNext(l *oracle.Ledger, from time.Time) {
	l.MayDelete(from, "git no longer has it", c.removed...)
	l.MayDelete(from, "it can't be updated", c.replaced...)
	l.MayDelete(from, "the hook has run", c.done...)
}
