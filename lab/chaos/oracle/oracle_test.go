package oracle_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// keelson is a line of an audit log about a request of Keelson's, as the API
// server of the lab writes it.
func keelson(verb, uri, ref, body string, code int) string {
	if body != "" {
		body = `,"requestObject":` + body
	}
	return fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"id-%s","stage":"ResponseComplete",`+
		`"requestURI":"%s","verb":"%s","user":{"username":"keelson"},"objectRef":{%s},"responseStatus":{"code":%d}%s,`+
		`"requestReceivedTimestamp":"2026-01-02T03:04:05.000000Z","stageTimestamp":"2026-01-02T03:04:05.100000Z"}`,
		verb, uri, verb, ref, code, body)
}

const (
	web     = `"resource":"deployments","namespace":"web","name":"web","apiGroup":"apps","apiVersion":"v1"`
	webURI  = "/apis/apps/v1/namespaces/web/deployments/web?fieldManager=keelson&force=true"
	mask    = `"resource":"secrets","namespace":"keelson-system","name":"record-web","apiVersion":"v1"`
	maskURI = "/api/v1/namespaces/keelson-system/secrets/record-web?fieldManager=keelson"
	guards  = `{"preconditions":{"uid":"u1","resourceVersion":"7"}}`
)

func TestJudge(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why   string
		lines []string
		want  []oracle.Rule
		// accepted is how many creates, updates and deletes it counts.
		accepted [3]int
	}{
		"Guarded": {
			why:      "An update that names the object it was made from.",
			lines:    []string{keelson("patch", webURI, web, `{"metadata":{"uid":"u1","resourceVersion":"7"}}`, 200)},
			accepted: [3]int{0, 1, 0},
		},
		"NoUID": {
			why:      "An object of the same name may be another one.",
			lines:    []string{keelson("patch", webURI, web, `{"metadata":{"resourceVersion":"7"}}`, 200)},
			want:     []oracle.Rule{oracle.UnguardedUpdate},
			accepted: [3]int{0, 1, 0},
		},
		"NoVersion": {
			why:      "The change of another client would be overwritten.",
			lines:    []string{keelson("patch", webURI, web, `{"metadata":{"uid":"u1"}}`, 200)},
			want:     []oracle.Rule{oracle.UnguardedUpdate},
			accepted: [3]int{0, 1, 0},
		},
		"RefusedAllTheSame": {
			why:   "An unguarded write is a violation even if the API server refuses it.",
			lines: []string{keelson("patch", webURI, web, `{"metadata":{"name":"web"}}`, 409)},
			want:  []oracle.Rule{oracle.UnguardedUpdate},
		},
		"CreateOnly": {
			why:      "No object has resourceVersion 1, so this can only create.",
			lines:    []string{keelson("patch", webURI, web, `{"metadata":{"resourceVersion":"1"}}`, 201)},
			accepted: [3]int{1, 0, 0},
		},
		"UnguardedCreate": {
			why:      "An apply without a guard may change an object that another client has just created.",
			lines:    []string{keelson("patch", webURI, web, `{"metadata":{"name":"web"}}`, 201)},
			want:     []oracle.Rule{oracle.UnguardedUpdate},
			accepted: [3]int{1, 0, 0},
		},
		"PostCutOff": {
			why:   "The process was killed before it sent the body, so no object was created.",
			lines: []string{keelson("create", "/api/v1/namespaces?fieldManager=keelson", `"resource":"namespaces","apiVersion":"v1"`, "", 500)},
		},
		"PostUnseen": {
			why:      "Something was created, and the log does not say what.",
			lines:    []string{keelson("create", "/api/v1/namespaces?fieldManager=keelson", `"resource":"namespaces","apiVersion":"v1"`, "", 201)},
			want:     []oracle.Rule{oracle.Foreign},
			accepted: [3]int{1, 0, 0},
		},
		"Post": {
			why:      "A POST never changes what there is.",
			lines:    []string{keelson("create", webURI, web, `{"metadata":{"name":"web"}}`, 201)},
			accepted: [3]int{1, 0, 0},
		},
		"JSONPatch": {
			why:      "A JSON patch has no place for a UID; the resourceVersion says which object it is.",
			lines:    []string{keelson("patch", webURI, web, `[{"op":"replace","path":"/metadata/resourceVersion","value":"7"}]`, 200)},
			accepted: [3]int{0, 1, 0},
		},
		"BareJSONPatch": {
			why:      "Without one it changes whatever it meets.",
			lines:    []string{keelson("patch", webURI, web, `[{"op":"remove","path":"/spec/replicas"}]`, 200)},
			want:     []oracle.Rule{oracle.UnguardedUpdate},
			accepted: [3]int{0, 1, 0},
		},
		"Fence": {
			why: "A session that takes over gives an object a new resourceVersion, and nothing else.",
			lines: []string{keelson("patch", "/apis/apps/v1/namespaces/web/deployments/web?fieldManager=keelson-epoch", web,
				`{"metadata":{"annotations":{"keelson.io/epoch":"2"}}}`, 200)},
			accepted: [3]int{0, 1, 0},
		},
		"MoreThanAFence": {
			why: "The field manager of the fence may write nothing else.",
			lines: []string{keelson("patch", "/apis/apps/v1/namespaces/web/deployments/web?fieldManager=keelson-epoch", web,
				`{"metadata":{"annotations":{"keelson.io/epoch":"2"}},"spec":{"replicas":0}}`, 200)},
			want:     []oracle.Rule{oracle.UnguardedUpdate},
			accepted: [3]int{0, 1, 0},
		},
		"WithoutBody": {
			why:      "A write without a body in the log can't be judged.",
			lines:    []string{keelson("patch", webURI, web, "", 200)},
			want:     []oracle.Rule{oracle.Unseen},
			accepted: [3]int{0, 1, 0},
		},
		"Record": {
			why:      "A record is replaced by its resourceVersion.",
			lines:    []string{keelson("update", maskURI, mask, `{"metadata":{"resourceVersion":"7"}}`, 200)},
			accepted: [3]int{0, 1, 0},
		},
		"UnguardedRecord": {
			why:      "Two writers would overwrite each other's records.",
			lines:    []string{keelson("update", maskURI, mask, `{"metadata":{"name":"record-web"}}`, 200)},
			want:     []oracle.Rule{oracle.UnguardedRecord},
			accepted: [3]int{0, 1, 0},
		},
		"Foreign": {
			why: "No component has this Namespace.",
			lines: []string{keelson("create", "/api/v1/namespaces", `"resource":"namespaces","name":"other","apiVersion":"v1"`,
				`{"metadata":{"name":"other"}}`, 201)},
			want:     []oracle.Rule{oracle.Foreign},
			accepted: [3]int{1, 0, 0},
		},
		"NamedByItsBody": {
			why: "A POST names its object in the body alone.",
			lines: []string{keelson("create", "/api/v1/namespaces", `"resource":"namespaces","apiVersion":"v1"`,
				`{"metadata":{"name":"web"}}`, 201)},
			accepted: [3]int{1, 0, 0},
		},
		"WantedDelete": {
			why:      "Git no longer has the object, and the preconditions name the object that Keelson read.",
			lines:    []string{keelson("delete", "/x", gone(), guards, 200)},
			accepted: [3]int{0, 0, 1},
		},
		"Twice": {
			why:      "A second delete is a violation even if the object is still terminating.",
			lines:    []string{keelson("delete", "/x", gone(), guards, 200), keelson("delete", "/x", gone(), guards, 200)},
			want:     []oracle.Rule{oracle.DoubleDelete},
			accepted: [3]int{0, 0, 2},
		},
		"TriedAgain": {
			why:      "A delete whose answer was lost may be retried, and gets 404.",
			lines:    []string{keelson("delete", "/x", gone(), guards, 200), keelson("delete", "/x", gone(), guards, 404)},
			accepted: [3]int{0, 0, 1},
		},
		"UnguardedDelete": {
			why:      "It could delete an object that another client has recreated.",
			lines:    []string{keelson("delete", "/x", gone(), `{"propagationPolicy":"Foreground"}`, 200)},
			want:     []oracle.Rule{oracle.UnguardedDelete},
			accepted: [3]int{0, 0, 1},
		},
		"DeleteByUIDAlone": {
			why:      "It could delete an object that another client has changed since.",
			lines:    []string{keelson("delete", "/x", gone(), `{"preconditions":{"uid":"u1"}}`, 200)},
			want:     []oracle.Rule{oracle.UnguardedDelete},
			accepted: [3]int{0, 0, 1},
		},
		"RecordGone": {
			why:      "The record of a removed component is deleted with its last resourceVersion.",
			lines:    []string{keelson("delete", maskURI, mask, `{"preconditions":{"resourceVersion":"7"}}`, 200)},
			accepted: [3]int{0, 0, 1},
		},
		"RecordGoneUnguarded": {
			why:      "Another session may have written it.",
			lines:    []string{keelson("delete", maskURI, mask, `{}`, 200)},
			want:     []oracle.Rule{oracle.UnguardedDelete},
			accepted: [3]int{0, 0, 1},
		},
		"UnwantedDelete": {
			why:      "Git has it.",
			lines:    []string{keelson("delete", "/x", web, guards, 200)},
			want:     []oracle.Rule{oracle.UnwantedDelete},
			accepted: [3]int{0, 0, 1},
		},
		"TooEarly": {
			why:      "Git still had it then.",
			lines:    []string{strings.Replace(keelson("delete", "/x", gone(), guards, 200), "03:04:05.0", "03:04:04.0", 1)},
			want:     []oracle.Rule{oracle.UnwantedDelete},
			accepted: [3]int{0, 0, 1},
		},
		"Collection": {
			why:   "It deletes objects that Keelson has not read.",
			lines: []string{keelson("deletecollection", "/x", `"resource":"configmaps","namespace":"web","apiVersion":"v1"`, "", 200)},
			want:  []oracle.Rule{oracle.Foreign, oracle.Collection},
		},
		"OtherUser": {
			why:   "The oracle judges only writes of Keelson.",
			lines: []string{strings.Replace(keelson("delete", "/x", web, "", 200), `"keelson"`, `"admin"`, 1)},
		},
		"DryRun": {
			why:   "A dry run changes nothing.",
			lines: []string{keelson("patch", webURI+"&dryRun=All", web, `{"metadata":{"name":"web"}}`, 200)},
		},
		"OwnCRD": {
			why: "The kind of statuses is Keelson's own.",
			lines: []string{keelson("patch", "/x", `"resource":"customresourcedefinitions","apiGroup":"apiextensions.k8s.io","name":"deliveries.keelson.io"`,
				`{"metadata":{"name":"deliveries.keelson.io"}}`, 200)},
			accepted: [3]int{0, 1, 0},
		},
		"Question": {
			why: "A review is asked by a POST.",
			lines: []string{keelson("create", "/x", `"resource":"selfsubjectaccessreviews","apiGroup":"authorization.k8s.io","apiVersion":"v1"`,
				`{}`, 201)},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var verdict oracle.Verdict
			must.Test(t, func() { verdict = oracle.Judge(read(t, tc.lines), ledger(t)) })
			var got []oracle.Rule
			for _, v := range verdict.Violations {
				got = append(got, v.Rule)
				if !strings.Contains(v.String(), "audit id-") {
					t.Errorf("%s does not say where it stands in the log", v)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("violations %q, want %q: %s", got, tc.want, tc.why)
			}
			if got := [3]int{verdict.Creates, verdict.Updates, verdict.Deletes}; got != tc.accepted {
				t.Errorf("accepted %v, want %v", got, tc.accepted)
			}
		})
	}
}

func gone() string {
	return `"resource":"configmaps","namespace":"web","name":"gone","apiVersion":"v1"`
}

// ledger goes by way of its file, as that of a scenario does.
func ledger(t *testing.T) *oracle.Ledger {
	t.Helper()
	l := &oracle.Ledger{}
	gone := oracle.Object{Resource: "configmaps", Namespace: "web", Name: "gone"}
	l.Own(oracle.Object{Group: "apps", Resource: "deployments", Namespace: "web", Name: "web"}, gone, oracle.Object{Resource: "namespaces", Name: "web"})
	l.MayDelete(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "git no longer has it", gone)
	path := filepath.Join(t.TempDir(), "ledger.json")
	must.Do(l.Save(path))
	return must.Get(oracle.Load(path))
}

func read(t *testing.T, lines []string) []audit.Event {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.log")
	must.Do(os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	events, _, err := audit.Read(path, 0)
	if err != nil || len(events) != len(lines) {
		must.Failf("%d events of %d lines: %v", len(events), len(lines), err)
	}
	return events
}
