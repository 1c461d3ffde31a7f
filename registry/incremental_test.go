//go:build !race

package registry_test

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/archive"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// TestIncremental changes repositories at random, as people, scripts and broken
// disks do. After each change, a Load that knows what was there before has to
// say what one says that knows nothing, down to the column of each problem. And
// what an earlier Load returned must not change under those who hold it.
func TestIncremental(t *testing.T) {
	t.Parallel()
	seeds, steps := 6, 25
	if os.Getenv("KEELSON_TRIPLES") != "" { // make oracle
		seeds, steps = 30, 40
	}
	// Work where nothing was made anew would show nothing, nor would work where
	// nothing was kept.
	var kept, anew, broken, failed int
	for seed := range seeds {
		m := newMutator(t, uint64(seed)) //nolint:gosec // small
		var before *registry.Fleet
		var said string
		for step := range steps {
			did := m.step()
			fail := func(format string, args ...any) {
				t.Helper()
				t.Fatalf("seed %d, step %d, %s:\n%s", seed, step, strings.Join(did, ", "), fmt.Sprintf(format, args...))
			}
			got, gotErr := m.load(m.repo)
			fresh, wantErr := m.open()
			var want *registry.Fleet
			if wantErr == nil {
				want, wantErr = m.load(fresh)
			}
			if d := cmp.Diff(fmt.Sprint(wantErr), fmt.Sprint(gotErr)); d != "" {
				fail("error (-fresh +incremental):\n%s", d)
			}
			if d := cmp.Diff(want, got, everything()); d != "" {
				fail("(-fresh +incremental):\n%s", d)
			}
			if before != nil && say(t, before) != said {
				fail("the Fleet of the Load before changed:\n%s", cmp.Diff(said, say(t, before)))
			}
			if got == nil {
				failed++
				continue
			}
			if len(got.Problems) > 0 {
				broken++
			}
			k, a := compareKept(before, got)
			kept, anew = kept+k, anew+a
			before, said = got, say(t, got)
		}
	}
	t.Logf("%d clusters kept, %d made anew; %d revisions with problems, %d that could not be read", kept, anew, broken, failed)
	if kept < seeds*steps || anew < seeds*steps/2 || broken < seeds || broken > seeds*steps*9/10 || failed < seeds/10 {
		t.Error("the random changes show too little")
	}
}

// compareKept counts clusters that are the same value, and those that are not.
func compareKept(before, after *registry.Fleet) (kept, anew int) {
	if before == nil {
		return 0, 0
	}
	for _, c := range after.Clusters {
		if before.Cluster(c.Name) == c {
			kept++
		} else {
			anew++
		}
	}
	return kept, anew
}

// everything compares fleets with all that is in them but sharing.
func everything() cmp.Options {
	return cmp.Options{
		cmp.Exporter(func(reflect.Type) bool { return true }),
		cmp.Transformer("Show", registry.Show),
	}
}

// say writes a fleet down.
func say(t testing.TB, f *registry.Fleet) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(f.Revision + "\n" + showProblems(f) + showDeliveries(f))
	for _, c := range f.Clusters {
		fmt.Fprintf(&b, "%s %+v\n", c.Name, c.Spec)
		for _, d := range c.Deliveries {
			fmt.Fprintf(&b, "%s/%s %v %s\n", c.Name, d.Component, d.Problems, asJSON(t, d.Values.Map()))
			if d.Version != nil {
				fmt.Fprintf(&b, "%s %s %v\n", d.Version.Tree, d.Version.Commit, d.Version.Spec)
			}
		}
	}
	return b.String()
}

func open2(t testing.TB, url, cache string) *registry.Repo {
	t.Helper()
	// The memory of tags that were seen is the same; nothing else is.
	r, err := registry.Open(t.Context(), gitrepo.Options{URL: url, CacheDir: cache})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// mutator changes a repository.
type mutator struct {
	*gittest.Repo
	random  *rand.Rand
	cache   string
	repo    *registry.Repo
	history []map[string]gittest.File
	commits []plumbing.Hash
	// hidden are objects that were taken away: where from, and what they held.
	hidden map[string][]byte
	// known are the objects that may have been read.
	known map[plumbing.Hash]bool
	// people may sign, of a repository that is signed: the first two are in the
	// file of trusted keys now and then.
	people []person
	keys   string // the file; empty: nothing is signed
}

type person struct {
	key  ssh.Signer
	sign func([]byte) string
}

func newMutator(t *testing.T, seed uint64) *mutator {
	t.Helper()
	m := &mutator{Repo: gittest.NewRepo(t), random: rand.New(rand.NewPCG(seed, 1)), cache: t.TempDir(), hidden: map[string][]byte{}, known: map[plumbing.Hash]bool{}}
	for path, content := range baseFleet(t) {
		if strings.HasPrefix(path, "components/coredns/") {
			for _, c := range m.components() {
				m.write(strings.Replace(path, "coredns", c, 1), content)
			}
		}
	}
	if seed%3 == 0 {
		m.trust()
	}
	m.write("fleet.yaml", baseFleet(t)["fleet.yaml"])
	m.write("layers/10-all.yaml", m.layer("{}"))
	for _, c := range m.clusters()[:4] {
		m.write("clusters/"+c+"/cluster.yaml", m.cluster(c))
		m.write("clusters/"+c+"/dns.yaml", meta("version: v1.0.0\nvalues: {a: 1}\n"))
	}
	m.Commit()
	for _, c := range m.components() {
		m.Tag(c + "/v1.0.0")
	}
	repo, err := m.open()
	fatal(t, err)
	m.repo = repo
	return m
}

// trust makes keys, and lets everything be signed from here on.
func (m *mutator) trust() {
	for i := range 3 {
		key, sign := gittest.SSHSignerOf(m.T, ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i)}, ed25519.SeedSize)))
		m.people = append(m.people, person{key, sign})
	}
	m.keys = gittest.KeysFile(m.T, gittest.Allowed(m.people[0].key, "")+gittest.Allowed(m.people[1].key, ""))
	m.Sign = m.people[0].sign
}

// open opens the repository as if for the first time, but with the memory of
// tags that were seen and heads that were accepted.
func (m *mutator) open() (*registry.Repo, error) {
	opts := gitrepo.Options{URL: m.Path, CacheDir: m.cache}
	if m.keys != "" {
		opts.TrustedKeys = []string{m.keys}
	}
	return registry.Open(m.T.Context(), opts)
}

func (m *mutator) clusters() []string   { return []string{"one", "two", "three", "four", "five", "six"} }
func (m *mutator) components() []string { return []string{"dns", "proxy", "dns-cache", "web"} }
func (m *mutator) versions() []string   { return []string{"v1.0.0", "v1.1.0", "v1.2.0", "HEAD"} }

func (m *mutator) pick(of ...string) string { return of[m.random.IntN(len(of))] }
func (m *mutator) one(in int) bool          { return m.random.IntN(in) == 0 }

func meta(body string) string { return "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\n" + body }

func (m *mutator) cluster(name string) string {
	text := fmt.Sprintf("apiVersion: keelson.io/v1alpha1\nkind: Cluster\nlabels: {stage: %s, region: %s}\nconnection: {context: %s}\n",
		m.pick("testing", "production"), m.pick("x", "v", "z"), name)
	if m.one(3) {
		text += "imageMirrors: {registry.k8s.io: " + m.pick("m.example", "n.example") + "}\n"
	}
	if m.one(6) {
		text += "paused: true\n"
	}
	return text
}

func (m *mutator) values() string {
	return m.pick(
		fmt.Sprintf("{replicas: %d}", m.random.IntN(5)),
		"{replicas: 2, resources: {limits: {cpu: 1}}}", "{resources: null}", "{tolerations: [{key: a}]}", "{a: {b: {c: 1}}}", "{}",
		"{image: {tag: mine}}", // what images.yaml sets
		"{images: {coredns: {tag: mine}}}",
	)
}

func (m *mutator) layer(selector string) string {
	text := "apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: " + selector + "\ncomponents:\n"
	for _, c := range m.components() {
		if m.one(5) {
			continue
		}
		text += "  " + c + ":\n"
		if m.one(2) {
			text += "    version: " + m.pick(m.versions()...) + "\n"
		}
		if m.one(6) {
			text += "    # a line more\n"
		}
		text += "    values:" + m.pick(" ", "   ") + m.values() + "\n"
	}
	return text
}

// step makes one to three changes, and commits them.
func (m *mutator) step() []string {
	for path, data := range m.hidden { // what was broken is mended first
		if err := os.WriteFile(path, data, 0o600); err != nil {
			m.T.Fatal(err)
		}
		delete(m.hidden, path)
	}
	changes := []func() string{
		m.changeOwn, m.changeOwn, m.changeOwn, m.changeCluster, m.changeLayer, m.changeLayer, m.changeApprovals,
		m.changeComponent, m.changeComponent, m.publish, m.publish, m.changeTag, m.changeFleet, m.goBack, m.loadAnother,
		m.changeChart, m.changeChart, m.seal, m.seal,
	}
	var did []string
	if m.keys != "" {
		did = append(did, m.changeSigner())
		changes = append(changes, m.changeKeys)
	}
	for _, f := range m.Files {
		m.known[f.Hash] = true
	}
	for range 1 + m.random.IntN(3) {
		did = append(did, changes[m.random.IntN(len(changes))]())
	}
	if !m.one(10) {
		m.commits = append(m.commits, m.Commit())
		m.history = append(m.history, maps.Clone(m.Files))
	}
	if m.one(8) {
		did = append(did, m.hide())
	}
	if len(m.commits) > 0 && m.one(15) {
		to := m.commits[m.random.IntN(len(m.commits))]
		m.Ref("refs/heads/main", to) // until the next commit
		did = append(did, "rewind to "+to.String()[:7])
	}
	return did
}

// changeSigner chooses the signer of the commits and tags of this step.
func (m *mutator) changeSigner() string {
	who := m.random.IntN(12)
	switch who {
	case 11:
		m.Sign = nil
		return "new commits are unsigned"
	case 10:
		m.Sign = m.people[2].sign
		return "a person without a trusted key signs"
	}
	m.Sign = m.people[who%2].sign
	return fmt.Sprintf("person %d signs", who%2)
}

// changeKeys changes who is trusted.
func (m *mutator) changeKeys() string {
	first, second := gittest.Allowed(m.people[0].key, ""), gittest.Allowed(m.people[1].key, "")
	content := m.pick(first+second, first+second, second+first, "# a line more\n"+first+second, first, second, "damaged")
	fatal(m.T, os.WriteFile(m.keys, []byte(content), 0o600))
	if content != "damaged" {
		m.Sign = m.people[strings.Count(content, first)*m.random.IntN(2)^1].sign
	}
	return fmt.Sprintf("keys %q", content)
}

// changeChart packs a component's chart, unpacks it, or says where it is from.
func (m *mutator) changeChart() string {
	folder := "components/" + m.pick(m.components()...) + "/"
	source := func(digest string) {
		m.write(folder+"chart.yaml", "apiVersion: keelson.io/v1alpha1\nkind: ChartSource\nurl: oci://registry.example/charts\nname: x\n"+
			"version: 1.0.0\ndigest: "+digest+"\n")
	}
	chart := tgz(m.T, 1+m.random.IntN(3), 10)
	switch m.random.IntN(6) {
	case 0:
		m.Remove(folder + "chart.yaml")
		return "no source " + folder
	case 1:
		source("sha256:" + strings.Repeat("0", 64))
		return "wrong source " + folder
	case 2:
		return m.odd(folder + m.pick("chart.yaml", "template/x.tgz"))
	case 3:
		m.write(folder+"template/"+m.pick("x.tgz", "y.tgz", "README.md"), string(chart))
		return "packed beside what is there " + folder
	default:
		m.Remove(folder + "template")
		m.write(folder+"template/x.tgz", string(chart))
		if m.one(2) {
			source(archive.Digest(chart))
		}
		return "packed " + folder
	}
}

// seal encrypts a file of a cluster, or a layer.
func (m *mutator) seal() string {
	encrypted := fmt.Sprintf("ENC[AES256_GCM,data:%s,iv:qRp+F7HMmoM0kH3MZg1uOQ2vT6Nbd5Qy4l0Vv3Zg0pQ=,tag:O5+Ce2sjm1jHX5+tA+yQIg==,type:str]",
		m.pick("AAAA", "BBBB"))
	values := fmt.Sprintf("{password: \"%s\", replicas: %d}", encrypted, m.random.IntN(2))
	if m.one(8) {
		values = "{replicas: 1}" // that the file is sealed is all that it says
	}
	body := meta("version: " + m.pick(m.versions()...) + "\nvalues: " + values + "\n")
	path := "clusters/" + m.pick(m.clusters()[:5]...) + "/" + m.pick(m.components()...) + ".yaml"
	switch {
	case m.one(3):
		path = "layers/" + m.pick("10-all", "20-some", "30-more") + ".yaml"
		body = "apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {}\ncomponents:\n  " +
			m.pick(m.components()...) + ": {values: " + values + "}\n"
	case m.Files[filepath.Dir(path)+"/cluster.yaml"] == gittest.File{}:
		return "nothing"
	}
	sealed := string(readFile(m.T, "sops/testdata/encrypted-regex.yaml"))
	m.write(path, body+sealed[strings.Index(sealed, "\nsops:")+1:]+m.pick("", "", "# a line more\n"))
	return "seal " + path
}

// odd puts something at a path that does not belong there.
func (m *mutator) odd(path string) string {
	switch m.random.IntN(7) {
	case 0:
		m.Symlink(path, "elsewhere")
		return "symlink " + path
	case 6:
		if f, ok := m.Files[path]; ok {
			f.Mode = filemode.Symlink
			m.Files[path] = f
			return "symlink of the same content " + path
		}
		return "nothing"
	case 1:
		m.Submodule(path)
		return "submodule " + path
	case 2:
		m.Remove(path)
		m.write(path+"/inside.yaml", "a: b\n")
		return "folder " + path
	case 3:
		m.write(path, "a: [\n")
		return "no YAML " + path
	case 4:
		m.write(path, "apiVersion: keelson.io/v1alpha1\nkind: Fleet\nname: a\n")
		return "another kind " + path
	default:
		data := string(m.content(path))
		m.write(path, data+"unknownKey: 1\n")
		return "unknown key " + path
	}
}

func (m *mutator) content(path string) []byte {
	f, ok := m.Files[path]
	if !ok {
		return nil
	}
	raw, err := m.Storage.EncodedObject(plumbing.BlobObject, f.Hash)
	if err != nil {
		return nil // a submodule
	}
	r, err := raw.Reader()
	if err != nil {
		m.T.Fatal(err)
	}
	data := make([]byte, raw.Size())
	if _, err := r.Read(data); err != nil && len(data) > 0 && err.Error() != "EOF" {
		m.T.Fatal(err)
	}
	return data
}

// write puts a file where a folder, or nothing, may be.
func (m *mutator) write(path, content string) {
	m.Remove(path)
	m.Write(path, content)
}

func (m *mutator) changeOwn() string {
	path := "clusters/" + m.pick(m.clusters()[:5]...) + "/" + m.pick(m.components()...) + ".yaml"
	if _, ok := m.Files[filepath.Dir(path)+"/cluster.yaml"]; !ok {
		return "nothing"
	}
	switch m.random.IntN(8) {
	case 0:
		m.Remove(path)
		return "remove " + path
	case 1:
		return m.odd(path)
	case 2:
		m.write(strings.TrimSuffix(path, ".yaml")+".yml", meta("version: v1.0.0\n"))
		return "as .yml " + path
	case 3:
		m.Remove(strings.TrimSuffix(path, ".yaml") + ".yml")
		m.write(path, meta("values: "+m.values()+"\n"))
		return "values alone " + path
	default:
		body := "version: " + m.pick(append(m.versions(), "1.0", "v9.0.0")...) + "\nvalues: " + m.values() + "\n"
		if m.one(4) {
			body += "paused: true\n"
		}
		m.Remove(strings.TrimSuffix(path, ".yaml") + ".yml")
		m.write(path, meta(body))
		return "write " + path
	}
}

func (m *mutator) changeCluster() string {
	name := m.pick(m.clusters()...)
	path := "clusters/" + name + "/cluster.yaml"
	switch m.random.IntN(7) {
	case 0:
		m.Remove("clusters/" + name)
		return "remove cluster " + name
	case 1:
		return m.odd(path)
	case 2:
		m.Remove("clusters/" + name)
		return m.odd("clusters/" + name)
	case 3:
		m.Remove("clusters/" + name + "/cluster.yaml")
		return "remove " + path
	default:
		if f, ok := m.Files["clusters/"+name]; ok && f.Hash != (plumbing.Hash{}) {
			m.Remove("clusters/" + name)
		}
		m.write(path, m.cluster(name))
		return "write " + path
	}
}

func (m *mutator) changeLayer() string {
	path := "layers/" + m.pick("10-all", "20-some", "30-more") + ".yaml"
	selector := m.pick("{}", "{matchLabels: {stage: testing}}", "{matchLabels: {region: x}}",
		"{matchExpressions: [{key: region, operator: In, values: [v, z]}]}", "{matchExpressions: [{key: region, operator: Like}]}")
	switch m.random.IntN(9) {
	case 0:
		m.Remove(path)
		return "remove " + path
	case 1:
		return m.odd(path)
	case 2:
		m.write(path, m.layer(selector)+"  unknown:\n    values: {a: 1}\n")
		return "unknown component " + path
	case 3:
		m.write(path, "# a line more\n"+string(m.content(path)))
		return "lines move " + path
	default:
		m.write(path, m.layer(selector))
		return "write " + path + " for " + selector
	}
}

func (m *mutator) changeApprovals() string {
	const path = "approvals/now.yaml"
	if m.one(4) {
		m.Remove(path)
		return "remove " + path
	}
	text := "apiVersion: keelson.io/v1alpha1\nkind: Approvals\napprovals:\n"
	for range 1 + m.random.IntN(3) {
		text += "- {" + m.pick("cluster: one", "cluster: three", "cluster: nowhere", "clusterSelector: {matchLabels: {stage: testing}}") +
			", component: " + m.pick(m.components()...) + ", object: Deployment.apps a/b, hash: " +
			strings.Repeat(m.pick("b", "a"), 32) + ", because: x" + m.pick("", ", typo: 1") + "}\n"
	}
	m.write(path, text)
	return "write " + path
}

func (m *mutator) changeComponent() string {
	name := m.pick(m.components()...)
	folder := "components/" + name + "/"
	switch m.random.IntN(8) {
	case 0:
		m.Remove("components/" + name)
		return "remove " + folder
	case 1:
		return m.odd(folder + m.pick("component.yaml", "images.yaml", "template/Chart.yaml", "template/x.yaml"))
	case 2:
		m.write(folder+"template/values.yaml", fmt.Sprintf("replicas: %d\n", m.random.IntN(9)))
		return "values of " + folder
	default:
		for path, content := range baseFleet(m.T) {
			if rest, ok := strings.CutPrefix(path, "components/coredns/"); ok {
				m.write(folder+rest, content)
			}
		}
		m.Remove(folder + "template/x.yaml")
		m.Remove(folder + "template/x.tgz")
		m.Remove(folder + "template/y.tgz")
		m.Remove(folder + "template/README.md")
		m.Remove(folder + "chart.yaml")
		text := "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: x\n"
		if m.one(2) {
			text += "dependsOn: [" + m.pick(append(m.components(), "absent")...) + "]\n"
		}
		text += m.pick("", "", "", "pipeline: standard\n", "pipelin: standard\n")
		m.write(folder+"component.yaml", text)
		return "write " + folder
	}
}

// publish tags what stands, new or where the tag was before.
func (m *mutator) publish() string {
	m.commits = append(m.commits, m.Commit())
	for _, f := range m.Files { // another Load may look at the commit
		m.known[f.Hash] = true
	}
	tag := m.pick(m.components()...) + "/" + m.pick("v1.0.0", "v1.1.0", "v1.2.0", "v1.3.0", "nonsense")
	switch _, err := m.Storage.Reference(plumbing.NewTagReferenceName(tag)); {
	case err == nil && !m.one(5):
		return "nothing"
	case m.one(4):
		m.Annotate(tag, m.Last)
	default:
		m.Tag(tag)
	}
	return "tag " + tag
}

func (m *mutator) changeTag() string {
	tag := m.pick(m.components()...) + "/" + m.pick("v1.0.0", "v1.1.0", "v1.2.0")
	if m.one(3) {
		m.DeleteTag(tag)
		return "delete tag " + tag
	}
	if len(m.commits) == 0 {
		return "nothing"
	}
	m.Ref("refs/tags/"+tag, m.commits[m.random.IntN(len(m.commits))])
	return "move tag " + tag
}

func (m *mutator) changeFleet() string {
	switch m.random.IntN(12) {
	case 0:
		m.write("fleet.yaml", baseFleet(m.T)["fleet.yaml"]+"unknownKey: 1\n")
		return "unknown key in fleet.yaml"
	case 1:
		m.write("fleet.yaml", "a: [\n")
		return "broken fleet.yaml"
	case 2:
		m.write("freezes/now.yaml", m.pick("x", freezeText, freezeText+"untl: x\n", strings.Replace(freezeText, "coredns", "nothing", 1)))
		return "a freeze"
	case 3, 4:
		m.write("pipelines/standard.yaml", m.pick("x", pipelineText, pipelineText, pipelineText+"- {name: others, clusterSelector: {}}\n"))
		return "a pipeline"
	case 5:
		m.write("checks/job.yaml", m.pick(jobText, jobText, "kind: Pod\n"))
		return "a job"
	case 6:
		m.Remove("pipelines")
		return "no pipelines"
	default:
		m.Remove("freezes")
		text := baseFleet(m.T)["fleet.yaml"] + m.pick("", "drift: report\n") + m.pick("", "", "pipeline: standard\n")
		if m.keys != "" || m.one(8) {
			text += m.pick("", "verify: signed\n", "verify: signed-tags\n")
		}
		m.write("fleet.yaml", text)
		return "good fleet.yaml"
	}
}

// goBack reverts everything to an earlier state.
func (m *mutator) goBack() string {
	if len(m.history) == 0 {
		return "nothing"
	}
	m.Files = maps.Clone(m.history[m.random.IntN(len(m.history))])
	return "revert"
}

// loadAnother loads another revision in between, as a preview does.
func (m *mutator) loadAnother() string {
	if len(m.commits) > 0 {
		rev := m.commits[m.random.IntN(len(m.commits))].String()
		_, err := m.repo.Load(m.T.Context(), rev)
		return fmt.Sprintf("load %s: %v", rev[:7], err)
	}
	return "nothing"
}

// hide takes a new object away, as a broken disk does. What was read before
// need not be read again, so it would not be missed.
func (m *mutator) hide() string {
	for _, path := range slices.Sorted(maps.Keys(m.Files)) {
		f := m.Files[path]
		hash := f.Hash.String()
		object := filepath.Join(m.Path, "objects", hash[:2], hash[2:])
		if m.known[f.Hash] || f.Mode == filemode.Submodule || m.one(2) {
			continue
		}
		data := readFile(m.T, object)
		if err := os.Remove(object); err != nil {
			m.T.Fatal(err)
		}
		m.hidden[object] = data
		return "hide " + path
	}
	return "nothing"
}

func (m *mutator) load(r *registry.Repo) (*registry.Fleet, error) {
	if err := r.Git().Fetch(m.T.Context()); err != nil {
		return nil, err
	}
	return r.Load(m.T.Context(), "")
}
