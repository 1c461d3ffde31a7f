package edit_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/edit"
)

const head = "apiVersion: keelson.io/v1alpha1\nkind: Cluster\n"

func TestPaused(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why          string
		before, want string
		resume       bool
		because      string
		wantErr      string
	}{
		"Pause": {
			why:    "The line stands below the kind, where a reader looks first.",
			before: "# ours\n" + head + "labels: {a: b} # here\n", because: "INC-1: etcd",
			want: "# ours\n" + head + "paused: true # INC-1: etcd\nlabels: {a: b} # here\n",
		},
		"Quotes":    {why: "Who wrote it wrote it so.", before: "\"kind\": 'Cluster'\nlabels:   {a:   b}\n", want: "\"kind\": 'Cluster'\npaused: true\nlabels:   {a:   b}\n"},
		"Twice":     {why: "It says so already; the reason is the one that was given first.", before: head + "paused: true # first\n", because: "second", want: head + "paused: true # first\n"},
		"False":     {why: "A line that says the contrary is turned around.", before: head + "paused: false # not now\nlabels: {}\n", want: head + "paused: true\nlabels: {}\n"},
		"NoNewline": {why: "A file without a last line end stays one.", before: strings.TrimSuffix(head, "\n"), want: head + "paused: true"},
		"CRLF":      {why: "So does one with line ends of another system.", before: "kind: Cluster\r\nlabels: {}\r\n", want: "kind: Cluster\r\npaused: true\r\nlabels: {}\r\n"},
		"Reason": {
			why:    "A reason is a comment, whatever it holds.",
			before: head, because: "one\npaused: false\u2028x: y", want: head + "paused: true # one paused: false x: y\n",
		},
		"Resume":        {why: "The line is removed with its comment.", before: head + "paused: true # INC-1\nlabels: {}\n", resume: true, want: head + "labels: {}\n"},
		"ResumeLast":    {why: "The last line is removed, too, if it has no line end.", before: head + "paused: true", resume: true, want: strings.TrimSuffix(head, "\n")},
		"ResumeTwice":   {why: "It is not paused.", before: head, resume: true, want: head},
		"ResumeFalse":   {why: "The file is unchanged if it is not paused.", before: head + "paused: false\n", resume: true, want: head + "paused: false\n"},
		"ResumeComment": {why: "A comment on another line stays.", before: head + "# careful\npaused: true\n", resume: true, want: head + "# careful\n"},
		"Flow":          {why: "There is no line to change.", before: "{kind: Cluster}", wantErr: "one key a line"},
		"NotBool":       {why: "The meaning of the value is unknown.", before: head + "paused: soon\n", wantErr: "line 3: paused is not true or false"},
		"Broken":        {why: "A broken file must not be edited.", before: head + "labels: {", wantErr: "it is not YAML"},
		"Two":           {why: "The registry reads one.", before: head + "---\n" + head, wantErr: "more than one document"},
		"Sealed":        {why: "SOPS vouches for every value of the file.", before: head + "sops: {mac: x}\n", wantErr: "encrypted by SOPS"},
		"CROnly":        {why: "YAML counts more lines than those that end as Keelson writes them.", before: "\rkind: Cluster", wantErr: "line 1: it has a line end that is neither LF nor CRLF"},
		"NextLine":      {why: "As above.", before: "kind: Cluster\n# a\u0085labels: {}\n", wantErr: "line 2: it has a line end"},
		"Separator":     {why: "As above.", before: "# a\u2028# b\u2029kind: Cluster\n", wantErr: "line 1: it has a line end"},
		"UTF16":         {why: "A line edit needs UTF-8.", before: "\xff\xfe\x28\x20k\x00:\x00 \x00a\x00", wantErr: "it is not UTF-8"},
		"NoKind":        {why: "A file without a kind must not be edited.", before: "paused: true", resume: true, wantErr: "it has no kind"},
		"Empty":         {why: "There is no kind.", before: "# nothing\n", wantErr: "it is"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := edit.Paused([]byte(tc.before), !tc.resume, tc.because)
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("%s got error %v, want %q", tc.why, err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tc.why, diff)
			}
		})
	}
}

// Pause and resume leave nothing behind, whatever the reason.
func TestPausedAndBack(t *testing.T) {
	t.Parallel()
	files := []string{
		head, strings.TrimSuffix(head, "\n"), "kind: Cluster\r\n# c\r\nlabels: {}\r\n", "# c\n\n" + head + "\n\nlabels:\n  a: |\n    x\n    paused: true\n\n",
	}
	rapid.Check(t, func(t *rapid.T) {
		file := rapid.SampledFrom(files).Draw(t, "file")
		paused, err := edit.Paused([]byte(file), true, rapid.String().Draw(t, "because"))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(paused), "\n") - strings.Count(file, "\n"); n != 1 {
			t.Fatalf("%d lines more: %q", n, paused)
		}
		back, err := edit.Paused(paused, false, "")
		if err != nil || string(back) != file {
			t.Fatalf("got %q (%v), want %q", back, err, file)
		}
	})
}

const approvals = "apiVersion: keelson.io/v1alpha1\nkind: Approvals\napprovals:\n"

func TestApprove(t *testing.T) {
	t.Parallel()
	one := v1alpha1.Approval{Cluster: "prod", Component: "web", Object: "Deployment.apps web/web", Hash: "0123456789abcdef0123456789abcdef", Because: "CHG-1"}
	const line = "- {cluster: prod, component: web, object: Deployment.apps web/web, hash: 0123456789abcdef0123456789abcdef, because: CHG-1}\n"
	number := one
	number.Hash, number.Because = "12345678901234567890123456789012", `yes: "no", #1`
	const numberLine = `- {cluster: prod, component: web, object: Deployment.apps web/web, hash: "12345678901234567890123456789012", because: "yes: \"no\", #1"}` + "\n"
	cases := map[string]struct {
		why     string
		before  string // "": no file
		add     []v1alpha1.Approval
		want    string
		wantErr string
	}{
		"New":      {why: "The file of decision 005.", add: []v1alpha1.Approval{one}, want: approvals + line},
		"More":     {why: "Below those that are there.", before: "# ours\n" + approvals + "# first\n" + line + "# end\n", add: []v1alpha1.Approval{number}, want: "# ours\n" + approvals + "# first\n" + line + "# end\n" + numberLine},
		"Twice":    {why: "It is there.", before: approvals + line, add: []v1alpha1.Approval{one}, want: approvals + line},
		"SameHere": {why: "Two of the same are one.", add: []v1alpha1.Approval{one, one}, want: approvals + line},
		"Indented": {why: "As the others are.", before: approvals + "  " + numberLine + "\n\n", add: []v1alpha1.Approval{one}, want: approvals + "  " + numberLine + "  " + line + "\n\n"},
		"Block":    {why: "Written in another way.", before: approvals + "- cluster: c\n  component: d\n  object: e\n  hash: f\n  because: |\n    text\n", add: []v1alpha1.Approval{one}, want: approvals + "- cluster: c\n  component: d\n  object: e\n  hash: f\n  because: |\n    text\n" + line},
		"NotLast":  {why: "Before what follows, and its comment.", before: "approvals:\n" + line + "\n# kind\nkind: Approvals\napiVersion: keelson.io/v1alpha1\n", add: []v1alpha1.Approval{number}, want: "approvals:\n" + line + numberLine + "\n# kind\nkind: Approvals\napiVersion: keelson.io/v1alpha1\n"},
		"None":     {why: "An empty list becomes one of lines.", before: strings.Replace(approvals, "approvals:", "approvals: []", 1), add: []v1alpha1.Approval{one}, want: approvals + line},
		"Flow":     {why: "There is no line to add.", before: "kind: Approvals\napprovals: [{cluster: a}]\n", add: []v1alpha1.Approval{one}, wantErr: "not written one a line"},
		"Other":    {why: "It is another file.", before: head + "approvals: []\n", add: []v1alpha1.Approval{one}, wantErr: `its kind is "Cluster"`},
		"Unknown":  {why: "What is not understood is not added to.", before: approvals + "- {cluster: a, hush: b}\n", add: []v1alpha1.Approval{one}, wantErr: "hush"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var before []byte
			if tc.before != "" {
				before = []byte(tc.before)
			}
			got, err := edit.Approve(before, tc.add)
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("%s got error %v, want %q", tc.why, err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tc.why, diff)
			}
		})
	}
}

// FuzzPaused: an edit changes one key or is refused.
func FuzzPaused(f *testing.F) {
	for _, seed := range []string{head, "kind: Cluster\r\npaused: true\r\n", "kind: Cluster\npaused: false # x", "paused: true\nkind: a\nb:\n- c\n", "kind: |\n  a\n"} {
		f.Add([]byte(seed), true, "because")
		f.Add([]byte(seed), false, "")
	}
	f.Fuzz(func(t *testing.T, data []byte, paused bool, because string) {
		got, err := edit.Paused(data, paused, because)
		if err != nil {
			return
		}
		var before, after map[string]any
		if yaml.Unmarshal(data, &before) != nil {
			return // YAML 1.1 has other ideas of it; the registry refuses such a file
		}
		if err := yaml.Unmarshal(got, &after); err != nil {
			t.Fatalf("%q became %q: %v", data, got, err)
		}
		delete(before, "paused")
		delete(after, "paused")
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%q became %q:\n%s", data, got, diff)
		}
	})
}

// FuzzApprove: approvals are added and nothing else changes, or it is refused.
func FuzzApprove(f *testing.F) {
	f.Add([]byte(approvals), "Deployment.apps web/web", "0123", "CHG-1")
	f.Add([]byte("approvals: []\nkind: Approvals"), "ClusterRole.rbac.authorization.k8s.io system:x", "12e4", "true")
	f.Fuzz(func(t *testing.T, data []byte, object, hash, because string) {
		got, err := edit.Approve(data, []v1alpha1.Approval{{Cluster: "c", Component: "d", Object: object, Hash: hash, Because: because}})
		if err != nil {
			return
		}
		again, err := edit.Approve(got, []v1alpha1.Approval{{Cluster: "c", Component: "d", Object: object, Hash: hash, Because: "another"}})
		if err != nil || string(again) != string(got) {
			t.Errorf("added twice: %q became %q (%v)", got, again, err)
		}
	})
}
