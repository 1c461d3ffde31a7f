package rollout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/egress"
	"github.com/keelson-io/keelson/controllers/probe"
	"github.com/keelson-io/keelson/registry"
)

const (
	// askTimeout bounds one question, for all its clusters together.
	askTimeout = 30 * time.Second
	// answerFor is how long an answer is valid. Without it, a server that stopped answering would
	// still count as a yes.
	answerFor = 2 * askEvery
	// maxAnswer bounds the response of a server, in bytes. A longer response is cut, and can't be
	// parsed.
	maxAnswer = 4 << 20
	// maxSaid bounds the part of a response that is quoted in messages, in bytes.
	maxSaid = 300
)

// bounded limits the responses of another transport to maxAnswer.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(answer.Body, maxAnswer), answer.Body}
	}
	return answer, err //nolint:wrapcheck // who asked says what
}

// checkRunner asks checks. Requests to servers run beside the loop, which is called when an answer
// arrives. It is safe for concurrent use.
type checkRunner struct {
	now        func() time.Time
	conditions Conditions
	client     http.Client  // follows no redirect
	probes     *probe.Store // results of probes

	mu      sync.Mutex
	answers map[Check]cachedAnswer
	flying  map[Check]bool
	lasting map[Check]passingSince
}

// passingSince is the begin of an unbroken yes, and the last time that it was seen.
type passingSince struct{ since, seen time.Time }

// cachedAnswer is an answer, when its question was asked, and when the check was first asked. A resume
// asks the check anew, so an answer from before the resume is not used.
type cachedAnswer struct {
	answer
	at, first time.Time
}

// newCheckRunner returns a checkRunner that sends its requests through the transport.
func newCheckRunner(now func() time.Time, by http.RoundTripper) *checkRunner {
	return &checkRunner{
		now: now, conditions: NewConditions(),
		client:  http.Client{Transport: bounded{by}, CheckRedirect: egress.StayThere},
		answers: map[Check]cachedAnswer{}, flying: map[Check]bool{}, lasting: map[Check]passingSince{},
	}
}

// asking is the context of a question.
type asking struct {
	fleet     *registry.Fleet
	pipeline  *registry.Pipeline
	component string
	seen      map[string]*observation
	answered  func() // called when an answer arrives later
}

// answersTo returns the known answers, and asks again where an answer is too old.
func (a *checkRunner) answersTo(ctx context.Context, questions []question, of asking) map[Check]answer {
	out := map[Check]answer{}
	for _, q := range questions {
		switch {
		case q.spec.Approval != nil:
			out[q.Check] = approval(q, of)
		case q.spec.CEL != "":
			out[q.Check] = a.condition(q, of)
		case q.spec.Job != nil:
			out[q.Check] = jobs(q, of.seen)
		default:
			if known, ok := a.later(ctx, q, of); ok {
				out[q.Check] = known
			}
		}
	}
	a.last(out)
	return out
}

// last records since when answers are an unbroken yes, and sets this time in them.
func (a *checkRunner) last(answers map[Check]answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	maps.DeleteFunc(a.lasting, func(_ Check, is passingSince) bool { return now.Sub(is.seen) > answerFor })
	for check, is := range answers {
		if !is.yes {
			delete(a.lasting, check)
			continue
		}
		known, lasts := a.lasting[check]
		if !lasts {
			known.since = now
		}
		known.seen = now
		a.lasting[check], is.since = known, known.since
		answers[check] = is
	}
}

func approval(q question, of asking) answer {
	if of.fleet.StageApproval(of.component, q.Stage, q.Change) != nil {
		return answer{yes: true}
	}
	why := fmt.Sprintf("it waits for an approval in git: {component: %s, stage: %s, hash: %s, because: …}", of.component, q.Stage, q.Change)
	if q.spec.Approval.Because != "" {
		why += "; " + q.spec.Approval.Because
	}
	return answer{why: why}
}

func (a *checkRunner) condition(q question, of asking) answer {
	condition, err := a.conditions.Compile(q.spec.CEL)
	if err != nil {
		return answer{why: err.Error(), final: true}
	}
	for _, name := range q.clusters {
		facts := DeliveryFacts{}
		if s := of.seen[name]; s != nil {
			facts = DeliveryFacts{Version: s.applied, Sync: string(s.sync), Health: string(s.health), Message: s.message}
		}
		yes, err := condition.Holds(of.fleet.Cluster(name), facts)
		switch {
		case err != nil:
			return answer{why: name + ": " + err.Error()}
		case !yes:
			return answer{why: fmt.Sprintf("%s: %s is false", name, q.spec.CEL)}
		}
	}
	return answer{yes: true}
}

// later returns the last answer, and asks again if this answer is old.
func (a *checkRunner) later(ctx context.Context, q question, of asking) (answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	for check, g := range a.answers { // drop answers to questions that are no longer asked
		if now.Sub(g.at) > answerFor && check != q.Check {
			delete(a.answers, check)
		}
	}
	last, known := a.answers[q.Check]
	known = known && last.first.Equal(q.asked)
	// Wake-ups are in whole seconds.
	if (!known || now.Sub(last.at) > askEvery-time.Second) && !a.flying[q.Check] {
		a.flying[q.Check] = true
		go func() {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			is := a.server(ctx, q, of)
			a.mu.Lock()
			a.answers[q.Check] = cachedAnswer{is, now, q.asked}
			delete(a.flying, q.Check)
			a.mu.Unlock()
			of.answered()
		}()
	}
	return last.answer, known && now.Sub(last.at) <= answerFor
}

// server asks a server: once for each cluster of the stage, if the question differs by cluster.
func (a *checkRunner) server(ctx context.Context, q question, of asking) answer {
	names := registry.Names{Component: of.component, Pipeline: of.pipeline.Name, Stage: q.Stage, Clusters: q.clusters}
	text, ask := "", a.get
	switch {
	case q.spec.Probe != nil:
		return a.probe(ctx, q, of)
	case q.spec.HTTP != nil:
		text = q.spec.HTTP.URL
	case q.spec.Prometheus != nil:
		text, ask = q.spec.Prometheus.Query, a.query
	default:
		return answer{why: "this version of Keelson does not know this kind of check", final: true}
	}
	if !registry.PerCluster(text) {
		return ask(ctx, q.spec, names.Expand(text))
	}
	for _, cluster := range q.clusters {
		names.Cluster = cluster
		if is := ask(ctx, q.spec, names.Expand(text)); !is.yes {
			is.why = cluster + ": " + is.why
			return is
		}
	}
	return answer{yes: true}
}

// probe answers from the results in the hub.
func (a *checkRunner) probe(ctx context.Context, q question, of asking) answer {
	p := of.fleet.Probe(q.spec.Probe.Name)
	if p == nil {
		return answer{why: fmt.Sprintf("there is no probe %s: keelson validate", q.spec.Probe.Name)}
	}
	results, err := a.probes.On(ctx, of.fleet, p.Name)
	if err != nil {
		return answer{why: err.Error()}
	}
	ask := probe.Question{Probe: p, Runs: q.spec.Probe.Runs, Asked: q.asked, After: q.After}
	for _, name := range q.clusters {
		ask.Clusters = append(ask.Clusters, of.fleet.Cluster(name))
	}
	is := ask.Answer(results, a.now())
	return answer{yes: is.Yes, final: is.Final, why: is.Why}
}

func (a *checkRunner) get(ctx context.Context, spec v1alpha1.Check, at string) answer {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return answer{why: at + " can't be used as a URL"}
	}
	response, err := a.client.Do(request)
	if err != nil {
		return answer{why: fmt.Sprintf("no answer to GET %s: %s", at, egress.Failure(err, askTimeout))}
	}
	_ = response.Body.Close()
	want := spec.HTTP.Status
	if want == 0 {
		want = http.StatusOK
	}
	if response.StatusCode != want {
		return answer{why: fmt.Sprintf("GET %s answers %d, and not %d", at, response.StatusCode, want)}
	}
	return answer{yes: true}
}

func (a *checkRunner) query(ctx context.Context, spec v1alpha1.Check, query string) answer {
	p := spec.Prometheus
	client, err := api.NewClient(api.Config{Address: p.Address, Client: &a.client})
	if err != nil {
		return answer{why: p.Address + " can't be used as a URL"}
	}
	value, _, _, err := prometheusv1.NewAPI(client).Query(ctx, query, time.Time{})
	if err != nil {
		return answer{why: fmt.Sprintf("query %s at %s: %s", query, p.Address, refusal(err))}
	}
	var samples []model.Sample
	switch v := value.(type) {
	case model.Vector:
		for _, s := range v {
			samples = append(samples, *s)
		}
	case *model.Scalar:
		samples = append(samples, model.Sample{Value: v.Value})
	default:
		return answer{why: fmt.Sprintf("query %s gives a %s, and not an instant vector or a scalar", query, value.Type())}
	}
	if len(samples) == 0 {
		return answer{why: fmt.Sprintf("query %s gives no data", query)}
	}
	i := slices.IndexFunc(samples, func(s model.Sample) bool { return !compares(float64(s.Value), p.Operator, p.Threshold) })
	if i >= 0 {
		why := fmt.Sprintf("query %s gives %v, and not %s %v", query, samples[i].Value, p.Operator, p.Threshold)
		if m := samples[i].Metric; len(m) > 0 {
			why += " for " + cut(m.String())
		}
		return answer{why: why}
	}
	return answer{yes: true}
}

// refusal says why a query has no value. It quotes what Prometheus says of the query, but no
// response of another server behind the address.
func refusal(err error) string {
	if said, ok := errors.AsType[*prometheusv1.Error](err); ok && said.Type != prometheusv1.ErrBadResponse {
		return cut(said.Error())
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return "no answer: " + egress.Failure(err, askTimeout)
	}
	return "the server at this address is not a Prometheus"
}

// cut shortens text from a server to maxSaid bytes.
func cut(text string) string {
	if len(text) <= maxSaid {
		return text
	}
	return strings.ToValidUTF8(text[:maxSaid], "") + "…"
}

// compares returns false for NaN, and for an unknown operator.
func compares(x float64, operator string, y float64) bool {
	switch operator {
	case "<":
		return x < y
	case "<=":
		return x <= y
	case ">":
		return x > y
	case ">=":
		return x >= y
	case "==":
		return x == y
	case "!=":
		return x < y || x > y
	}
	return false
}
