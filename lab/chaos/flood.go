package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/process"
)

const (
	// floodRate is the number of unsigned requests per second, duplicateRate the number
	// of repetitions of one signed webhook per second.
	floodRate, duplicateRate = 1000, 200
	// slowSenders send one byte per second each, largeSenders 1 GiB per request each.
	slowSenders, largeSenders = 300, 4
	largeBody                 = 1 << 30
	// floodMemory is how much more memory the process may take in the flood, in bytes.
	floodMemory = 50 << 20
	// quietPushes is the number of pushes that are timed before the flood, for comparison.
	quietPushes = 10
)

// runFlood floods the webhook server with several kinds of requests, while git changes
// and honest webhooks report the changes.
func runFlood(ctx context.Context, w *world, r *result) {
	r.did, r.must = "commits that are delivered while webhooks are flooded", max(1, int(w.Flood.Seconds())/20)
	g := w.newFixtureFleet(ctx, "hook", 8, fixtureTemplate, target)
	g.steady = true
	f := &flood{disasterFleet: &disasterFleet{fixtureFleet: g}, secret: w.planted.plant("the secret of webhooks"), sent: map[string]int{}}
	f.begin(ctx)
	var quiet []time.Duration
	must.Wrap(func() { f.pushes(ctx, &quiet, func(done int) bool { return done < quietPushes }) }, "before the flood (its log: %s)", f.controller.Log)
	before := f.measure(ctx)
	during, peak, err := f.underFlood(ctx, w.Flood)
	if err != nil {
		r.violate("in the flood: %v (its log: %s)", err, f.controller.Log)
	}
	after := f.measure(ctx)
	r.number, r.survived, r.worst = len(during), len(during), slices.Max(append(during, 0))
	if more := peak - before.memory; more > floodMemory {
		r.violate("the flood took %d MB of memory, more than %d", more>>20, floodMemory>>20)
	}
	reads := int(after.reads - before.reads)
	if most := int(after.at.Sub(before.at).Seconds()) + 2; reads > most {
		r.violate("the repository was read %d times in %s, more than once a second", reads, after.at.Sub(before.at))
	}
	if after.accepted <= before.accepted || after.refused <= before.refused {
		r.violate("no webhook was accepted, or none refused: there was no flood")
	}
	r.notes = append(r.notes,
		fmt.Sprintf("push to cluster, quiet: median %s, worst %s; in the flood: median %s, worst %s", median(quiet), slices.Max(quiet), median(during), r.worst),
		fmt.Sprintf("in %s: %s; accepted %.0f, refused %.0f; %d reads of the repository; memory %d MB before, at most %d MB", w.Flood,
			f.sentCounts(), after.accepted-before.accepted, after.refused-before.refused, reads, before.memory>>20, peak>>20))
	f.controller.stop(ctx)
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2].Round(time.Millisecond)
}

// flood is a controller with a webhook server, and the requests sent to it.
type flood struct {
	*disasterFleet
	secret        string
	hooks, status string // a URL, and the address of metrics

	mu   sync.Mutex
	sent map[string]int // requests, by kind
}

// begin starts a controller that polls git once a minute.
func (f *flood) begin(ctx context.Context) {
	f.kubeconfig = f.directNamed()
	secrets := f.path("webhook-secret")
	must.Do(os.WriteFile(secrets, []byte(f.secret+"\n"), 0o600))
	f.controller = f.start(launch{name: "controller", repo: f.repo, kubeconfig: f.kubeconfig},
		"controller", "--context", target, "--interval", "1m", "--listen", "127.0.0.1:0",
		"--webhook-listen", "127.0.0.1:0", "--webhook-secret-file", secrets)
	must.Wrap(func() { f.converged(ctx, hungAfter) }, "before the flood (its log: %s)", f.controller.Log)
	f.hooks = "http://" + must.Get(harness.Served(f.controller.Log, "webhooks")) + "/hook"
	f.status = must.Get(harness.Served(f.controller.Log, "/metrics"))
}

// pushes commits and sends an honest webhook while more returns true. It adds to took the
// time until the cluster had each commit.
func (f *flood) pushes(ctx context.Context, took *[]time.Duration, more func(done int) bool) {
	client := &http.Client{Timeout: 30 * time.Second}
	for more(len(*took)) {
		f.changeGit(ctx, f.rand, 3)
		started := time.Now()
		body := fmt.Sprintf(`{"ref": "refs/heads/main", "number": %d}`, len(*took))
		if status := must.Get(f.post(ctx, client, strings.NewReader(body), sign(f.secret, body))); status != http.StatusAccepted {
			must.Failf("an honest webhook: answered with %d", status)
		}
		until(ctx, recovery, f.asGitSays)
		*took = append(*took, time.Since(started))
	}
}

func sign(secret, body string) string { return harness.SignWebhook(secret, []byte(body)) }

func (f *flood) post(ctx context.Context, client *http.Client, body io.Reader, signature string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.hooks, body)
	if err != nil {
		return 0, fmt.Errorf("make a request: %w", err)
	}
	if signature != "" {
		req.Header.Set("X-Hub-Signature-256", signature)
	}
	answer, err := client.Do(req)
	if err != nil {
		return 0, err //nolint:wrapcheck // by its caller
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, errors.Join(err, answer.Body.Close())
}

// underFlood floods the webhook server for a time, with honest pushes meanwhile. It returns the
// durations of the pushes and the highest observed memory in bytes.
func (f *flood) underFlood(ctx context.Context, long time.Duration) (took []time.Duration, peak int64, err error) {
	flooding, stop := context.WithTimeout(ctx, long)
	defer stop()
	var wg sync.WaitGroup
	many := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 64}, Timeout: 10 * time.Second}
	defer many.CloseIdleConnections()
	const again = `{"ref": "refs/heads/main"}`
	for _, s := range []senders{
		{"unsigned", 32, floodRate, func(ctx context.Context) {
			_, _ = f.post(ctx, many, strings.NewReader("{}"), "") // the controller's metrics count the results
		}},
		{"the same signed one", 32, duplicateRate, func(ctx context.Context) {
			_, _ = f.post(ctx, many, strings.NewReader(again), sign(f.secret, again))
		}},
		{"of 1 GiB", largeSenders, rate.Inf, func(ctx context.Context) {
			_, _ = f.post(ctx, http.DefaultClient, io.LimitReader(zeros{}, largeBody), sign("a guess", ""))
		}},
		{"slow", slowSenders, rate.Inf, f.slowly},
	} {
		limit := rate.NewLimiter(s.perSecond, floodRate/10)
		for range s.count {
			wg.Go(func() { f.repeat(flooding, limit, s) })
		}
	}
	wg.Go(func() { every(flooding, 200*time.Millisecond, func() { peak = max(peak, f.controller.memory()) }) })
	err = must.Try(func() { f.pushes(ctx, &took, func(int) bool { return flooding.Err() == nil }) })
	stop()
	wg.Wait()
	return took, peak, err
}

// senders send one kind of requests at the same time, together so many a second.
type senders struct {
	what      string
	count     int
	perSecond rate.Limit
	send      func(context.Context)
}

// repeat sends requests until the context ends.
func (f *flood) repeat(ctx context.Context, limit *rate.Limiter, s senders) {
	for limit.Wait(ctx) == nil {
		s.send(ctx)
		f.mu.Lock()
		f.sent[s.what]++
		f.mu.Unlock()
	}
}

// sentCounts lists the numbers of sent requests by kind.
func (f *flood) sentCounts() string {
	var out []string
	for what, n := range f.sent {
		out = append(out, fmt.Sprintf("%d %s", n, what))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// slowly sends a webhook with an invalid signature, one byte per second.
func (f *flood) slowly(ctx context.Context) {
	host := strings.TrimSuffix(strings.TrimPrefix(f.hooks, "http://"), "/hook")
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }() // the request is only load
	request := "POST /hook HTTP/1.1\r\nHost: keelson\r\nX-Hub-Signature-256: " + sign("a guess", "") + "\r\nContent-Length: 1000\r\n\r\n"
	_, err = io.WriteString(conn, request)
	for err == nil && process.Wait(ctx, time.Second) == nil {
		_, err = conn.Write([]byte("x"))
	}
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// reading is a sample of the controller's metrics and memory.
type reading struct {
	at                       time.Time
	reads, accepted, refused float64
	memory                   int64
}

func (f *flood) measure(ctx context.Context) reading {
	sums := must.Get(harness.Metrics(ctx, f.status,
		"keelson_repository_reads_total", `keelson_webhooks_total\{result="accepted"\}`, "keelson_webhooks_total"))
	return reading{at: time.Now(), memory: f.controller.memory(), reads: sums[0], accepted: sums[1], refused: sums[2] - sums[1]}
}

// memory returns the resident memory of the process, without its workers, in bytes. It is 0
// after the end of the process.
func (k *keelson) memory() int64 {
	u, err := k.Usage()
	if err != nil {
		return 0
	}
	return u.RSS
}
