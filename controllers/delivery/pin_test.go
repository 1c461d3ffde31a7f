package delivery_test

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
)

// rollBack does what the command does, from another process: it pins the component
// to a delivery, nil: to none, and applies that.
func (f *fleet) rollBack(number int) {
	f.t.Helper()
	ctx, component := f.t.Context(), f.name+"-web"
	repo, err := registry.Open(ctx, gitrepo.Options{URL: f.folder, CacheDir: f.t.TempDir()})
	if err != nil {
		f.t.Fatal(err)
	}
	now, err := repo.Load(ctx, "")
	if err != nil {
		f.t.Fatal(err)
	}
	cluster, err := applier.New(applier.Options{Name: f.name, Config: server, Shared: applier.NewShared()})
	if err != nil {
		f.t.Fatal(err)
	}
	capabilities, err := cluster.Capabilities(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	workers := renderer.New()
	render := func(ctx context.Context, c *registry.Cluster, d *registry.Delivery) (*renderer.Target, error) {
		return workers.Render(ctx, renderer.Request{Version: d.Version, Values: d.Values, ImageMirrors: c.Spec.ImageMirrors, Capabilities: capabilities})
	}
	d := now.Cluster(f.name).Delivery(component)
	target, err := render(ctx, now.Cluster(f.name), d)
	if err != nil {
		f.t.Fatal(err)
	}
	record, err := cluster.Record(ctx, component)
	if err != nil {
		f.t.Fatal(err)
	}
	want, err := applier.NewDesired(now, d, target)
	if number > 0 {
		e := record.History[len(record.History)-number]
		want, err = applier.NewEarlierFleets(repo).Pinned(ctx, now, d, &records.Pin{
			Number: e.Number, Version: e.Version, Revision: e.Revision, TargetHash: e.TargetHash,
			Against: target.Hash, By: "tess@desk", At: time.Now().UTC(), Because: "INC-1",
		}, render)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	for again := true; again; { // the controller may write at the same time
		p, err := cluster.Plan(ctx, want)
		if err != nil {
			f.t.Fatal(err)
		}
		_, err = cluster.Apply(ctx, p, applier.ApplyOptions{Now: time.Now()})
		if again = errors.Is(err, applier.ErrStale); err != nil && !again {
			f.t.Fatal(err)
		}
	}
}

func (f *fleet) say(text string) {
	f.t.Helper()
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\nvalues: {text: "+text+"}\n")
	f.commit(text)
}

func (f *fleet) pinned(number int32) func() bool {
	return func() bool {
		s := f.status()
		if number == 0 {
			return s.Sync == v1alpha1.SyncSynced && s.Pinned == nil
		}
		return s.Sync == v1alpha1.SyncSynced && s.Pinned != nil && s.Pinned.Number == number && s.Pinned.Because == "INC-1"
	}
}

// A running controller honours a rollback that another process made, keeps it
// against drift and unrelated commits, and ends it when git moves on.
func TestPin(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.say("bye")
	f.eventually("the push arrives", func() bool { return f.text() == "bye" && f.status().Sync == v1alpha1.SyncSynced })

	t.Log("back")
	f.rollBack(1)
	f.eventually("status shows the pin", f.pinned(1))
	if s := f.status(); f.text() != "hello" || s.Pinned.By != "tess@desk" || s.AppliedVersion != "v1.0.0" {
		t.Errorf("the text is %q, status %+v", f.text(), s)
	}

	t.Log("drift, and a commit about something else")
	if err := f.dynamic.Resource(configMaps).Namespace(f.name).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually("the deleted object is created anew", func() bool { return f.text() == "hello" })
	f.write("README.md", "more\n")
	f.commit("unrelated")
	f.eventually("still pinned", f.pinned(1))

	t.Log("ended by a person")
	f.say("hello")
	f.eventually("git says what was pinned: no pin is needed", f.pinned(0))
	f.say("bye")
	f.eventually("the push arrives", func() bool { return f.text() == "bye" })
	f.rollBack(1)
	f.eventually("status shows the pin", f.pinned(1))
	f.rollBack(0)
	f.eventually("the pin was taken away", func() bool { return f.pinned(0)() && f.text() == "bye" })

	t.Log("git moves on")
	f.rollBack(1)
	f.eventually("status shows the pin", f.pinned(1))
	f.say("at last")
	f.eventually("git is followed", func() bool { return f.pinned(0)() && f.text() == "at last" })
}

// A pinned component whose revision can't be read stays as it is, and says so;
// drift is not undone by guessing.
func TestPinGone(t *testing.T) {
	f := newFleet(t)
	stop := f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.say("bye")
	f.eventually("the push arrives", func() bool { return f.text() == "bye" && f.status().Sync == v1alpha1.SyncSynced })
	f.rollBack(1)
	f.eventually("status shows the pin", f.pinned(1))
	stop()
	f.git("branch", "-m", "old") // history begins anew
	f.git("checkout", "-q", "--orphan", "main")
	f.commit("all of it")
	f.git("branch", "-q", "-D", "old")
	f.git("tag", "-f", f.name+"-web/v1.0.0")
	f.git("reflog", "expire", "--expire=now", "--all")
	f.git("gc", "-q", "--prune=now")
	f.start(nil)
	f.sync(v1alpha1.SyncBlocked, "which can't be had from git at")
	if s := f.status(); f.text() != "hello" || s.Pinned == nil {
		t.Errorf("the text is %q, status %+v", f.text(), s)
	}
}
