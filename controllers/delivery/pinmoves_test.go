package delivery_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// tells waits until a component is in a state whose message has all of some texts.
func (f *fleet) tells(component string, sync v1alpha1.Sync, texts ...string) {
	f.t.Helper()
	var s v1alpha1.DeliveryStatus
	f.eventually(component+" is "+string(sync)+" with "+strings.Join(texts, ", "), func() bool {
		s = f.delivered(component)
		for _, text := range texts {
			if !strings.Contains(s.Message, text) {
				return false
			}
		}
		return s.Sync == sync
	})
}

// owned reports whether a ConfigMap is that of a component, as it was made.
func (f *fleet) owned(name, component string, uid types.UID) bool {
	f.t.Helper()
	u, err := f.dynamic.Resource(configMaps).Namespace(f.name).Get(f.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return u.GetUID() == uid && u.GetDeletionTimestamp() == nil && u.GetLabels()[v1alpha1.LabelComponent] == component
}

// A pinned component keeps what it has, although git gives it to another by now.
// That one waits and says for which pin; when it ends, the object moves.
func TestPinnedKeepsWhatMoves(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.withoutConfigMap()
	f.eventually("the ConfigMap goes", func() bool { return f.deleting(configMaps, "web") })
	f.sync(v1alpha1.SyncSynced, "")
	f.rollBack(1)
	f.eventually("status shows the pin", f.pinned(1))
	uid := f.web().GetUID()

	t.Log("git gives it to another component")
	f.component("CLUSTER-a", "web")
	f.commit("another component has it")
	f.tells(f.name+"-a", v1alpha1.SyncHeld, "ConfigMap "+f.name+"/web: component "+f.name+"-web wants it, too",
		"as long as it is pinned to 1, v1.0.0, by tess@desk: INC-1", "it moves when the pin ends")
	if !f.owned("web", f.name+"-web", uid) || !f.pinned(1)() {
		t.Errorf("the pinned component lost it: %+v", f.status())
	}

	t.Log("git moves on")
	f.write("components/CLUSTER-web/template/templates/more.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n")
	f.commit("web v1.2.0")
	f.git("tag", f.name+"-web/v1.2.0")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", metaConfig+"version: v1.2.0\n")
	f.commit("use web v1.2.0")
	f.eventually("the pin ended", f.pinned(0))
	f.tells(f.name+"-a", v1alpha1.SyncSynced)
	if !f.owned("web", f.name+"-a", uid) {
		t.Error("it was made anew on its way, or did not move")
	}
}

// A component gives an object to one that is pinned to a time before it had it:
// nothing is deleted, and the giver says for which pin it waits.
func TestPinnedTakesLater(t *testing.T) {
	f := newFleet(t)
	f.component("CLUSTER-a", "moves")
	const template = "components/CLUSTER-a/template/templates/c.yaml"
	const stays = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: stays}\n"
	f.write(template, stays+"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: moves}\n")
	f.commit("another component")
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.tells(f.name+"-a", v1alpha1.SyncSynced)
	moves, err := f.dynamic.Resource(configMaps).Namespace(f.name).Get(t.Context(), "moves", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	t.Log("both want it, and the one that does not have it is pinned")
	f.write("components/CLUSTER-web/template/templates/moves.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: moves}\n")
	f.commit("web v1.1.0")
	f.git("tag", f.name+"-web/v1.1.0")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", metaConfig+"version: v1.1.0\nvalues: {text: hello}\n")
	f.commit("use web v1.1.0")
	f.sync(v1alpha1.SyncHeld, "component "+f.name+"-a wants it, too")
	f.rollBack(1)
	f.eventually("status shows the pin", f.pinned(1))

	t.Log("the other does without it")
	f.write(template, stays)
	f.commit("given away")
	f.tells(f.name+"-a", v1alpha1.SyncProgressing, "ConfigMap "+f.name+"/moves: waits until component "+f.name+"-web has taken it over",
		"once it is no longer pinned to 1, v1.0.0, by tess@desk: INC-1")
	if !f.owned("moves", f.name+"-a", moves.GetUID()) || !f.pinned(1)() {
		t.Errorf("it did not stay where it was: %+v", f.status())
	}

	t.Log("a person ends the pin")
	f.rollBack(0)
	f.eventually("the pin was taken away", f.pinned(0))
	f.tells(f.name+"-a", v1alpha1.SyncSynced)
	if !f.owned("moves", f.name+"-web", moves.GetUID()) {
		t.Error("it was made anew on its way, or did not move")
	}
}
