package reload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	protocol "github.com/keelson-io/keelson/api/reload"
)

const (
	// attemptTimeout bounds one request, with all of its answer.
	attemptTimeout = 5 * time.Second
	// firstPause and longestPause are between two requests to a pod: the pause doubles. After a failure it
	// is failedPause.
	firstPause, longestPause, failedPause = 200 * time.Millisecond, 2 * time.Second, 30 * time.Second
	// firstRetry is how long the files of a pod may be old before it is changed again: the time doubles, up
	// to maxRetries. A kubelet that writes the files of a volume while the pod changes forgets the change
	// until its next look at the pod, a minute later (Kubernetes, pkg/kubelet/volumemanager: the end of a
	// mount resets remountRequired).
	firstRetry, maxRetries = 2 * time.Second, 5
	// atOnce bounds the requests in flight of a process, and atOncePerNamespace those to the pods of one
	// namespace: pods that are slow to answer must not keep the requests of other namespaces back.
	atOnce, atOncePerNamespace = 64, 16
	// maxAnswer bounds how much of an answer is read. Nothing of it is used: a body that is read lets the
	// other side end its connection in order.
	maxAnswer = 4 << 10
	// maxCalls is how many calls are kept before those are dropped that no pod asks for any more.
	maxCalls, callExpires = 4096, 10 * time.Minute
	// maxVersion bounds a version in an answer.
	maxVersion = 128
)

// Caller sends reload requests to pods. Requests never block a reconcile: it asks again later. The results
// are in annotations of the pods, so a new process sends no request twice, except one in flight.
type Caller struct {
	client *http.Client
	now    func() time.Time

	mu       sync.Mutex
	calls    map[types.UID]*call
	inFlight map[string]int // by namespace; "" is all of them
}

// call is the state of the requests to one pod for one version.
type call struct {
	state    v1beta1.ReloadState
	running  bool
	attempts int
	// asked is when a reconcile last asked, sent when the last request was sent, and next when the next one
	// may be.
	asked, sent, next time.Time
	last              outcome
}

// outcome is the result of one request; the zero value: there was none.
type outcome struct {
	result  v1beta1.ReloadResult // empty: the container may still read the files
	old     bool                 // the container has read an older version
	message string
}

// NewCaller returns a Caller. transport sends its requests; nil is a transport without proxies.
func NewCaller(now func() time.Time, transport http.RoundTripper) *Caller {
	if transport == nil {
		// No proxy: the address is that of a pod. No connection is kept: a pod is told rarely.
		transport = &http.Transport{DialContext: (&net.Dialer{Timeout: attemptTimeout}).DialContext, DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10}
	}
	// A redirect would lead to an address that the pod chooses.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Caller{
		client: &http.Client{Transport: transport, Timeout: attemptTimeout, CheckRedirect: stay}, now: now,
		calls: map[types.UID]*call{}, inFlight: map[string]int{},
	}
}

// Answer is what a reconcile does about the reload of a pod.
type Answer struct {
	// Patch is a strategic merge patch of the pod; nil: nothing is to be written.
	Patch []byte
	// After is when to ask again; 0: the reload is done.
	After time.Duration
	// Failed is why the reload has failed, if Patch is the first that says so.
	Failed string
}

// Ask sends the next request of a reload if it is due, and says what to do now. A failed reload is tried
// again, slowly: the container may recover.
func (c *Caller) Ask(ctx context.Context, pod *corev1.Pod, r *Request) (a Answer, err error) {
	now := c.now()
	timeout := time.Duration(*r.method.TimeoutSeconds) * time.Second
	last, next := c.advance(ctx, pod, r, now)
	if last.result == v1beta1.Reloaded {
		a.Patch, err = r.finished(pod, now)
		return a, err
	}
	a.After = max(next.Sub(now), firstPause)
	late, failed := now.Sub(r.begun) > timeout, ""
	switch {
	case last.result == v1beta1.ReloadFailed:
		failed = last.message
	case late && last.message != "":
		failed = fmt.Sprintf("not reloaded in %s: %s", timeout, last.message)
	case last.old && r.state.Retries < maxRetries && now.Sub(r.begun) > firstRetry<<r.state.Retries:
		c.forgetOld(pod.UID)
		a.Patch, err = r.again(pod)
	}
	if failed != "" {
		a.Patch, err = r.failed(pod, failed)
	}
	if a.Patch != nil && r.state.Result == "" {
		a.Failed = failed
	}
	return a, err
}

// advance sends the next request if it is due, and returns the outcome of the last one.
func (c *Caller) advance(ctx context.Context, pod *corev1.Pod, r *Request, now time.Time) (last outcome, next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.calls[pod.UID]
	changed := of == nil || of.state.Version != r.state.Version || !of.state.Since.Equal(&r.state.Since)
	if changed && of != nil && of.running {
		// The container would get two requests at once, and could answer this one before it reads files for
		// the other.
		return outcome{}, now.Add(firstPause)
	}
	if changed {
		c.dropUnused(now)
		of = &call{state: r.state}
		c.calls[pod.UID] = of
	}
	of.asked = now
	switch {
	case of.running:
		return of.last, now.Add(now.Sub(of.sent)) // a slow answer is looked for less and less often
	case of.last.result == v1beta1.Reloaded || now.Before(of.next):
		return of.last, of.next
	}
	if c.inFlight[""] >= atOnce || c.inFlight[pod.Namespace] >= atOncePerNamespace {
		return of.last, now.Add(longestPause)
	}
	c.count(pod.Namespace, 1)
	of.running, of.sent = true, now
	target, err := address(pod, r.method.HTTP)
	go func() {
		got := outcome{message: fmt.Sprint(err)}
		if err == nil {
			got = c.send(context.WithoutCancel(ctx), target, r.state.Version) // the reconcile does not wait
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.count(pod.Namespace, -1)
		of.running, of.last = false, got
		of.next = c.now().Add(pause(of.attempts, got, c.now().Sub(r.begun) > time.Duration(*r.method.TimeoutSeconds)*time.Second))
		of.attempts++
	}()
	return of.last, now.Add(firstPause)
}

// count counts requests in flight.
func (c *Caller) count(namespace string, n int) {
	c.inFlight[""] += n
	if c.inFlight[namespace] += n; c.inFlight[namespace] == 0 {
		delete(c.inFlight, namespace)
	}
}

// forgetOld forgets that a pod had an old version: only an answer after its change says so again.
func (c *Caller) forgetOld(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.calls[pod]; of != nil {
		of.last.old = false
	}
}

// pause returns how long to wait after a request.
func pause(attempts int, got outcome, late bool) time.Duration {
	if got.result == v1beta1.ReloadFailed || late {
		return failedPause
	}
	return min(firstPause<<min(attempts, 10), longestPause)
}

// dropUnused drops calls that no pod asks for any more.
func (c *Caller) dropUnused(now time.Time) {
	if len(c.calls) >= maxCalls {
		maps.DeleteFunc(c.calls, func(_ types.UID, of *call) bool { return now.Sub(of.asked) > callExpires })
	}
}

// errAddress is the error for a pod whose address is not its own.
var errAddress = errors.New("the pod has no address of its own yet")

// address returns the URL of a reload request. Only a pod's own address is used: a loopback or link-local
// one would be a program of this node.
func address(pod *corev1.Pod, h *v1beta1.ReloadHTTP) (string, error) {
	ip, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || !ip.IsGlobalUnicast() || ip.Unmap().IsLoopback() || pod.Spec.HostNetwork {
		return "", errAddress
	}
	path, err := url.Parse(h.Path)
	if err != nil {
		return "", fmt.Errorf("the path: %w", err)
	}
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(ip.String(), strconv.Itoa(int(h.Port))), Path: path.Path, RawPath: path.RawPath, RawQuery: path.RawQuery}
	return u.String(), nil
}

// send sends one request. The body of the answer is not used: it could hold what the configuration does.
func (c *Caller) send(ctx context.Context, target, version string) outcome {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil) //nolint:gosec // the address of the pod, checked in address
	if err != nil {
		return outcome{message: "the request can't be made"}
	}
	request.Header.Set(protocol.HeaderVersion, version)
	request.Header.Set("User-Agent", "keelson")
	response, err := c.client.Do(request)
	if err != nil {
		return outcome{message: explain(err)}
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.CopyN(io.Discard, response.Body, maxAnswer) // an error ends the reading, and nothing else
	has := response.Header.Get(protocol.HeaderVersion)
	ok := response.StatusCode >= http.StatusOK && response.StatusCode < http.StatusMultipleChoices
	switch {
	case has == version && ok:
		return outcome{result: v1beta1.Reloaded}
	case has == version:
		return outcome{result: v1beta1.ReloadFailed, message: fmt.Sprintf("the container refused the configuration with status %d", response.StatusCode)}
	case has == "":
		return outcome{message: fmt.Sprintf("an answer with status %d does not say which version was read: it needs the header %s", response.StatusCode, protocol.HeaderVersion)}
	}
	if !isPlain(has) { // the container chose the text
		return outcome{old: true, message: "the container has read another version, whose text is no version"}
	}
	return outcome{old: true, message: fmt.Sprintf("the container has read version %q", has)}
}

// explain returns why a request failed, without the parts that a pod could choose.
func explain(err error) string {
	var timeout net.Error
	var op *net.OpError
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in " + attemptTimeout.String()
	case errors.As(err, &op) && op.Op == "dial":
		return "no connection to the port"
	}
	return "the connection ended without an answer"
}
