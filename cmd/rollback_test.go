//go:build !race

package cmd_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRollback goes back, stays there while git says the same, and forward again
// when git moves on.
func TestRollback(t *testing.T) {
	c := live(t)
	f := newFleet(t, "back")
	size := func(want string) {
		t.Helper()
		m, err := c.CoreV1().ConfigMaps("gadgetsback").Get(t.Context(), "gadgetsback", metav1.GetOptions{})
		if err != nil || m.Data["size"] != want {
			t.Errorf("got size %q (%v), want %q", m.Data["size"], err, want)
		}
	}
	f.keelson("apply", "prod", "gadgets", "--yes").want(t, 0)
	f.keelson("rollback", "prod", "gadgets").want(t, 2).says(t, "the record of gadgets has no other delivery to go back to")
	f.edit("components/gadgets/template/templates/config.yaml", `size: "1"`, `size: "2"`)
	f.edit("layers/10-base.yaml", "gadgets:\n    version: v1.0.0", "gadgets:\n    version: v1.1.0")
	f.commit()
	f.tag("gadgets/v1.1.0")
	f.keelson("apply", "prod", "gadgets", "--yes").want(t, 0)
	size("2")

	t.Log("it shows what would change, and asks")
	f.keelson("rollback", "prod", "gadgets", "--dry-run").want(t, 1).says(t, "gadgets v1.1.0 → v1.0.0 (pinned to 1): 1 to update", `-"2"`, `+"1"`)
	f.in(world{in: "n\n"}, "rollback", "prod", "gadgets").want(t, 2).says(t, `-"2"`, "Apply this to prod? [y/N]", "nothing was applied")
	f.keelson("rollback", "prod", "gadgets", "7").want(t, 2).says(t, "the record of gadgets has no delivery 7")
	f.keelson("rollback", "prod", "gadgets", "2").want(t, 2).says(t, "delivery 2 of gadgets is what git wants now")
	f.keelson("rollback", "prod", "gadgets", "x").want(t, 2).says(t, `"x" is no number of a delivery`)
	f.keelson("rollback", "prod", "gadgets", "1", "--unpin").want(t, 2).says(t, "--unpin delivers what git says")
	f.keelson("rollback", "prod", "gadgets", "--unpin").want(t, 0).says(t, "gadgets is not pinned on prod")
	size("2")

	t.Log("back, and pinned there")
	f.keelson("rollback", "prod", "gadgets", "--yes", "--because", "INC-321").want(t, 0).says(t,
		"ConfigMap gadgets/gadgets configured", "gadgets v1.1.0 → v1.0.0 (pinned to 1) synced", "gadgets is pinned to 1, v1.0.0, by ", ": INC-321")
	size("1")
	f.keelson("diff", "prod", "gadgets").want(t, 0)
	f.keelson("apply", "prod", "gadgets").want(t, 0).says(t, "gadgets v1.0.0 (pinned to 1) synced", "gadgets is pinned to 1, v1.0.0", "'keelson rollback prod gadgets --unpin'")
	size("1")
	var history []struct {
		Number                      int
		Version, Writer, TargetHash string
		Epoch                       int64
		Pinned                      bool
	}
	decode(t, f.keelson("history", "prod", "gadgets", "-o", "json").want(t, 0).out, &history)
	if len(history) != 3 || !history[0].Pinned || history[0].Version != "v1.0.0" || history[0].TargetHash != history[2].TargetHash ||
		history[0].Epoch != 3 || history[0].Writer == "" || history[0].Writer == history[1].Writer || history[1].Pinned {
		t.Errorf("got %+v", history)
	}
	f.keelson("history", "prod", "gadgets").want(t, 0).says(t, "PINNED", "gadgets is pinned to 1, v1.0.0, by ")

	t.Log("drift from what is pinned is set back to it")
	if err := c.CoreV1().ConfigMaps("gadgetsback").Delete(t.Context(), "gadgetsback", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.keelson("apply", "prod", "gadgets", "--yes").want(t, 0).says(t, "ConfigMap gadgets/gadgets created")
	size("1")

	t.Log("another commit is no news of this component")
	f.edit("clusters/prod/web.yaml", "replicas: 3", "replicas: 4")
	f.commit()
	f.keelson("diff", "prod", "gadgets").want(t, 0)

	t.Log("forward by hand")
	f.keelson("rollback", "prod", "gadgets", "--unpin", "--yes").want(t, 0).says(t, "gadgets v1.0.0 → v1.1.0 synced").saysNot(t, "pinned")
	size("2")
	f.keelson("apply", "prod", "gadgets").want(t, 0).saysNot(t, "pinned")

	t.Log("forward by git")
	f.keelson("rollback", "prod", "gadgets", "--yes").want(t, 0)
	size("1")
	f.edit("components/gadgets/template/templates/config.yaml", `size: "2"`, `size: "3"`)
	f.edit("layers/10-base.yaml", "gadgets:\n    version: v1.1.0", "gadgets:\n    version: v1.2.0")
	f.commit()
	f.tag("gadgets/v1.2.0")
	f.keelson("apply", "prod", "gadgets", "--yes").want(t, 0).says(t, "gadgets v1.0.0 → v1.2.0 synced").saysNot(t, "pinned")
	size("3")
}

// Without a number it goes back to what was healthy, and not to what was there before.
func TestRollbackToHealthy(t *testing.T) {
	c := live(t)
	f := newFleet(t, "sickly")
	deliver := func(version, size string, exit int) {
		t.Helper()
		f.write("components/gadgets/template/templates/config.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: gadgets}\ndata: {size: \""+size+"\"}\n")
		f.write("layers/99-gadgets.yaml", fileHeader+"Layer\nclusterSelector: {}\ncomponents:\n  gadgets:\n    version: "+version+"\n")
		f.commit()
		f.tag("gadgets/" + version)
		f.keelson("apply", "prod", "gadgets", "--yes").want(t, exit)
	}
	f.write("components/gadgets/component.yaml", fileHeader+"Component\nnamespace: gadgets\nhealth:\n"+
		"- {match: {kinds: [ConfigMap]}, failed: object.data.size.startsWith('bad'), because: its size is bad}\n")
	deliver("v2.0.0", "good", 0)
	deliver("v2.1.0", "bad", 1)
	deliver("v2.2.0", "bad, too", 1)
	f.keelson("history", "prod", "gadgets").want(t, 0).says(t, "HEALTH", "v2.1.0   Degraded", "v2.0.0   Healthy")
	f.keelson("rollback", "prod", "gadgets", "--dry-run").want(t, 1).says(t, "gadgets v2.2.0 → v2.0.0 (pinned to 1)")
	f.keelson("rollback", "prod", "gadgets", "--yes").want(t, 0)
	m, err := c.CoreV1().ConfigMaps("gadgetssickly").Get(t.Context(), "gadgetssickly", metav1.GetOptions{})
	if err != nil || m.Data["size"] != "good" {
		t.Errorf("got %v (%v), want what was healthy", m.Data, err)
	}
	t.Log("what nothing followed is looked at: git goes on, and that is not delivered")
	f.keelson("rollback", "prod", "gadgets", "2", "--yes").want(t, 1)
	f.write("components/gadgets/template/templates/config.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: gadgets}\ndata: {size: worse}\n")
	f.write("layers/99-gadgets.yaml", fileHeader+"Layer\nclusterSelector: {}\ncomponents:\n  gadgets:\n    version: v2.3.0\n")
	f.commit()
	f.tag("gadgets/v2.3.0")
	f.keelson("rollback", "prod", "gadgets", "--dry-run").want(t, 1).says(t, "→ v2.0.0 (pinned to ")
}

// Where nothing is known to have been healthy, a person decides.
func TestRollbackToNothingHealthy(t *testing.T) {
	live(t)
	f := newFleet(t, "ill")
	f.write("components/gadgets/component.yaml", fileHeader+"Component\nnamespace: gadgets\nhealth:\n"+
		"- {match: {kinds: [ConfigMap]}, failed: \"true\", because: nothing is good enough}\n")
	for _, version := range []string{"v2.0.0", "v2.1.0"} {
		f.write("components/gadgets/template/templates/config.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: gadgets}\ndata: {size: "+version+"}\n")
		f.write("layers/99-gadgets.yaml", fileHeader+"Layer\nclusterSelector: {}\ncomponents:\n  gadgets:\n    version: "+version+"\n")
		f.commit()
		f.tag("gadgets/" + version)
		f.keelson("apply", "prod", "gadgets", "--yes").want(t, 1)
	}
	f.keelson("rollback", "prod", "gadgets", "--yes").want(t, 2).says(t, "no other delivery is known to have been healthy: 1 (v2.0.0) was Degraded", "name its number")
	f.keelson("rollback", "prod", "gadgets", "1", "--dry-run").want(t, 1)
}

// What can't be had from git as it was is not delivered, and the cluster stays as
// it is.
func TestRollbackGone(t *testing.T) {
	c := live(t)
	f := newFleet(t, "past")
	f.keelson("apply", "prod", "gadgets", "--yes").want(t, 0)
	f.edit("components/gadgets/template/templates/config.yaml", `size: "1"`, `size: "2"`)
	f.edit("layers/10-base.yaml", "gadgets:\n    version: v1.0.0", "gadgets:\n    version: v1.1.0")
	f.commit()
	f.tag("gadgets/v1.1.0")
	f.keelson("apply", "prod", "gadgets", "--yes").want(t, 0)
	f.git("tag", "-d", "gadgetspast/v1.0.0")
	f.keelson("rollback", "prod", "gadgets", "--yes").want(t, 2).says(t,
		"component gadgets is pinned to 1, v1.0.0", "which can't be had from git at ", "any more: ", "gadgets/v1.0.0")
	m, err := c.CoreV1().ConfigMaps("gadgetspast").Get(t.Context(), "gadgetspast", metav1.GetOptions{})
	if err != nil || m.Data["size"] != "2" {
		t.Errorf("got %v (%v)", m.Data, err)
	}
}
