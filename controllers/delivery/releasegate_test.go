package delivery_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// drifts changes the text as another client, and waits until the text is back.
func (f *fleet) drifts(back string) {
	f.t.Helper()
	_, err := f.dynamic.Resource(configMaps).Namespace(f.name).Patch(f.t.Context(), "web", types.MergePatchType,
		[]byte(`{"data":{"text":"drift"}}`), metav1.PatchOptions{FieldManager: "kubectl"})
	if err != nil {
		f.t.Fatal(err)
	}
	f.eventually("drift is set back", func() bool { return f.text() == back })
}

// A freeze holds what git changes, of components with a pipeline and without, says why,
// and lets drift be set back to what runs. When it is gone, the change arrives.
func TestFreeze(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.write("freezes/double-11.yaml", head+"Freeze\nclusterSelector: {}\nreason: double 11\n")
	f.say("bye")
	f.sync(v1alpha1.SyncWaiting, "frozen: double 11 (freezes/double-11.yaml), and keeps v1.0.0")
	f.drifts("hello")
	f.sync(v1alpha1.SyncWaiting, "frozen")
	f.git("rm", "-q", "freezes/double-11.yaml")
	f.commit("thaw")
	f.eventually("the change arrives", func() bool { return f.text() == "bye" })
	f.sync(v1alpha1.SyncSynced, "")
}

// partly delivers a version of which one object is held: the other object changes.
func (f *fleet) partly() {
	f.t.Helper()
	name := "components/CLUSTER-web/template/templates/web.yaml"
	before, err := os.ReadFile(filepath.Join(f.folder, strings.ReplaceAll(name, "CLUSTER", f.name)))
	if err != nil {
		f.t.Fatal(err)
	}
	f.write(name, strings.Replace(string(before), "selector: {matchLabels: {app: web}}", "selector: {matchLabels: {app: other}}", 1))
	f.commit("another selector")
	f.git("tag", f.name+"-web/v1.0.1")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.1\nvalues: {text: bye}\n")
	f.commit("v1.0.1")
	f.sync(v1alpha1.SyncHeld, "workload-selector")
	f.eventually("the other object changes", func() bool { return f.text() == "bye" })
}

// stays fails if the ConfigMap is written while the component is looked at again.
func (f *fleet) stays(text, message string) {
	f.t.Helper()
	f.sync(v1alpha1.SyncWaiting, message)
	version := f.field(configMaps, "metadata", "resourceVersion")
	for _, again := range []string{"one", "two"} {
		f.write("clusters/CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.1\nvalues: {text: "+again+"}\n")
		f.commit(again)
		revision := strings.TrimSpace(f.git("rev-parse", "HEAD"))
		f.eventually("it is looked at again", func() bool { return strings.Contains(f.log.String(), revision[:8]) })
		f.sync(v1alpha1.SyncWaiting, message)
	}
	if f.text() != text || f.field(configMaps, "metadata", "resourceVersion") != version {
		f.t.Errorf("the text is %q, of version %s; it was %q, of version %s", f.text(), f.field(configMaps, "metadata", "resourceVersion"), text, version)
	}
}

// A freeze in the middle of a change stops there: to take the objects back that were
// applied is a change that git does not make.
func TestFreezeInTheMiddle(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.partly()
	f.write("freezes/double-11.yaml", head+"Freeze\nclusterSelector: {}\nreason: double 11\n")
	f.commit("freeze")
	f.stays("bye", "frozen: double 11 (freezes/double-11.yaml), and stays as it is: a change after v1.0.0 was applied in part")
	f.say("hello")
	f.eventually("git goes back to v1.0.0", func() bool { return f.status().Version == "v1.0.0" })
	f.sync(v1alpha1.SyncWaiting, "applied in part")
	if f.text() != "bye" {
		t.Errorf("a revert passes the freeze: the text is %q", f.text())
	}
	f.git("rm", "-q", "freezes/double-11.yaml")
	f.commit("thaw")
	f.eventually("the revert arrives", func() bool { return f.text() == "hello" })
	f.sync(v1alpha1.SyncSynced, "")
}

// there reports whether the object web is there, and is not being deleted.
func (f *fleet) there(gvr schema.GroupVersionResource) bool {
	f.t.Helper()
	u, err := f.dynamic.Resource(gvr).Namespace(f.name).Get(f.t.Context(), "web", metav1.GetOptions{})
	if client.IgnoreNotFound(err) != nil {
		f.t.Fatal(err)
	}
	return err == nil && u.GetDeletionTimestamp() == nil
}

// A freeze in the middle of a removal stops there, too, whether git still wants the removal or not.
// No garbage collector runs here, so what is deleted in the foreground stays until the test lets it go.
func TestFreezeInARemoval(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	absent := head + "MetaConfig\nversion: v1.0.0\nabsent: true\nvalues: {text: hello}\n"
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", absent)
	f.commit("web is to go")
	f.eventually("the ConfigMap is being deleted", func() bool { return !f.there(configMaps) })
	f.write("freezes/double-11.yaml", head+"Freeze\nclusterSelector: {}\nreason: double 11\n")
	f.commit("freeze")
	const message = "frozen: double 11 (freezes/double-11.yaml), and stays as it is: its removal has begun"
	f.sync(v1alpha1.SyncWaiting, message)
	f.git("tag", f.name+"-web/v1.0.1")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", head+"MetaConfig\nversion: v1.0.1\nvalues: {text: bye}\n")
	f.commit("git wants it again")
	f.eventually("the status has the new version", func() bool { return f.status().Version == "v1.0.1" })
	f.sync(v1alpha1.SyncWaiting, message)
	if f.text() == "bye" {
		t.Error("an object that is being deleted was written in the freeze")
	}
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", absent)
	f.git("rm", "-q", "freezes/double-11.yaml")
	f.commit("thaw")
	f.eventually("it goes", func() bool { return f.deleting(configMaps, "web") && f.deleting(deployments, "web") })
	f.sync(v1alpha1.SyncAbsent, "")
}

// The same holds while a change waits for its turn in a pipeline.
func TestPipelineInTheMiddle(t *testing.T) {
	f := newFleet(t)
	f.only = f.name
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.partly()
	f.piped()
	f.commit("a pipeline")
	f.stays("bye", "and stays as it is: a change after v1.0.0 was applied in part")
}

// lean leaves the fleet nothing but a ConfigMap, which is healthy when it is there.
func (f *fleet) lean() {
	f.t.Helper()
	f.write("components/CLUSTER-web/template/templates/web.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: {{ .Values.text }}}\n")
	f.commit("lean")
	f.git("tag", "-f", f.name+"-web/v1.0.0")
}

// piped puts the component of a fleet under a pipeline of one stage, as it runs.
func (f *fleet) piped() {
	f.write("pipelines/one.yaml", head+"Pipeline\nstages: [{name: all, clusterSelector: {}}]\n")
	f.write("components/CLUSTER-web/component.yaml", head+"Component\nnamespace: CLUSTER\npipeline: one\n")
}

// A controller of one cluster alone knows nothing of the others, so it lets none of a
// pipeline's changes through, and keeps what runs.
func TestPipelineOfOneCluster(t *testing.T) {
	f := newFleet(t)
	f.only = f.name
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.piped()
	f.say("bye")
	f.sync(v1alpha1.SyncWaiting, "pipeline one lets clusters go one after the other, and this controller knows of one alone (--cluster), and keeps v1.0.0")
	f.drifts("hello")
}

// A component that comes under a pipeline stays as it is: there is nothing to bring, and
// no Rollout. A rollback by a person is no part of one, until git moves on.
func TestPipelineAndPin(t *testing.T) {
	f := newFleet(t)
	f.lean()
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.piped()
	f.commit("a pipeline")
	f.eventually("it says what git wants", func() bool { return f.status().Wanted != nil })
	var r v1alpha1.Rollout
	key := client.ObjectKey{Namespace: v1alpha1.Namespace, Name: f.name + "-web"}
	if err := f.hub.Get(t.Context(), key, &r); err == nil {
		t.Errorf("there is a Rollout: %+v", r.Status)
	}
	f.say("bye")
	f.eventually("the change arrives", func() bool { return f.text() == "bye" })
	f.sync(v1alpha1.SyncSynced, "")
	f.rollBack(1)
	f.sync(v1alpha1.SyncSynced, "pinned to 1")
	if f.text() != "hello" {
		t.Errorf("the text is %q after a rollback", f.text())
	}
	f.say("again")
	f.eventually("the next change arrives", func() bool { return f.text() == "again" })
	f.eventually("the rollout has ended", func() bool {
		err := f.hub.Get(t.Context(), key, &r)
		return err == nil && r.Status.Phase == v1alpha1.RolloutComplete && r.Status.Progress == "1/1"
	})
	f.git("rm", "-q", "-r", "pipelines")
	f.write("components/CLUSTER-web/component.yaml", head+"Component\nnamespace: CLUSTER\n")
	f.commit("no pipeline")
	f.eventually("its Rollout is gone", func() bool { return f.hub.Get(t.Context(), key, &r) != nil })
	f.eventually("and what git wants is delivered at once", func() bool { return f.status().Wanted == nil })
}

// A component that is to be removed goes stage by stage, too.
func TestRolloutOfAnEnd(t *testing.T) {
	tr := newTrain(t)
	tr.begin()
	tr.write("layers/10-all.yaml", head+"Layer\nclusterSelector: {}\ncomponents: {CLUSTER-web: {version: v1.0.0, absent: true}}\n")
	tr.commit("no web any more")
	tr.eventually("testing and canary lose it", func() bool { tr.collects(); return tr.texts() == "  hello hello" })
	tr.eventually("production waits", func() bool {
		s := tr.delivery(tr.names()[3])
		return s.Sync == v1alpha1.SyncWaiting && strings.Contains(s.Message, "keeps v1.0.0")
	})
	tr.eventually("canary is seen there", func() bool {
		return tr.rollout().Progress == "2/4" && tr.rollout().Stage == "canary" && tr.settled("canary")
	})
	tr.passes(bake)
	tr.eventually("no cluster has the component", func() bool { tr.collects(); return strings.TrimSpace(tr.texts()) == "" })
	tr.phase(v1alpha1.RolloutComplete, "")

	t.Log("and when git speaks of it on no cluster, nor does the hub")
	tr.git("rm", "-q", "layers/10-all.yaml")
	tr.commit("not a word of it")
	tr.eventually("its Rollout and its Deliveries are gone", func() bool {
		for _, name := range tr.names() {
			if tr.delivery(name).Sync != "" {
				return false
			}
		}
		return tr.rollout().Phase == ""
	})
}

// Of replicas that share clusters one decides about rollouts; when it ends, another goes
// on, and clusters are released as before.
func TestRolloutIsShared(t *testing.T) {
	f := newFleet(t)
	f.lean()
	f.piped()
	f.commit("a pipeline")
	replicas := map[string]*replica{"first": f.replica("first"), "second": f.replica("second")}
	f.eventually("the first version is there", func() bool { return f.text() == "hello" })
	f.say("bye")
	f.eventually("a change arrives", func() bool { return f.text() == "bye" })
	leader := func() (names []string) {
		for line := range strings.SplitSeq(f.log.String(), "\n") {
			if strings.Contains(line, "rollouts are decided about here") {
				_, name, _ := strings.Cut(line, "replica=")
				names = append(names, strings.Fields(name)[0])
			}
		}
		return names
	}
	was := leader()
	last := was[len(was)-1]
	replicas[last].stop()
	f.say("again")
	f.eventually("the next change arrives", func() bool { return f.text() == "again" })
	if now := leader(); len(now) == len(was) || now[len(now)-1] == last {
		t.Errorf("it was decided about by %v", now)
	}
	for name, r := range replicas {
		if s := r.member.Stats(); name != last && s.Clusters != 1 {
			t.Errorf("%s says %+v: rollouts are no cluster", name, s)
		}
	}
}
