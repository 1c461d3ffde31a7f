package delivery_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
)

// others are API servers beside the hub's: a component has one record in a cluster. They
// are started when a test first needs them.
var others struct {
	sync.Once
	servers []*apiservertest.Server
	err     error
}

// clusters are so many API servers; the first is the hub.
func clusters(t *testing.T, n int) []*rest.Config {
	t.Helper()
	apiservertest.Need(t, server)
	others.Do(func() {
		for range rolling - 1 {
			s, err := apiservertest.Start(os.Getenv(apiservertest.EnvAssets))
			if err != nil {
				others.err = err
				return
			}
			others.servers = append(others.servers, s)
			if others.err = s.Share(); others.err != nil { // each test has its own names for them
				return
			}
		}
	})
	if others.err != nil {
		t.Fatal(others.err)
	}
	out := []*rest.Config{server}
	for _, s := range others.servers {
		out = append(out, s.Config)
	}
	return out[:n]
}

func stopOthers() (code int) {
	for _, s := range others.servers {
		if err := s.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// rolling is how many clusters a train has.
const rolling = 4

// train is a fleet of four clusters: testing, canary, and two of production, each its
// own API server. The component web goes through them stage by stage.
type train struct {
	*fleet
	mu    sync.Mutex
	ahead time.Duration                // of the clock
	api   map[string]dynamic.Interface // by cluster
	stops func()

	connect func(context.Context, v1alpha1.Connection) (*rest.Config, error)
}

// tester, canary, first and second are the clusters, in the order in which they get a
// change.
func (tr *train) names() []string {
	return []string{tr.name + "-testing", tr.name + "-canary", tr.name + "-zz-first", tr.name + "-second"}
}

// bake is that of the canary stage.
const bake = time.Hour

// settled says whether a cluster was seen at what git wants, in its stage.
func (tr *train) settled(cluster string) bool {
	return slices.ContainsFunc(tr.rollout().Clusters, func(c v1alpha1.RolloutCluster) bool {
		return c.Name == tr.name+"-"+cluster && c.Settled != nil
	})
}

const standard = head + `Pipeline
stages:
- {name: testing, clusterSelector: {matchLabels: {stage: testing}}}
- {name: canary, clusterSelector: {matchLabels: {stage: canary}}, bake: 1h}
- {name: production, clusterSelector: {}, order: rank}
`

// newTrain makes a fleet that has version v1.0.0 everywhere, whose text is hello.
func newTrain(t *testing.T) *train {
	t.Helper()
	tr := &train{fleet: newFleet(t), api: map[string]dynamic.Interface{}}
	tr.now = func() time.Time {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return time.Now().Add(tr.ahead)
	}
	tr.git("rm", "-q", "-r", "clusters", "components")
	tr.git("tag", "-d", tr.name+"-web/v1.0.0")
	configs := map[string]*rest.Config{}
	for i, config := range clusters(t, rolling) {
		name := tr.names()[i]
		configs[name] = config
		d, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		tr.api[name] = d
		stage := []string{"testing", "canary", "production", "production"}[i]
		tr.write("clusters/"+name+"/cluster.yaml", fmt.Sprintf("%sCluster\nlabels: {stage: %s, rank: \"%d\"}\nconnection: {context: %s}\n", head, stage, i, name))
	}
	tr.write("pipelines/standard.yaml", standard)
	tr.release("v1.0.0", "hello")
	tr.connect = func(_ context.Context, c v1alpha1.Connection) (*rest.Config, error) { return configs[c.Context], nil }
	return tr
}

// release publishes a version whose ConfigMap says a text, and has git want it everywhere.
func (tr *train) release(version, text string) {
	tr.t.Helper()
	tr.write("components/CLUSTER-web/component.yaml", head+`Component
namespace: CLUSTER
pipeline: standard
health: [{match: {kinds: [ConfigMap]}, failed: "object.data.text == 'bad'", because: the text is bad}]
`)
	tr.write("components/CLUSTER-web/template/Chart.yaml", "apiVersion: v2\nname: web\nversion: 1.0.0\n")
	tr.write("components/CLUSTER-web/template/templates/web.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: "+text+"}\n")
	tr.commit(version)
	tr.git("tag", tr.name+"-web/"+version)
	tr.want(version)
}

// want has git want a version everywhere.
func (tr *train) want(version string) {
	tr.t.Helper()
	tr.write("layers/10-all.yaml", head+"Layer\nclusterSelector: {}\ncomponents: {CLUSTER-web: {version: "+version+"}}\n")
	tr.commit("want " + version)
}

// on is the text that a cluster has.
func (tr *train) on(cluster string) string {
	u, err := tr.api[cluster].Resource(configMaps).Namespace(tr.name).Get(tr.t.Context(), "web", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		return err.Error()
	}
	text, _, _ := unstructured.NestedString(u.Object, "data", "text")
	return text
}

// collects does the garbage collector's part of a deletion in the foreground.
func (tr *train) collects() {
	for _, api := range tr.api {
		_, _ = api.Resource(configMaps).Namespace(tr.name).Patch(tr.t.Context(), "web", types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{FieldManager: "garbage-collector"})
	}
}

// texts are those that the clusters have, in the order in which they get a change.
func (tr *train) texts() string {
	var out []string
	for _, name := range tr.names() {
		out = append(out, tr.on(name))
	}
	return strings.Join(out, " ")
}

func (tr *train) have(texts string) {
	tr.t.Helper()
	tr.eventually("the clusters have "+texts, func() bool { return tr.texts() == texts })
}

func (tr *train) rollout() v1alpha1.RolloutStatus {
	var r v1alpha1.Rollout
	_ = tr.hub.Get(context.WithoutCancel(tr.t.Context()), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: tr.name + "-web"}, &r)
	return r.Status
}

func (tr *train) delivery(cluster string) v1alpha1.DeliveryStatus {
	var d v1alpha1.Delivery
	_ = tr.hub.Get(context.WithoutCancel(tr.t.Context()), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: cluster + "." + tr.name + "-web"}, &d)
	return d.Status
}

func (tr *train) phase(want v1alpha1.RolloutPhase, because string) {
	tr.t.Helper()
	tr.eventually(fmt.Sprintf("the rollout is %s", want), func() bool {
		s := tr.rollout()
		return s.Phase == want && strings.Contains(s.Because, because)
	})
}

// passes lets time pass, in which what is decided about rollouts is looked at.
func (tr *train) passes(d time.Duration) {
	tr.mu.Lock()
	tr.ahead += d
	tr.mu.Unlock()
	tr.controller.RolloutsSoon()
}

// timeline is what happened to clusters and stages, without times.
func (tr *train) timeline() []string {
	var out []string
	for _, e := range tr.rollout().Timeline {
		out = append(out, strings.Join(strings.Fields(e.Stage+" "+strings.TrimPrefix(e.Cluster, tr.name+"-")+" "+e.Message), " "))
	}
	return out
}

// begin runs a controller until v1.0.0 is everywhere, stage by stage.
func (tr *train) begin() {
	tr.t.Helper()
	tr.stops = tr.start(tr.connect)
	tr.eventually("canary has the first version", func() bool { return tr.on(tr.names()[1]) == "hello" })
	tr.have("hello hello  ")
	tr.eventually("canary is seen there", func() bool { return tr.settled("canary") })
	tr.passes(bake)
	tr.have("hello hello hello hello")
	tr.phase(v1alpha1.RolloutComplete, "")
}

// A first installation and a new version go stage by stage, a cluster at a time, and the
// next stage waits for the bake. Drift is set back wherever it is, by what a cluster has.
func TestRollout(t *testing.T) {
	tr := newTrain(t)
	tr.begin()
	tr.release("v1.1.0", "bye")
	tr.have("bye bye hello hello")
	tr.eventually("canary is seen there", func() bool { return tr.settled("canary") })
	first := tr.names()[2]
	tr.eventually("production waits", func() bool { return tr.delivery(first).Sync == v1alpha1.SyncWaiting })
	if s := tr.delivery(first); s.Health != v1alpha1.HealthHealthy || s.AppliedVersion != "v1.0.0" || s.Version != "v1.1.0" ||
		!strings.Contains(s.Message, "waits for its turn in pipeline standard, and keeps v1.0.0") {
		t.Errorf("the first of production: %+v", s)
	}
	if _, err := tr.api[first].Resource(configMaps).Namespace(tr.name).Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"data":{"text":"drift"}}`), metav1.PatchOptions{FieldManager: "kubectl"}); err != nil {
		t.Fatal(err)
	}
	tr.eventually("drift is set back to what it has", func() bool { return tr.on(first) == "hello" })
	tr.passes(55 * time.Minute)
	tr.eventually("canary bakes", func() bool { return tr.rollout().Progress == "2/4" })
	if got := tr.texts(); got != "bye bye hello hello" {
		t.Errorf("before the bake was over: %s", got)
	}
	tr.passes(5 * time.Minute)
	tr.have("bye bye bye bye")
	tr.phase(v1alpha1.RolloutComplete, "")
	want := []string{
		"begins: v1.0.0 → v1.1.0, revision " + tr.git("rev-parse", "--short=12", "HEAD"),
		"testing opened", "testing testing released", "testing testing settled", "testing passed",
		"canary opened", "canary canary released", "canary canary settled", "canary passed",
		"production opened", "production zz-first released", "production zz-first settled", "production second released", "production second settled",
		"production passed", "complete",
	}
	if diff := gocmp.Diff(want, tr.timeline()[len(tr.timeline())-len(want):]); diff != "" {
		t.Errorf("timeline (-want +got):\n%s", diff)
	}
	tr.atRest()
}

// atRest holds that nothing is written any more.
func (tr *train) atRest() {
	tr.t.Helper()
	var r v1alpha1.Rollout
	key := client.ObjectKey{Namespace: v1alpha1.Namespace, Name: tr.name + "-web"}
	if err := tr.hub.Get(tr.t.Context(), key, &r); err != nil {
		tr.t.Fatal(err)
	}
	before := r.ResourceVersion
	tr.passes(24 * time.Hour)
	tr.passes(24 * time.Hour)
	if err := tr.hub.Get(tr.t.Context(), key, &r); err != nil || r.ResourceVersion != before {
		tr.t.Errorf("at rest the Rollout was written: %v", err)
	}
}

// A version that fails in the canary stops there, with the reason, and production never
// has it. A fix supersedes it.
func TestRolloutFails(t *testing.T) {
	tr := newTrain(t)
	tr.begin()
	tr.release("v1.1.0", "bad")
	tr.phase(v1alpha1.RolloutPaused, "stage testing: "+tr.name+"-testing: ")
	tr.have("bad hello hello hello")
	tr.release("v1.2.0", "good")
	tr.have("good good hello hello")
	tr.phase(v1alpha1.RolloutProgressing, "")
	if got := tr.timeline(); !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, "superseded: git wants v1.2.0") }) {
		t.Errorf("the timeline does not say what superseded it: %q", got)
	}
}

// What fails in a stage that is to be rolled back goes back to what it had; a revert in
// git takes back what is left, at once.
func TestRolloutGoesBack(t *testing.T) {
	tr := newTrain(t)
	tr.write("pipelines/standard.yaml", strings.Replace(standard, "bake: 1h}", "bake: 1h, onFailure: rollback}", 1))
	tr.commit("rollback")
	tr.begin()
	tr.write("components/CLUSTER-web/template/values.yaml", "stage: none\n")
	for _, name := range tr.names() {
		text := "fine"
		if strings.HasSuffix(name, "-canary") {
			text = "bad"
		}
		tr.write("clusters/"+name+"/CLUSTER-web.yaml", head+"MetaConfig\nvalues: {text: "+text+"}\n")
	}
	tr.release("v1.1.0", "{{ .Values.text }}")
	tr.phase(v1alpha1.RolloutRolledBack, "stage canary: ")
	tr.have("fine hello hello hello")
	if s := tr.delivery(tr.names()[1]); s.AppliedVersion != "v1.0.0" || !strings.Contains(s.Message, "takes it back to v1.0.0") {
		t.Errorf("canary: %+v", s)
	}
	tr.want("v1.0.0")
	tr.have("hello hello hello hello")
	tr.phase(v1alpha1.RolloutComplete, "")
	if !tr.rollout().Back {
		t.Error("it does not say that it took a change back")
	}
}

// A controller may stop at any point. The next one continues the rollout: it releases no cluster
// early, and does nothing twice.
func TestRolloutRestarts(t *testing.T) {
	tr := newTrain(t)
	tr.begin()
	seen := len(tr.timeline())
	tr.release("v1.1.0", "bye")
	for _, line := range []string{"testing testing settled", "canary canary settled"} {
		tr.eventually(line, func() bool { return slices.Contains(tr.timeline()[seen:], line) })
		tr.stops()
		tr.stops = tr.start(tr.connect)
	}
	if got := tr.texts(); got != "bye bye hello hello" {
		t.Errorf("before the bake was over: %s", got)
	}
	tr.passes(bake)
	tr.eventually("the first of production", func() bool { return slices.Contains(tr.timeline()[seen:], "production zz-first settled") })
	tr.stops()
	tr.stops = tr.start(tr.connect)
	tr.have("bye bye bye bye")
	tr.phase(v1alpha1.RolloutComplete, "")
	counts := map[string]int{}
	for _, line := range tr.timeline()[seen:] {
		counts[line]++
	}
	for _, line := range slices.Sorted(maps.Keys(counts)) {
		if counts[line] > 1 {
			t.Errorf("%q happened %d times", line, counts[line])
		}
	}
}
