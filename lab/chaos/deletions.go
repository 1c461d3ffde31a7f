package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/lab/chaos/oracle"
)

// runDeletions draws plans that end objects in every way that git has: they leave the
// target, become hooks, are to be replaced, move to another component, get another name,
// or their component is to be absent or gets another name itself. What may not be deleted
// without an approval is of every kind that Keelson holds, and what its rules hold, deny
// and keep. The audit log says what was deleted.
func runDeletions(ctx context.Context, w *world) (result, error) {
	e := &endings{
		world: w, tally: map[string]*endingTally{},
		result: result{did: "plans that end objects: gone, hooks, replaced, moved, renamed, absent", must: w.Plans},
	}
	if err := e.install(ctx); err != nil {
		return e.result, err
	}
	for round := 1; e.result.number < w.Plans; round++ {
		e.draw(round)
		if err := e.round(ctx, fmt.Sprintf("round-%d", round)); err != nil {
			return e.result, fmt.Errorf("round %d: %w", round, err)
		}
	}
	return e.result, e.control(ctx)
}

// mortal is a kind of objects that plans end.
type mortal struct {
	name            string // of its objects, and of the kind in notes
	group, resource string
	kind            string
	cluster         bool // no namespace
	// body has a part that no update changes, and that a number decides.
	body func(o *ending) string
	// free objects may be deleted by git alone; doomed ones never, by an approval neither.
	free, never bool
	// replaced says that git alone may also have it deleted and made anew.
	replaced bool
}

func mortals() []mortal {
	const rbac = "rbac.authorization.k8s.io"
	config := func(o *ending) string {
		return fmt.Sprintf("immutable: true\ndata: {key: %q}\n", fmt.Sprint(o.variant))
	}
	return []mortal{
		{name: "free", resource: "configmaps", kind: "v1/ConfigMap", body: config, free: true},
		{name: "held", resource: "configmaps", kind: "v1/ConfigMap", body: config},
		{name: "denied", resource: "configmaps", kind: "v1/ConfigMap", body: config, never: true},
		{name: "kept", resource: "configmaps", kind: "v1/ConfigMap", body: config, never: true},
		{name: "binding", group: rbac, resource: "rolebindings", kind: rbac + "/v1/RoleBinding", free: true, replaced: true, body: func(o *ending) string {
			return fmt.Sprintf("roleRef: {apiGroup: %s, kind: Role, name: role-%d}\n", rbac, o.variant)
		}},
		{name: "namespace", resource: "namespaces", kind: "v1/Namespace", cluster: true, body: func(*ending) string { return "" }},
		{name: "claim", resource: "persistentvolumeclaims", kind: "v1/PersistentVolumeClaim", body: func(o *ending) string {
			return fmt.Sprintf("spec:\n  accessModes: [ReadWriteOnce]\n  storageClassName: none-%d\n  resources: {requests: {storage: 1Gi}}\n", o.variant)
		}},
		{name: "volume", resource: "persistentvolumes", kind: "v1/PersistentVolume", cluster: true, body: func(o *ending) string {
			return fmt.Sprintf("spec:\n  accessModes: [ReadWriteOnce]\n  capacity: {storage: 1Gi}\n  persistentVolumeReclaimPolicy: Retain\n  hostPath: {path: /nowhere-%d}\n", o.variant)
		}},
		{name: "class", group: "storage.k8s.io", resource: "storageclasses", kind: "storage.k8s.io/v1/StorageClass", cluster: true, body: func(o *ending) string {
			return fmt.Sprintf("provisioner: chaos.example/%d\n", o.variant)
		}},
		{name: "stateful", group: "apps", resource: "statefulsets", kind: "apps/v1/StatefulSet", body: statefulWithClaims},
		{
			name: "definition", group: "apiextensions.k8s.io", resource: "customresourcedefinitions", kind: "apiextensions.k8s.io/v1/CustomResourceDefinition", cluster: true,
			body: func(o *ending) string {
				scope := []string{"Namespaced", "Cluster"}[o.variant%2]
				plural, group, _ := strings.Cut(o.name, ".")
				return fmt.Sprintf("spec:\n  group: %s\n  scope: %s\n  names: {kind: K%s, plural: %s}\n  versions:\n  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}\n",
					group, scope, plural, plural)
			},
		},
	}
}

// statefulWithClaims has a claim that its controller makes, and that is deleted with it.
func statefulWithClaims(o *ending) string {
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

// endingRules are those of each component.
const endingRules = `danger:
- {name: immutable, effect: allow, because: bindings are cheap, path: .roleRef}
- {name: held, effect: hold, on: [delete-object], because: it is drawn, match: {kinds: [ConfigMap], name: "held-*"}}
- {name: denied, effect: deny, on: [delete-object], because: it is drawn, match: {kinds: [ConfigMap], name: "denied-*"}}
`

// ending is one object.
type ending struct {
	*mortal
	name, namespace string
	variant         int    // of the part that no update changes
	hook, policy    string // annotations of a hook; empty: none
	owner           string // the component that had it last
	ended           bool   // git wants it to go, or to be made anew
	uid             string // when it was first seen
}

func (o *ending) object() oracle.Object {
	return oracle.Object{Group: o.group, Resource: o.resource, Namespace: o.namespace, Name: o.name}
}

// logged is the object as the audit log may name it: a Namespace is in itself there, but
// when it is made by POST.
func (o *ending) logged() []oracle.Object {
	one := o.object()
	if o.resource != "namespaces" {
		return []oracle.Object{one}
	}
	inside := one
	inside.Namespace = o.name
	return []oracle.Object{one, inside}
}

// id is the object as approvals name it.
func (o *ending) id() string {
	i := strings.LastIndex(o.kind, "/")
	id := o.kind[i+1:]
	if o.group != "" {
		id += "." + o.group
	}
	if o.namespace != "" {
		return id + " " + o.namespace + "/" + o.name
	}
	return id + " " + o.name
}

func (o *ending) manifest() string {
	version := strings.TrimSuffix(o.kind, o.kind[strings.LastIndex(o.kind, "/"):])
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n", version, o.kind[len(version)+1:], o.name)
	if o.namespace != "" {
		fmt.Fprintf(&b, "  namespace: %s\n", o.namespace)
	}
	notes := map[string]string{}
	if o.mortal.name == "kept" {
		notes["helm.sh/resource-policy"] = "keep"
	}
	if o.hook != "" {
		notes["helm.sh/hook"] = o.hook
	}
	if o.policy != "" {
		notes["helm.sh/hook-delete-policy"] = o.policy
	}
	if len(notes) > 0 {
		b.WriteString("  annotations:\n")
		for _, name := range slices.Sorted(maps.Keys(notes)) {
			fmt.Fprintf(&b, "    %s: %q\n", name, notes[name])
		}
	}
	b.WriteString(o.body(o))
	return b.String()
}

// endingComponent is a component and what git has of it.
type endingComponent struct {
	name    string
	objects []*ending
	absent  bool
	gone    bool // git doesn't know it any more
}

// namespace stays the same when the component gets another name.
func (c *endingComponent) namespace() string { return strings.TrimSuffix(c.name, renamedSuffix) }

func (c *endingComponent) renamed() bool { return strings.HasSuffix(c.name, renamedSuffix) }

func (c *endingComponent) files() map[string]string {
	folder, cluster := "components/"+c.name+"/", "clusters/"+target+"/"+c.name+".yaml"
	files := map[string]string{
		folder + "component.yaml":       apiVersion + "kind: Component\nnamespace: " + c.namespace() + "\n" + endingRules,
		folder + "template/Chart.yaml":  "apiVersion: v2\nname: " + c.name + "\nversion: 1.0.0\n",
		folder + "template/values.yaml": "{}\n",
		cluster:                         apiVersion + "kind: MetaConfig\nversion: HEAD\n",
	}
	all := []string{fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: stays-%s, namespace: %s}\n", c.name, c.namespace())}
	for _, o := range c.objects {
		all = append(all, o.manifest())
	}
	files[folder+"template/templates/all.yaml"] = strings.Join(all, "---\n")
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

// endingTally counts what was tried with the objects of a kind, and what came of it.
type endingTally struct{ ended, approved, deleted int }

type endings struct {
	*world
	repo       string
	components []*endingComponent
	all        []*ending // that were ever in git
	// mayGo are objects that git, or an approval, lets be deleted.
	mayGo     map[*ending]bool
	approvals []string
	tally     map[string]*endingTally
	drawn     int
	result    result
}

const renamedSuffix = "r"

// endingRounds is in how many rounds a component is changed before it ends.
const endingRounds = 4

// install delivers the components.
func (e *endings) install(ctx context.Context) (err error) {
	e.mayGo = map[*ending]bool{}
	files := map[string]string{}
	for i := range max((e.Plans+endingRounds-1)/endingRounds, 2) {
		c := &endingComponent{name: fmt.Sprintf("d%03d", i)}
		e.components = append(e.components, c)
		e.ledger.Own(oracle.Object{Resource: "namespaces", Name: c.name})
		e.ledger.Own(oracle.Object{Resource: "configmaps", Namespace: c.name, Name: "stays-" + c.name})
		e.ledger.Own(oracle.Object{Resource: "configmaps", Namespace: c.name, Name: "stays-" + c.name + "r"})
		kinds := mortals()
		e.rand.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for j := range kinds[:6] {
			c.objects = append(c.objects, e.object(c, &kinds[j]))
		}
		maps.Copy(files, c.files())
	}
	if e.repo, err = e.repository(ctx, "deletions", files); err != nil {
		return err
	}
	code, out, err := e.keelsonOn(ctx, "install", "apply", target, "--yes", "--no-wait")
	if err != nil || code != 0 {
		return fmt.Errorf("install: exit code %d: %w\n%s", code, err, tail(out))
	}
	return e.look(ctx)
}

func (e *endings) keelsonOn(ctx context.Context, name string, args ...string) (int, string, error) {
	direct, err := e.direct()
	if err != nil {
		return 0, "", err
	}
	return e.run(ctx, launch{name: name, repo: e.repo, kubeconfig: direct}, args...)
}

// object makes one up that nothing was called before.
func (e *endings) object(c *endingComponent, kind *mortal) *ending {
	e.drawn++
	o := &ending{mortal: kind, owner: c.name, variant: e.rand.IntN(1000)}
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

// draw changes what git has of each component.
func (e *endings) draw(round int) {
	for i, c := range e.components {
		if c.absent || c.gone {
			continue
		}
		if round >= endingRounds && e.last(c) {
			continue
		}
		var stay []*ending
		for _, o := range c.objects {
			if e.fate(o, e.components[(i+1)%len(e.components)]) {
				stay = append(stay, o)
			}
		}
		kinds := mortals()
		c.objects = append(stay, e.object(c, &kinds[e.rand.IntN(len(kinds))]))
	}
}

// fate draws what becomes of an object, and reports whether its component has it still.
func (e *endings) fate(o *ending, neighbour *endingComponent) bool {
	switch draw := e.rand.IntN(10); {
	case draw < 3: // it leaves the target
		e.end(o, "git no longer has it")
		return false
	case draw < 5 && o.hook == "": // it becomes a hook
		o.hook = pick(e.rand, "pre-upgrade", "post-upgrade", "pre-install,pre-upgrade")
		o.policy = pick(e.rand, "", "before-hook-creation", "hook-succeeded", "before-hook-creation,hook-succeeded", "hook-failed")
		e.end(o, "it is a hook")
		if o.mortal.name == "kept" && o.uid == "" {
			// The hook makes it: an annotation keeps no hook's own object from its delete
			// policy, as with Helm.
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

// last ends a component, and reports whether it did.
func (e *endings) last(c *endingComponent) bool {
	switch e.rand.IntN(4) {
	case 0:
		c.absent = true
		for _, o := range c.objects {
			e.end(o, "its component is to be absent")
		}
		e.ledger.MayDelete(time.Now(), "its component is to be absent", oracle.Object{Resource: "configmaps", Namespace: c.namespace(), Name: "stays-" + c.name})
	case 1: // without a word: its objects are left in place
		c.gone = true
	case 2: // another name: its objects move
		if c.renamed() {
			return false
		}
		renamed := &endingComponent{name: c.name + renamedSuffix, objects: c.objects}
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

// end notes that git wants an object to go: by itself it may only if it is free to.
func (e *endings) end(o *ending, why string) {
	o.ended = true
	e.count(o).ended++
	if o.free {
		e.mayGo[o] = true
		e.ledger.MayDelete(time.Now(), why, o.logged()...)
	}
}

func (e *endings) count(o *ending) *endingTally {
	t := e.tally[o.mortal.name]
	if t == nil {
		t = &endingTally{}
		e.tally[o.mortal.name] = t
	}
	return t
}

// round has Keelson carry out what was drawn, first without any approval, and then with
// some of those that it asks for.
func (e *endings) round(ctx context.Context, name string) error {
	files := map[string]string{}
	for _, c := range e.components {
		maps.Copy(files, c.files())
	}
	if err := e.push(ctx, e.repo, files); err != nil {
		return err
	}
	for _, share := range []float64{0, 0.3} {
		if err := e.approve(ctx, name, share); err != nil {
			return err
		}
		if err := e.apply(ctx, name); err != nil {
			return err
		}
	}
	for _, c := range e.components {
		if !c.gone {
			e.result.number++
			e.result.survived++
		}
	}
	return nil
}

// apply has Keelson bring the cluster to what git says, and looks at what is there.
func (e *endings) apply(ctx context.Context, name string) error {
	code, out, err := e.keelsonOn(ctx, name, "apply", target, "--yes", "--no-wait", "--timeout", "10s")
	if err != nil {
		return err
	}
	for _, c := range e.components {
		if !c.gone && !strings.Contains(out, c.name) {
			return fmt.Errorf("exit code %d, and %s is not named:\n%s", code, c.name, tail(out))
		}
	}
	return e.look(ctx)
}

// planned is an object of a plan.
type planned struct {
	APIVersion, Kind, Namespace, Name, Op, State, Hash string
}

func (p planned) id() string {
	id := p.Kind
	if group, _, ok := strings.Cut(p.APIVersion, "/"); ok {
		id += "." + group
	}
	if p.Namespace != "" {
		return id + " " + p.Namespace + "/" + p.Name
	}
	return id + " " + p.Name
}

// approve puts approvals into git for a share of what is held.
func (e *endings) approve(ctx context.Context, name string, share float64) error {
	if share == 0 {
		return nil
	}
	code, out, err := e.keelsonOn(ctx, name+"-diff", "diff", target, "-o", "json")
	if err != nil {
		return err
	}
	var plan struct{ Objects []planned }
	start := strings.Index(out, "{")
	if start < 0 {
		return fmt.Errorf("diff shows no plan (exit code %d):\n%s", code, tail(out))
	}
	if err := json.NewDecoder(strings.NewReader(out[start:])).Decode(&plan); err != nil {
		return fmt.Errorf("read the plan (exit code %d): %w\n%s", code, err, tail(out))
	}
	byID := map[string]*ending{}
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
		return nil
	}
	return e.push(ctx, e.repo, map[string]string{"approvals/drawn.yaml": apiVersion + "kind: Approvals\napprovals:\n" + strings.Join(e.approvals, "")})
}

// look holds that what may not go is there, and is the object that it was.
func (e *endings) look(ctx context.Context) error {
	d, err := e.dynamic()
	if err != nil {
		return err
	}
	live := map[oracle.Object]*unstructured.Unstructured{}
	for _, m := range mortals() {
		gvr := schema.GroupVersionResource{Group: m.group, Version: "v1", Resource: m.resource}
		list, err := d.Resource(gvr).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s: %w", m.resource, err)
		}
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
		case o.uid == "": // it was not made yet, or is going
		case going && !e.mayGo[o]:
			e.result.violate("%s was deleted, and it may not be", o.id())
			o.uid = "" // told once
		case going:
			if !o.never { // but for a hook's own
				e.count(o).deleted++
			}
			o.uid = ""
			if !o.free { // an approval is for one object, and not for the next of its name
				delete(e.mayGo, o)
			}
		}
	}
	return nil
}

// control shows that the chances were real: with approvals for all that is held, all that
// may go at all goes, and what is denied and kept stays.
func (e *endings) control(ctx context.Context) error {
	for i := range 3 {
		name := fmt.Sprintf("control-%d", i)
		if err := e.approve(ctx, name, 1); err != nil {
			return err
		}
		if err := e.apply(ctx, name); err != nil {
			return err
		}
	}
	for _, m := range mortals() {
		t := e.tally[m.name]
		if t == nil {
			t = &endingTally{}
		}
		e.result.notes = append(e.result.notes, fmt.Sprintf("%s: git ended %d, %d approvals, %d deleted", m.name, t.ended, t.approved, t.deleted))
		if m.never != (t.deleted == 0) {
			return fmt.Errorf("the control: %d objects of kind %q were deleted, of %d that git ended: the chances proved nothing", t.deleted, m.name, t.ended)
		}
	}
	return nil
}
