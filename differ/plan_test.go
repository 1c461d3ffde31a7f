package differ_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/differ"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	kept := []differ.Field{{Action: differ.ActionKeep}}
	changed := func(op differ.Op) differ.Change { return differ.Change{Op: op, State: differ.StateChanged} }
	cases := map[string]struct {
		changes                  []differ.Change
		want                     string
		wantSettled, wantDiffers bool
	}{
		"Nothing": {nil, "in sync", true, false},
		"Synced":  {[]differ.Change{{Op: differ.OpNone, State: differ.StateSynced}}, "in sync", true, false},
		"Record":  {[]differ.Change{{Op: differ.OpNone, State: differ.StateSynced, RecordStale: true}}, "in sync", false, false},
		"Unread":  {[]differ.Change{{Op: differ.OpNone, State: differ.StateSynced, Unread: differ.Unread{Owners: true}}}, "in sync", false, false},
		"Kept":    {[]differ.Change{{Op: differ.OpNone, State: differ.StateSynced, Fields: kept}}, "1 field kept", true, false},
		"Forget":  {[]differ.Change{{Op: differ.OpForget, State: differ.StateSynced}}, "in sync", false, false},
		"All": {
			[]differ.Change{
				changed(differ.OpCreate), changed(differ.OpUpdate), changed(differ.OpUpdate), changed(differ.OpReplace), changed(differ.OpDelete),
				{Op: differ.OpNone, State: differ.StateHeld, Fields: append(kept, kept...)},
				{Op: differ.OpNone, State: differ.StateDenied},
			},
			"1 to create, 2 to update, 1 to replace, 1 to delete, 1 held, 1 denied, 2 fields kept", false, true,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := differ.Plan{Changes: c.changes}
			if diff := cmp.Diff(c.want, p.Summary()); diff != "" {
				t.Error(diff)
			}
			if p.Settled() != c.wantSettled || p.Differs() != c.wantDiffers {
				t.Errorf("settled %v, differs %v", p.Settled(), p.Differs())
			}
		})
	}
}

// The zero values are invalid, and their names show this: a value that was never set must not mean
// "leave the object alone".
func TestZeroValuesAreInvalid(t *testing.T) {
	t.Parallel()
	data, err := json.Marshal(map[string]any{
		"op": differ.Op(0), "state": differ.ObjectState(0), "action": differ.Action(0), "unknown": differ.Action(99),
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"action":"Action(0)","op":"Op(0)","state":"ObjectState(0)","unknown":"Action(99)"}`
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Error(diff)
	}
	if (differ.Plan{Changes: []differ.Change{{}}}).Settled() {
		t.Error("a plan of a zero change is settled")
	}
}

// The order of objects is by group, kind, namespace and name; the first difference decides.
func TestCompareIDs(t *testing.T) {
	t.Parallel()
	ascending := []differ.ID{
		{},
		{Name: "z"},
		{Namespace: "y"},
		{Kind: "x"},
		{Kind: "x", Name: "a"},
		{Kind: "x", Name: "b"},
		{Kind: "x", Namespace: "a", Name: "a"},
		{Group: "a", Kind: "a", Namespace: "b", Name: "b"},
		{Group: "a", Kind: "b"},
		{Group: "b"},
	}
	for i, a := range ascending {
		for k, b := range ascending {
			if got, want := differ.CompareIDs(a, b), i-k; got < 0 != (want < 0) || got > 0 != (want > 0) {
				t.Errorf("%v to %v is %d", a, b, got)
			}
		}
	}
}

// An approval in git that seems to be meant for a change, but does not match it, is listed with the
// change.
func TestNoteApprovals(t *testing.T) {
	t.Parallel()
	web, db := differ.ID{Group: "apps", Kind: "Deployment", Namespace: "a", Name: "web"}, differ.ID{Kind: "Namespace", Name: "db"}
	held := differ.Change{ID: web, State: differ.StateHeld, Hash: "new"}
	cases := map[string]struct {
		why      string
		change   differ.Change
		approval differ.Approval
		want     string
	}{
		"Outdated": {
			"git or the cluster moved on", held,
			differ.Approval{Object: web.String(), Hash: "old", At: "approvals/a.yaml:4:3"},
			"approvals/a.yaml:4:3 approves another difference of it: hash old",
		},
		"Misnamed": {
			"the hash was copied, and the name was not", held,
			differ.Approval{Object: "Deployment.apps a/wbe", Hash: "new", At: "approvals/a.yaml:4:3"},
			"approvals/a.yaml:4:3 approves this hash for another object: Deployment.apps a/wbe",
		},
		"Other":    {"it is about something else", held, differ.Approval{Object: db.String(), Hash: "old"}, ""},
		"Synced":   {"it was applied: the line is history", differ.Change{ID: web, State: differ.StateSynced}, differ.Approval{Object: web.String(), Hash: "old"}, ""},
		"Denied":   {"no approval would help", differ.Change{ID: web, State: differ.StateDenied, Hash: "new"}, differ.Approval{Object: web.String(), Hash: "old"}, ""},
		"Hashless": {"its hash is not known here", differ.Change{ID: web, State: differ.StateHeld}, differ.Approval{Object: web.String(), Hash: "old"}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := differ.Plan{Changes: []differ.Change{c.change}}
			for range 2 { // a second call does not repeat the notes
				plan.NoteApprovals([]differ.Approval{c.approval})
			}
			if got := strings.Join(plan.Changes[0].Missed, "|"); got != c.want {
				t.Errorf("%s: %q, want %q", c.why, got, c.want)
			}
			var b strings.Builder
			if err := plan.WriteText(&b, false); err != nil || c.want != "" && !strings.Contains(b.String(), c.want) {
				t.Errorf("the text does not say so (%v):\n%s", err, b.String())
			}
		})
	}
}

// Old approvals of an object stay in git: of many approvals, the last are listed.
func TestNoteManyApprovals(t *testing.T) {
	t.Parallel()
	id := differ.ID{Kind: "Namespace", Name: "db"}
	var list []differ.Approval
	for i := range 5000 {
		list = append(list, differ.Approval{Object: id.String(), Hash: "old", At: fmt.Sprintf("approvals/a.yaml:%d:3", i)})
	}
	plan := differ.Plan{Changes: []differ.Change{{ID: id, State: differ.StateHeld, Hash: "new"}}}
	plan.NoteApprovals(list)
	want := []string{
		"approvals/a.yaml:4997:3 approves another difference of it: hash old", "approvals/a.yaml:4998:3 approves another difference of it: hash old",
		"approvals/a.yaml:4999:3 approves another difference of it: hash old", "and 4997 approvals before these",
	}
	if diff := cmp.Diff(want, plan.Changes[0].Missed); diff != "" {
		t.Errorf("missed (-want +got):\n%s", diff)
	}
}

// TestUnread: a plan needs what any of its changes needs.
func TestUnread(t *testing.T) {
	t.Parallel()
	owners, resources, nodes := differ.Unread{Owners: true}, differ.Unread{CustomResources: true}, differ.Unread{Nodes: true}
	for name, c := range map[string]struct {
		changes []differ.Change
		want    differ.Unread
	}{
		"None":      {[]differ.Change{{}}, differ.Unread{}},
		"Owners":    {[]differ.Change{{}, {Unread: owners}, {}}, owners},
		"Resources": {[]differ.Change{{Unread: resources}}, resources},
		"Nodes":     {[]differ.Change{{Unread: nodes}, {}}, nodes},
		"All":       {[]differ.Change{{Unread: owners}, {Unread: nodes}, {Unread: resources}}, differ.Unread{Owners: true, CustomResources: true, Nodes: true}},
	} {
		if got := (differ.Plan{Changes: c.changes}).Unread(); got != c.want || got.Any() != (c.want != differ.Unread{}) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
