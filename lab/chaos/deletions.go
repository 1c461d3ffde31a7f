package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// runDeletions draws random plans that end objects in every way that git has. Objects
// leave the target, become hooks, need a replacement, or move to another component. A
// component becomes absent, leaves git, or gets another name. The objects that must not
// be deleted without an approval are of every kind that Keelson holds, or match rules that
// hold, deny or keep. The audit log shows the deletions.
func runDeletions(ctx context.Context, w *world, r *result) {
	r.did, r.must = "plans that end objects: gone, hooks, replaced, moved, renamed, absent", w.Plans
	e := &deletionRun{world: w, tally: map[string]*deletionTally{}, mayGo: map[*deletableObject]bool{}, result: r}
	for _, kind := range deletableKinds() {
		e.tally[kind.name] = &deletionTally{}
	}
	e.install(ctx)
	for round := 1; e.result.number < w.Plans; round++ {
		e.draw(round)
		must.Wrap(func() { e.round(ctx, fmt.Sprintf("round-%d", round)) }, "round %d", round)
	}
	e.control(ctx)
}

// deletableKind is a kind of objects that plans end.
type deletableKind struct {
	name                  string // prefix of its objects' names, and name of the kind in notes
	group, resource, kind string // of version v1
	cluster               bool   // cluster-scoped
	// body returns the rest of the manifest. Most bodies contain an immutable part that
	// depends on ending.variant.
	body func(o *deletableObject) string
	// free objects may be deleted without an approval. never objects may not be deleted
	// even with an approval.
	free, never bool
	// replaced objects may also be deleted and created again without an approval.
	replaced bool
}

func deletableKinds() []deletableKind {
	const rbac = "rbac.authorization.k8s.io"
	config := func(o *deletableObject) string {
		return fmt.Sprintf("immutable: true\ndata: {key: %q}\n", fmt.Sprint(o.variant))
	}
	return []deletableKind{
		{name: "free", resource: "configmaps", kind: "ConfigMap", body: config, free: true},
		{name: "held", resource: "configmaps", kind: "ConfigMap", body: config},
		{name: "denied", resource: "configmaps", kind: "ConfigMap", body: config, never: true},
		{name: "kept", resource: "configmaps", kind: "ConfigMap", body: config, never: true},
		{name: "binding", group: rbac, resource: "rolebindings", kind: "RoleBinding", free: true, replaced: true, body: func(o *deletableObject) string {
			return fmt.Sprintf("roleRef: {apiGroup: %s, kind: Role, name: role-%d}\n", rbac, o.variant)
		}},
		{name: "namespace", resource: "namespaces", kind: "Namespace", cluster: true, body: func(*deletableObject) string { return "" }},
		{name: "claim", resource: "persistentvolumeclaims", kind: "PersistentVolumeClaim", body: func(o *deletableObject) string {
			return fmt.Sprintf("spec:\n  accessModes: [ReadWriteOnce]\n  storageClassName: none-%d\n  resources: {requests: {storage: 1Gi}}\n", o.variant)
		}},
		{name: "volume", resource: "persistentvolumes", kind: "PersistentVolume", cluster: true, body: func(o *deletableObject) string {
			return fmt.Sprintf("spec:\n  accessModes: [ReadWriteOnce]\n  capacity: {storage: 1Gi}\n  persistentVolumeReclaimPolicy: Retain\n  hostPath: {path: /nowhere-%d}\n", o.variant)
		}},
		{name: "class", group: "storage.k8s.io", resource: "storageclasses", kind: "StorageClass", cluster: true, body: func(o *deletableObject) string {
			return fmt.Sprintf("provisioner: chaos.example/%d\n", o.variant)
		}},
		{name: "stateful", group: "apps", resource: "statefulsets", kind: "StatefulSet", body: statefulWithClaims},
		{
			name: "definition", group: "apiextensions.k8s.io", resource: "customresourcedefinitions", kind: "CustomResourceDefinition", cluster: true,
			body: func(o *deletableObject) string {
				scope := []string{"Namespaced", "Cluster"}[o.variant%2]
				plural, group, _ := strings.Cut(o.name, ".")
				return fmt.Sprintf("spec:\n  group: %s\n  scope: %s\n  names: {kind: K%s, plural: %s}\n  versions:\n  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}\n",
					group, scope, plural, plural)
			},
		},
	}
}

// statefulWithClaims returns a StatefulSet whose controller makes a claim. The claim is
// deleted with the StatefulSet.
func statefulWithClaims(o *deletableObject) string {
	return fmt.Sprintf(`spec:
  serviceName: none-%d
  replicas: 1
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Retain}
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec: {containers: [{name: main, image: chaos.example/none}]}
  volumeClaimTemplates:
  - {metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], storageClassName: none, resources: {requests: {storage: 1Gi}}}}
`, o.variant, o.name)
}

// endingRules are the danger rules of each component.
const endingRules = `danger:
- {name: immutable, effect: allow, because: bindings are cheap, path: .roleRef}
- {name: held, effect: hold, on: [delete-object], because: it is drawn, match: {kinds: [ConfigMap], name: "held-*"}}
- {name: denied, effect: deny, on: [delete-object], because: it is drawn, match: {kinds: [ConfigMap], name: "denied-*"}}
`

// deletableObject is an object that a plan can end.
type deletableObject struct {
	*deletableKind
	name, namespace string
	variant         int    // decides the immutable part of the body
	hook, policy    string // annotations of a hook; empty: no annotation
	owner           string // the component that had the object last
	ended           bool   // git asks for its deletion or replacement
	uid             string // UID of the live object; empty: not seen, or deleted
}

func (o *deletableObject) object() oracle.Object {
	return oracle.Object{Group: o.group, Resource: o.resource, Namespace: o.namespace, Name: o.name}
}

// logged returns the names of the object in the audit log. The log names a Namespace as
// its own namespace, except when a POST creates it.
func (o *deletableObject) logged() []oracle.Object {
	one := o.object()
	if o.resource != "namespaces" {
		return []oracle.Object{one}
	}
	inside := one
	inside.Namespace = o.name
	return []oracle.Object{one, inside}
}

func (o *deletableObject) id() string {
	return planned{APIVersion: o.apiVersion(), Kind: o.kind, Namespace: o.namespace, Name: o.name}.id()
}

func (o *deletableObject) apiVersion() string {
	return schema.GroupVersion{Group: o.group, Version: "v1"}.String()
}

func (o *deletableObject) manifest() string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n", o.apiVersion(), o.kind, o.name)
	if o.namespace != "" {
		fmt.Fprintf(&b, "  namespace: %s\n", o.namespace)
	}
	notes := ""
	if o.hook != "" {
		notes += fmt.Sprintf("    helm.sh/hook: %q\n", o.hook)
	}
	if o.policy != "" {
		notes += fmt.Sprintf("    helm.sh/hook-delete-policy: %q\n", o.policy)
	}
	if o.deletableKind.name == "kept" {
		notes += "    helm.sh/resource-policy: keep\n"
	}
	if notes != "" {
		b.WriteString("  annotations:\n" + notes)
	}
	b.WriteString(o.body(o))
	return b.String()
}

// deletionComponent is a component and its content in git.
type deletionComponent struct {
	name    string
	objects []*deletableObject
	absent  bool
	gone    bool // git no longer contains it
}

// namespace returns the component's namespace. It stays when the component is renamed.
func (c *deletionComponent) namespace() string { return strings.TrimSuffix(c.name, renamedSuffix) }

func (c *deletionComponent) renamed() bool { return strings.HasSuffix(c.name, renamedSuffix) }

func (c *deletionComponent) files() map[string]string {
	all := []string{fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: stays-%s, namespace: %s}\n", c.name, c.namespace())}
	for _, o := range c.objects {
		all = append(all, o.manifest())
	}
	cluster := "clusters/" + target + "/" + c.name + ".yaml"
	files := componentFiles(c.name, "namespace: "+c.namespace()+"\n"+endingRules, "1.0.0", strings.Join(all, "---\n"))
	files["components/"+c.name+"/template/values.yaml"] = "{}\n"
	files[cluster] = apiVersion + "kind: MetaConfig\nversion: HEAD\n"
	switch {
	case c.gone:
		for name := range files {
			files[name] = ""
		}
	case c.absent:
		files[cluster] += "absent: true\n"
	}
	return files
}

// deletionTally counts the objects of a kind that git ended, that were approved, and that
// were deleted.
type deletionTally struct{ ended, approved, deleted int }

type deletionRun struct {
	*world
	repo       string
	components []*deletionComponent
	all        []*deletableObject // all objects that were ever in git
	// mayGo are the objects whose deletion git or an approval permits.
	mayGo     map[*deletableObject]bool
	approvals []string
	tally     map[string]*deletionTally
	drawn     int
	result    *result
}

const renamedSuffix = "r"

// endingRounds is the round from which components may end.
const endingRounds = 4

// install delivers the components for the first time.
func (e *deletionRun) install(ctx context.Context) {
	files := map[string]string{}
	for i := range max((e.Plans+endingRounds-1)/endingRounds, 2) {
		c := &deletionComponent{name: fmt.Sprintf("d%03d", i)}
		e.components = append(e.components, c)
		stays := oracle.Object{Resource: "configmaps", Namespace: c.name, Name: "stays-" + c.name}
		renamed := stays
		renamed.Name += renamedSuffix
		e.ledger.Own(oracle.Object{Resource: "namespaces", Name: c.name}, stays, renamed)
		kinds := deletableKinds()
		e.rand.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for j := range kinds[:6] {
			c.objects = append(c.objects, e.object(c, &kinds[j]))
		}
		maps.Copy(files, c.files())
	}
	e.repo = e.repository(ctx, "deletions", files)
	e.succeed(ctx, launch{name: "install", repo: e.repo, kubeconfig: e.direct()}, "apply", target, "--yes", "--no-wait")
	e.checkUndeleted(ctx)
}

func (e *deletionRun) keelsonOn(ctx context.Context, name string, args ...string) (int, string) {
	return e.run(ctx, launch{name: name, repo: e.repo, kubeconfig: e.direct()}, args...)
}

// object makes up an object with a name that was not used before.
func (e *deletionRun) object(c *deletionComponent, kind *deletableKind) *deletableObject {
	e.drawn++
	o := &deletableObject{deletableKind: kind, owner: c.name, variant: e.rand.IntN(1000)}
	o.name = fmt.Sprintf("%s-%s-%d", kind.name, c.name, e.drawn)
	if kind.name == "definition" {
		o.name = fmt.Sprintf("e%d.%s.chaos.example", e.drawn, c.name)
	}
	if !kind.cluster {
		o.namespace = c.namespace()
	}
	e.ledger.Own(o.logged()...)
	e.all = append(e.all, o)
	return o
}

// draw changes each component at random.
func (e *deletionRun) draw(round int) {
	for i, c := range e.components {
		if c.absent || c.gone || round >= endingRounds && e.last(c) {
			continue
		}
		var stay []*deletableObject
		for _, o := range c.objects {
			if e.drawChange(o, e.components[(i+1)%len(e.components)]) {
				stay = append(stay, o)
			}
		}
		kinds := deletableKinds()
		c.objects = append(stay, e.object(c, &kinds[e.rand.IntN(len(kinds))]))
	}
}

// drawChange draws the fate of an object, and reports whether its component still has it.
func (e *deletionRun) drawChange(o *deletableObject, neighbour *deletionComponent) bool {
	switch draw := e.rand.IntN(10); {
	case draw < 3: // it leaves the target
		e.end(o, "git no longer has it")
		return false
	case draw < 5 && o.hook == "": // it becomes a hook
		o.hook = pick(e.rand, "pre-upgrade", "post-upgrade", "pre-install,pre-upgrade")
		o.policy = pick(e.rand, "", "before-hook-creation", "hook-succeeded", "before-hook-creation,hook-succeeded", "hook-failed")
		e.end(o, "it is a hook")
		if o.deletableKind.name == "kept" && o.uid == "" {
			// The hook creates the object. As with Helm, the keep annotation doesn't protect
			// a hook's own object from its delete policy.
			e.mayGo[o] = true
			e.ledger.MayDelete(time.Now(), "a hook makes it", o.logged()...)
		}
	case draw < 6: // it would have to be replaced
		o.variant++
		o.ended = true
		if o.replaced {
			e.end(o, "it can't be updated")
		}
	case draw < 8 && o.hook == "" && !neighbour.gone && !neighbour.absent: // it moves
		o.owner = neighbour.name
		neighbour.objects = append(neighbour.objects, o)
		return false
	}
	return true
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// last draws whether and how a component ends, and reports whether it ended.
func (e *deletionRun) last(c *deletionComponent) bool {
	switch e.rand.IntN(4) {
	case 0:
		c.absent = true
		for _, o := range c.objects {
			e.end(o, "its component is to be absent")
		}
		e.ledger.MayDelete(time.Now(), "its component is to be absent", oracle.Object{Resource: "configmaps", Namespace: c.namespace(), Name: "stays-" + c.name})
	case 1: // the component leaves git; its objects stay in place
		c.gone = true
	case 2: // another name: its objects move
		if c.renamed() {
			return false
		}
		renamed := &deletionComponent{name: c.name + renamedSuffix, objects: c.objects}
		for _, o := range c.objects {
			o.owner = renamed.name
		}
		c.gone, c.objects = true, nil
		e.components = append(e.components, renamed)
	default:
		return false
	}
	return true
}

// end records that git ends an object. Only the deletion of a free object is permitted
// without an approval.
func (e *deletionRun) end(o *deletableObject, why string) {
	o.ended = true
	e.count(o).ended++
	if o.free {
		e.mayGo[o] = true
		e.ledger.MayDelete(time.Now(), why, o.logged()...)
	}
}

func (e *deletionRun) count(o *deletableObject) *deletionTally { return e.tally[o.deletableKind.name] }

// round lets Keelson apply the drawn changes, first without new approvals, then with
// approvals for some of the held objects.
func (e *deletionRun) round(ctx context.Context, name string) {
	files := map[string]string{}
	for _, c := range e.components {
		maps.Copy(files, c.files())
	}
	e.push(ctx, e.repo, files)
	for _, share := range []float64{0, 0.3} {
		e.approve(ctx, name, share)
		e.apply(ctx, name)
	}
	for _, c := range e.components {
		if !c.gone {
			e.result.number++
			e.result.survived++
		}
	}
}

// apply runs keelson apply, and checks the objects in the cluster.
func (e *deletionRun) apply(ctx context.Context, name string) {
	code, out := e.keelsonOn(ctx, name, "apply", target, "--yes", "--no-wait", "--timeout", "10s")
	for _, c := range e.components {
		if !c.gone && !strings.Contains(out, c.name) {
			must.Failf("exit code %d, and %s is not named:\n%s", code, c.name, tail(out))
		}
	}
	e.checkUndeleted(ctx)
}

// planned is an object in the JSON plan of keelson diff.
type planned struct {
	APIVersion, Kind, Namespace, Name, Op, State, Hash string
}

// id returns the name of the object in approvals.
func (p planned) id() string {
	kind := schema.FromAPIVersionAndKind(p.APIVersion, p.Kind).GroupKind().String()
	return kind + " " + strings.TrimPrefix(p.Namespace+"/"+p.Name, "/")
}

// approve commits approvals for a share of the held objects.
func (e *deletionRun) approve(ctx context.Context, name string, share float64) {
	if share == 0 {
		return
	}
	code, out := e.keelsonOn(ctx, name+"-diff", "diff", target, "-o", "json")
	var plan struct{ Objects []planned }
	start := strings.Index(out, "{")
	if start < 0 {
		must.Failf("diff shows no plan (exit code %d):\n%s", code, tail(out))
	}
	if err := json.NewDecoder(strings.NewReader(out[start:])).Decode(&plan); err != nil {
		must.Failf("read the plan (exit code %d): %w\n%s", code, err, tail(out))
	}
	byID := map[string]*deletableObject{}
	for _, o := range e.all {
		byID[o.id()] = o
	}
	for _, p := range plan.Objects {
		o := byID[p.id()]
		if o == nil || !o.ended || p.State != "held" || e.rand.Float64() >= share {
			continue
		}
		e.approvals = append(e.approvals, fmt.Sprintf("- {cluster: %s, component: %s, object: %s, hash: %s, because: it is drawn}\n", target, o.owner, p.id(), p.Hash))
		if !o.never {
			e.count(o).approved++
			e.mayGo[o] = true
			e.ledger.MayDelete(time.Now(), "it is approved", o.logged()...)
		}
	}
	if len(e.approvals) == 0 {
		return
	}
	e.push(ctx, e.repo, map[string]string{"approvals/drawn.yaml": apiVersion + "kind: Approvals\napprovals:\n" + strings.Join(e.approvals, "")})
}

// checkUndeleted checks that each object without permission for a deletion still exists, with the
// same UID.
func (e *deletionRun) checkUndeleted(ctx context.Context) {
	d := e.dynamic()
	live := map[oracle.Object]*unstructured.Unstructured{}
	for _, m := range deletableKinds() {
		gvr := schema.GroupVersionResource{Group: m.group, Version: "v1", Resource: m.resource}
		list := must.Get(d.Resource(gvr).List(ctx, metav1.ListOptions{}))
		for i := range list.Items {
			u := &list.Items[i]
			live[oracle.Object{Group: m.group, Resource: m.resource, Namespace: u.GetNamespace(), Name: u.GetName()}] = u
		}
	}
	for _, o := range e.all {
		u := live[o.object()]
		going := u == nil || u.GetDeletionTimestamp() != nil || string(u.GetUID()) != o.uid
		switch {
		case o.uid == "" && u != nil && u.GetDeletionTimestamp() == nil:
			o.uid = string(u.GetUID())
		case o.uid == "": // the object doesn't exist yet, or is being deleted
		case going && !e.mayGo[o]:
			e.result.violate("%s was deleted, and it may not be", o.id())
			o.uid = "" // report the violation only once
		case going:
			if !o.never { // a never object may only be deleted if a hook created it
				e.count(o).deleted++
			}
			o.uid = ""
			if !o.free { // an approval doesn't cover a later object with the same name
				delete(e.mayGo, o)
			}
		}
	}
}

// control proves that the test could detect wrong deletions. With approvals for all held
// objects, it requires deletions of every kind, except of denied and kept objects.
func (e *deletionRun) control(ctx context.Context) {
	for i := range 3 {
		name := fmt.Sprintf("control-%d", i)
		e.approve(ctx, name, 1)
		e.apply(ctx, name)
	}
	for _, m := range deletableKinds() {
		t := e.tally[m.name]
		e.result.notes = append(e.result.notes, fmt.Sprintf("%s: git ended %d, %d approvals, %d deleted", m.name, t.ended, t.approved, t.deleted))
		if m.never != (t.deleted == 0) {
			must.Failf("the control: %d objects of kind %q were deleted, of %d that git ended: the chances proved nothing", t.deleted, m.name, t.ended)
		}
	}
}
