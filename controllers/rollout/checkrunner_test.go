package rollout

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/egress"
	"github.com/keelson-io/keelson/registry"
)

// TestServers: what the checks that ask a server make of its answers.
func TestServers(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		vector := func(samples string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"status":"success","data":{"resultType":"vector","result":[` + samples + `]}}`))
		}
		const two = `{"metric":{"pod":"a"},"value":[0,"1"]},{"metric":{"pod":"b"},"value":[0,"7"]}`
		switch query := r.FormValue("query"); {
		case r.URL.Path == "/well/prod-2":
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasPrefix(r.URL.Path, "/well"):
		case r.URL.Path == "/elsewhere":
			http.Redirect(w, r, "/well", http.StatusFound)
		case strings.Contains(query, "none"):
			vector("")
		case strings.Contains(query, "nan"):
			vector(`{"metric":{},"value":[0,"NaN"]}`)
		case strings.Contains(query, "html"):
			_, _ = w.Write([]byte("<html>secret"))
		case strings.Contains(query, "another"):
			vector(`"secret"`)
		case strings.Contains(query, "away"):
			http.Redirect(w, r, "/well", http.StatusFound)
		case strings.Contains(query, "sum("):
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"status":"error","errorType":"bad_data","error":"parse error: ` + strings.Repeat("x", 400) + `secret"}`))
		case strings.Contains(query, "broken"):
			w.WriteHeader(http.StatusInternalServerError)
		case query == `errors{cluster=~"prod-1|prod-2"}`, strings.HasPrefix(query, "two"):
			vector(two)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	http := func(path string, status int) v1alpha1.Check {
		return v1alpha1.Check{HTTP: &v1alpha1.HTTPCheck{URL: server.URL + path, Status: status}}
	}
	query := func(query, operator string, threshold float64) v1alpha1.Check {
		return v1alpha1.Check{Prometheus: &v1alpha1.PrometheusCheck{Address: server.URL, Query: query, Operator: operator, Threshold: threshold}}
	}
	cases := map[string]struct {
		why     string
		check   v1alpha1.Check
		answers string // why not; empty: yes
	}{
		"OK":            {"200 is expected.", http("/well", 0), ""},
		"Status":        {"Unless another one is.", http("/well", 204), "answers 200, and not 204"},
		"Redirect":      {"One that is sent elsewhere has no answer.", http("/elsewhere", 0), "answers 302, and not 200"},
		"EachCluster":   {"It is asked for each, and the first that says no is told.", http("/well/$(cluster)", 0), "prod-2: GET " + server.URL + "/well/prod-2 answers 503"},
		"Below":         {"All samples have to.", query(`errors{cluster=~"$(clusters)"}`, "<", 8), ""},
		"OneAbove":      {"One is enough to say no.", query("two", "<", 7), `gives 7, and not < 7 for {pod="b"}`},
		"NoData":        {"No data is no answer.", query("none", "<", 1), "gives no data"},
		"NaN":           {"What is no number is not below, or other than, one.", query("nan", "!=", 1), "gives NaN"},
		"Query":         {"Prometheus says what is wrong with the query, and is not believed to be short.", query("sum(", "<", 1), "bad_data: parse error: xxx"},
		"NoJSON":        {"Another server has the address: what it answers is not repeated.", query("html", "<", 1), "the server at this address is not a Prometheus"},
		"NoSamples":     {"It is JSON, and no vector.", query("another", "<", 1), "the server at this address is not a Prometheus"},
		"QueryAway":     {"It is not asked where it leads.", query("away", "<", 1), "the server at this address is not a Prometheus"},
		"Metadata":      {"An address that is reserved is not asked.", v1alpha1.Check{HTTP: &v1alpha1.HTTPCheck{URL: "http://169.254.169.254/"}}, "no answer to GET http://169.254.169.254/: its address serves credentials"},
		"QueryMetadata": {"Nor by a query.", v1alpha1.Check{Prometheus: &v1alpha1.PrometheusCheck{Address: "http://169.254.169.254", Query: "up", Operator: "<", Threshold: 1}}, "no answer: its address serves credentials"},
		"Broken":        {"A server that fails says nothing.", query("broken", "<", 1), "500"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newCheckRunner(func() time.Time { return wayStart }, egress.Policy{}.Transport())
			q := question{spec: c.check, clusters: []string{"prod-1", "prod-2"}}
			is := a.server(t.Context(), q, asking{pipeline: &registry.Pipeline{Name: "standard"}, component: "web"})
			if is.yes != (c.answers == "") || !strings.Contains(is.why, c.answers) || strings.Contains(is.why, "secret") {
				t.Errorf("%s: yes %v: %q; want %q", c.why, is.yes, is.why, c.answers)
			}
		})
	}
}

// TestLasts: an answer counts as yes since this process first saw a yes. A gap between two answers
// that is longer than an answer stays valid starts the time anew.
func TestLasts(t *testing.T) {
	t.Parallel()
	now := wayStart
	a := newCheckRunner(func() time.Time { return now }, egress.Policy{}.Transport())
	q := question{Check: Check{Change: "1", Stage: "canary", Name: "up"}, spec: v1alpha1.Check{CEL: "true"}}
	since := func(after time.Duration, spec string) time.Time {
		now, q.spec.CEL = now.Add(after), spec
		return a.answersTo(t.Context(), []question{q}, asking{})[q.Check].since
	}
	cases := []struct {
		why   string
		after time.Duration
		spec  string
		lasts time.Duration
	}{
		{"The first answer is yes.", 0, "true", 0},
		{"The answer is still yes.", askEvery, "true", askEvery},
		{"An answer stays valid for this long.", answerFor, "true", askEvery + answerFor},
		{"The check was not asked for too long, so the time starts anew.", answerFor + time.Second, "true", 0},
		{"The answer is still yes again.", askEvery, "true", askEvery},
	}
	for _, c := range cases {
		if got := since(c.after, c.spec); now.Sub(got) != c.lasts {
			t.Errorf("%s It is yes for %s, not %s.", c.why, now.Sub(got), c.lasts)
		}
	}
	if got := since(askEvery, "1"); !got.IsZero() {
		t.Errorf("what is no answer is yes since %s", got)
	}
	if got := since(askEvery, "true"); now.Sub(got) != 0 {
		t.Error("a break is none")
	}
}

// TestAskedBeside: the loop does not wait for a server: it is told when there is an
// answer, which stands for a while, and is asked for again before that has passed.
func TestAskedBeside(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	t.Cleanup(server.Close)
	now := wayStart.Add(900 * time.Millisecond)
	a := newCheckRunner(func() time.Time { return now }, egress.Policy{}.Transport())
	told := make(chan struct{}, 10)
	q := question{Check: Check{Change: "1", Stage: "canary", Name: "up"}, spec: v1alpha1.Check{HTTP: &v1alpha1.HTTPCheck{URL: server.URL}}}
	ask := func() (answer, bool) {
		is, known := a.answersTo(t.Context(), []question{q}, asking{pipeline: &registry.Pipeline{}, answered: func() { told <- struct{}{} }})[q.Check]
		return is, known
	}
	if _, known := ask(); known {
		t.Error("there is an answer before the server was asked")
	}
	<-told
	if is, known := ask(); !known || !is.yes {
		t.Errorf("the answer is %+v, %v", is, known)
	}
	if n := len(asked); n != 1 {
		t.Errorf("asked %d times", n)
	}
	server.Close()
	now = wayStart.Add(askEvery) // a check wakes at a whole second
	if is, known := ask(); !known || !is.yes {
		t.Errorf("while it is asked again the answer is %+v, %v", is, known)
	}
	<-told
	if is, _ := ask(); is.yes {
		t.Error("a server that is gone says yes")
	}
}
