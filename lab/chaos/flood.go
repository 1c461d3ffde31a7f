package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
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
func runFlood(ctx context.Context, w *world) (result, error) {
	r := result{did: "commits that are delivered while webhooks are flooded", must: max(1, int(w.Flood.Seconds())/20)}
	g, err := w.newFixtureFleet(ctx, "hook", 8)
	if err != nil {
		return r, err
	}
	g.steady = true
	f := &flood{disasterFleet: &disasterFleet{fixtureFleet: g}, secret: w.planted.plant("the secret of webhooks"), sent: map[string]*atomic.Int64{}}
	if err := f.begin(ctx); err != nil {
		return r, err
	}
	quiet, err := f.pushes(ctx, func(done int) bool { return done < quietPushes })
	if err != nil {
		return r, fmt.Errorf("before the flood: %w (its log: %s)", err, f.controller.log)
	}
	before, err := f.measure(ctx)
	if err != nil {
		return r, err
	}
	during, peak, err := f.rise(ctx, w.Flood)
	if err != nil {
		r.violate("in the flood: %v (its log: %s)", err, f.controller.log)
	}
	after, err := f.measure(ctx)
	if err != nil {
		return r, err
	}
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
			f.said(), after.accepted-before.accepted, after.refused-before.refused, reads, before.memory>>20, peak>>20))
	return r, f.controller.stop(ctx)
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
	hooks, status string // URLs

	mu   sync.Mutex
	sent map[string]*atomic.Int64
}

// begin starts a controller that polls git once a minute.
func (f *flood) begin(ctx context.Context) error {
	path, err := f.direct()
	if err != nil {
		return err
	}
	if f.kubeconfig, err = f.renamed(path); err != nil {
		return err
	}
	secrets := f.path("webhook-secret")
	if err := os.WriteFile(secrets, []byte(f.secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the secret: %w", err)
	}
	f.controller, err = f.start(launch{name: "controller", repo: f.repo, kubeconfig: f.kubeconfig},
		"controller", "--context", target, "--interval", "1m", "--listen", "127.0.0.1:0",
		"--webhook-listen", "127.0.0.1:0", "--webhook-secret-file", secrets)
	if err != nil {
		return err
	}
	if _, err := f.converged(ctx, hungAfter); err != nil {
		return fmt.Errorf("before the flood: %w (its log: %s)", err, f.controller.log)
	}
	log, err := os.ReadFile(f.controller.log)
	if err != nil {
		return fmt.Errorf("read the controller's log: %w", err)
	}
	for _, one := range regexp.MustCompile(`serving (\S+).*address=(\S+)`).FindAllStringSubmatch(string(log), -1) {
		if one[1] == "webhooks" {
			f.hooks = "http://" + one[2] + "/hook"
		} else {
			f.status = "http://" + one[2] + "/metrics"
		}
	}
	if f.hooks == "" || f.status == "" {
		return fmt.Errorf("the controller does not say where it listens (its log: %s)", f.controller.log)
	}
	return nil
}

// pushes commits and sends an honest webhook while more returns true. It returns the
// time until the cluster had each commit.
func (f *flood) pushes(ctx context.Context, more func(done int) bool) ([]time.Duration, error) {
	var out []time.Duration
	client := &http.Client{Timeout: 30 * time.Second}
	for more(len(out)) {
		if err := f.grow(ctx, f.rand, 3); err != nil {
			return out, err
		}
		started := time.Now()
		body := fmt.Sprintf(`{"ref": "refs/heads/main", "number": %d}`, len(out))
		status, err := f.post(ctx, client, strings.NewReader(body), sign(f.secret, body))
		if err == nil && status != http.StatusAccepted {
			err = fmt.Errorf("answered with %d", status)
		}
		if err != nil {
			return out, fmt.Errorf("an honest webhook: %w", err)
		}
		if err := until(ctx, recovery, f.asGitSays); err != nil {
			return out, err
		}
		out = append(out, time.Since(started))
	}
	return out, nil
}

func sign(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

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

// rise floods the webhook server for a time, with honest pushes meanwhile. It returns the
// durations of the pushes and the highest observed memory in bytes.
func (f *flood) rise(ctx context.Context, long time.Duration) (took []time.Duration, peak int64, err error) {
	flooding, stop := context.WithTimeout(ctx, long)
	defer stop()
	var wg sync.WaitGroup
	many := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 64}, Timeout: 10 * time.Second}
	defer many.CloseIdleConnections()
	f.paced(flooding, &wg, "unsigned", floodRate, func(ctx context.Context) {
		_, _ = f.post(ctx, many, strings.NewReader("{}"), "") // the controller's metrics count the results
	})
	const again = `{"ref": "refs/heads/main"}`
	f.paced(flooding, &wg, "the same signed one", duplicateRate, func(ctx context.Context) {
		_, _ = f.post(ctx, many, strings.NewReader(again), sign(f.secret, again))
	})
	for range largeSenders {
		f.repeated(flooding, &wg, "of 1 GiB", func(ctx context.Context) {
			_, _ = f.post(ctx, http.DefaultClient, io.LimitReader(zeros{}, largeBody), sign("a guess", ""))
		})
	}
	for range slowSenders {
		f.repeated(flooding, &wg, "slow", f.slowly)
	}
	wg.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for flooding.Err() == nil {
			peak = max(peak, f.controller.memory())
			select {
			case <-flooding.Done():
			case <-tick.C:
			}
		}
	})
	took, err = f.pushes(ctx, func(int) bool { return flooding.Err() == nil })
	stop()
	wg.Wait()
	return took, peak, err
}

// paced calls do perSecond times a second, up to 32 calls at once, until the context ends.
func (f *flood) paced(ctx context.Context, wg *sync.WaitGroup, what string, perSecond int, do func(context.Context)) {
	limit := rate.NewLimiter(rate.Limit(perSecond), perSecond/10)
	n := f.counter(what)
	for range 32 {
		wg.Go(func() {
			for limit.Wait(ctx) == nil {
				do(ctx)
				n.Add(1)
			}
		})
	}
}

// repeated calls do repeatedly until the context ends.
func (f *flood) repeated(ctx context.Context, wg *sync.WaitGroup, what string, do func(context.Context)) {
	n := f.counter(what)
	wg.Go(func() {
		for ctx.Err() == nil {
			do(ctx)
			n.Add(1)
		}
	})
}

func (f *flood) counter(what string) *atomic.Int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sent[what] == nil {
		f.sent[what] = &atomic.Int64{}
	}
	return f.sent[what]
}

// said lists the numbers of sent requests by kind.
func (f *flood) said() string {
	var out []string
	for what, n := range f.sent {
		out = append(out, fmt.Sprintf("%d %s", n.Load(), what))
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
	if _, err := io.WriteString(conn, request); err != nil {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if _, err := conn.Write([]byte("x")); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
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

func (f *flood) measure(ctx context.Context) (reading, error) {
	out := reading{at: time.Now(), memory: f.controller.memory()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.status, nil)
	if err != nil {
		return out, fmt.Errorf("metrics: %w", err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return out, fmt.Errorf("metrics: %w", err)
	}
	text, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return out, fmt.Errorf("metrics: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue // a comment of the metrics format
		}
		switch {
		case strings.HasPrefix(name, "keelson_repository_reads_total"):
			out.reads += n
		case name == `keelson_webhooks_total{result="accepted"}`:
			out.accepted += n
		case strings.HasPrefix(name, "keelson_webhooks_total"):
			out.refused += n
		}
	}
	return out, nil
}

// memory returns the resident memory of the process, without its workers, in bytes.
func (k *keelson) memory() int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", k.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(status) {
		if text, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(string(text)), "kB")), 10, 64)
			if err == nil {
				return n << 10
			}
		}
	}
	return 0
}
