package shard_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/controllers/lease"
	"github.com/keelson-io/keelson/controllers/shard"
)

// server is a real API server; nil in -short runs.
var server *rest.Config

func TestMain(m *testing.M) {
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { server = config }))
}

const (
	// patience ends a test that would never end. It is not a bound.
	patience = 3 * time.Minute
	// duration of a Lease: long enough for a machine that is busy with other work.
	duration = 10 * time.Second
)

// work is who works on what, as the replicas of a test do it.
type work struct {
	t        *testing.T
	group    string
	started  int
	duration time.Duration // of the Lease of each replica that begins

	mu   sync.Mutex
	on   map[string]*replica
	took int // clusters begun with
}

func newWork(t *testing.T) *work {
	t.Helper()
	apiservertest.Need(t, server)
	t.Parallel()
	return &work{t: t, group: strings.ToLower(t.Name()), duration: duration, on: map[string]*replica{}}
}

// replica is a process that works on what it is granted.
type replica struct {
	*shard.Member
	work *work
	name string
	skew atomic.Int64
	// asleep: its requests do not reach the API server, and its clock stands still until it wakes,
	// like those of a stopped process.
	asleep atomic.Bool
	writes atomic.Int64 // of its Lease
	wrote  atomic.Int64 // when the last of them was sent, in Unix nanoseconds
	stop   context.CancelFunc
	ended  chan error
}

func (r *replica) now() time.Time { return time.Now().Add(time.Duration(r.skew.Load())) }

// begin starts a replica that knows of clusters.
func (w *work) begin(clusters []string, group string) *replica {
	w.t.Helper()
	w.started++
	r := &replica{work: w, name: fmt.Sprintf("%s-%d", w.group, w.started), ended: make(chan error, 1)}
	hub := rest.CopyConfig(server)
	hub.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(q *http.Request) (*http.Response, error) {
			if r.asleep.Load() {
				return nil, errors.New("asleep")
			}
			if q.Method == http.MethodPut {
				r.writes.Add(1)
				r.wrote.Store(time.Now().UnixNano())
			}
			return next.RoundTrip(q)
		})
	})
	var err error
	r.Member, err = shard.New(shard.Options{Group: group, Topic: "https://git.example/fleet.git", Options: lease.Options{
		Hub: hub, Identity: r.name, Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)).With("replica", r.name), Now: r.now,
		Duration: w.duration, RenewDeadline: w.duration * 3 / 4, RetryPeriod: 100 * time.Millisecond,
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	r.Share(clusters)
	ctx, stop := context.WithCancel(w.t.Context())
	r.stop = stop
	var running sync.WaitGroup
	running.Go(func() { r.ended <- r.Run(ctx, r.works) })
	w.t.Cleanup(func() {
		stop()
		running.Wait() // what gives its Lease back may still log
	})
	return r
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// works is what a controller does: it begins with what it is granted, and takes a
// moment to put down what it is not granted any more.
func (r *replica) works(ctx context.Context) error {
	mine := map[string]bool{}
	var leaving sync.WaitGroup
	defer leaving.Wait()
	for {
		granted := r.Granted()
		for c := range granted {
			if !mine[c] {
				mine[c] = true
				r.work.begins(r, c)
			}
		}
		for c := range mine {
			if !granted[c] {
				delete(mine, c)
				leaving.Go(func() {
					<-time.After(rand.N(20 * time.Millisecond))
					r.work.ends(r, c)
					r.Done(c)
				})
			}
		}
		select {
		case <-ctx.Done():
			for c := range mine {
				r.work.ends(r, c)
			}
			return nil
		case <-r.Changed():
		}
	}
}

// begins checks that no other replica can write to the cluster.
func (w *work) begins(r *replica, cluster string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if other := w.on[cluster]; other != nil && other.Gate().Check() == nil {
		w.t.Errorf("%s begins with %s, and %s still works on it", r.name, cluster, other.name)
	}
	w.on[cluster] = r
	w.took++
}

// begun is how often a cluster was begun with.
func (w *work) begun() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.took
}

func (w *work) ends(r *replica, cluster string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.on[cluster] == r {
		delete(w.on, cluster)
	}
}

// shared waits until the given replicas work on all clusters as [shard.Assign]
// says.
func (w *work) shared(clusters []string, among ...*replica) {
	w.t.Helper()
	var identities []string
	for _, r := range among {
		identities = append(identities, r.name)
	}
	want := holders(w.t, shard.Assign(identities, clusters))
	var last string
	err := wait.PollUntilContextTimeout(w.t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		last = ""
		for _, c := range clusters {
			switch r := w.on[c]; {
			case r == nil:
				last = "no replica works on " + c
			case r.name != want[c]:
				last = fmt.Sprintf("%s works on %s, and not %s", r.name, c, want[c])
			}
		}
		return last == "", nil
	})
	if err != nil {
		w.t.Fatalf("not within %s: %s", patience, last)
	}
}

// Replicas share clusters as the hashing says, when they come, go and die. What
// one had that died is taken over after its lease's duration.
func TestShares(t *testing.T) {
	w := newWork(t)
	clusters := names("shares", 30)
	a := w.begin(clusters, w.group)
	w.shared(clusters, a)
	b := w.begin(clusters, w.group)
	c := w.begin(clusters, w.group)
	w.shared(clusters, a, b, c)
	if s := a.Stats(); s.Replicas != 3 || s.Clusters != 30 || s.Held == 0 || s.Held > shard.Bound(30, 3) {
		t.Errorf("a says %+v", s)
	}

	t.Log("one ends: what it had is free at once")
	c.stop()
	if err := <-c.ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	w.shared(clusters, a, b)
	if s := a.Stats(); s.TakenOver != 0 {
		t.Errorf("a took over from the dead: %+v", s)
	}

	t.Log("one dies: what it had is free when its lease has run out")
	b.asleep.Store(true)
	w.shared(clusters, a)
	if after := time.Since(time.Unix(0, b.wrote.Load())); after < duration {
		t.Errorf("it was taken over %s after it last renewed its Lease of %s", after, duration)
	}
	if s := a.Stats(); s.TakenOver == 0 || s.Replicas != 1 {
		t.Errorf("a says %+v", s)
	}
	b.asleep.Store(false)
	if err := <-b.ended; !errors.Is(err, lease.ErrLost) {
		t.Errorf("the dead one woke and ended with %v, want ErrLost", err)
	}

	t.Log("git loses clusters, and gets others")
	clusters = append(names("other", 5), clusters[:10]...)
	a.Share(clusters)
	w.shared(clusters, a)
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return a.Stats().Held == len(clusters), nil
	}); err != nil {
		t.Errorf("it has %d clusters, want %d", a.Stats().Held, len(clusters))
	}
}

// Who may take over components of a cluster is for the Leases to say.
func TestConfirm(t *testing.T) {
	w := newWork(t)
	a := w.begin([]string{"mine"}, w.group)
	w.shared([]string{"mine"}, a)
	if err := a.Confirm(t.Context(), "mine"); err != nil {
		t.Errorf("its own: %v", err)
	}
	if err := a.Confirm(t.Context(), "other"); !errors.Is(err, records.ErrDeposed) || !strings.Contains(err.Error(), "does not list cluster other") {
		t.Errorf("another: %v", err)
	}
	c, err := kubernetes.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CoordinationV1().Leases(v1alpha1.Namespace).Delete(t.Context(), lease.Name(a.name), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := a.Confirm(t.Context(), "mine"); !errors.Is(err, records.ErrDeposed) || !errors.Is(err, lease.ErrLost) {
		t.Errorf("after its Lease was deleted: %v", err)
	}
}

// Replicas that disagree about who should have a cluster, such as two groups that
// both have it, never share it: the first keeps it until it ends.
func TestGroupsDisagree(t *testing.T) {
	w := newWork(t)
	both := []string{"disputed"}
	a := w.begin(both, w.group+"-a")
	w.shared(both, a)
	b := w.begin(both, w.group+"-b")
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return b.Stats().Replicas == 1, nil
	}); err != nil {
		t.Fatalf("b says %+v", b.Stats())
	}
	a.stop()
	if err := <-a.ended; err != nil {
		t.Errorf("a ended with %v", err)
	}
	w.shared(both, b)
}

// Replicas come, go, sleep and wake, all at once: no cluster ever has two writers,
// and when it is over all have one.
func TestOneWriter(t *testing.T) {
	w := newWork(t)
	w.duration = 2 * time.Second // so that some that sleep lose their Lease
	clusters := names("one", 40)
	chance := rand.New(rand.NewPCG(7, 7))
	var alive, asleep []*replica
	// A machine that is busy with other work gets less far in each of the steps.
	for step, began := 0, time.Now(); step < 40 || w.begun() < 2*len(clusters) && time.Since(began) < patience; step++ {
		switch n := chance.IntN(4); {
		case n == 0 && len(alive) > 1:
			r := alive[chance.IntN(len(alive))]
			alive = slices.DeleteFunc(alive, func(o *replica) bool { return o == r })
			r.stop()
		case n == 1 && len(alive) > 1:
			r := alive[chance.IntN(len(alive))]
			alive = slices.DeleteFunc(alive, func(o *replica) bool { return o == r })
			r.asleep.Store(true)
			asleep = append(asleep, r)
		case n == 2 && len(asleep) > 0:
			asleep[0].asleep.Store(false) // it may have lost its Lease, or not
			alive, asleep = append(alive, asleep[0]), asleep[1:]
		case len(alive) < 5:
			alive = append(alive, w.begin(clusters, w.group))
		}
		select {
		case <-time.After(time.Duration(chance.Int64N(int64(200 * time.Millisecond)))):
		case <-t.Context().Done():
		}
	}
	for _, r := range asleep {
		r.stop() // it never wakes
	}
	w.duration = duration
	last := w.begin(clusters, w.group)
	alive = slices.DeleteFunc(alive, func(r *replica) bool {
		r.stop()
		if err := <-r.ended; err != nil && !errors.Is(err, lease.ErrLost) { // it woke too late
			t.Errorf("%s ended with %v", r.name, err)
		}
		return true
	})
	w.shared(clusters, append(alive, last)...)
	if n := w.begun(); n < 2*len(clusters) {
		t.Errorf("%d clusters changed hands: nothing was tested", n)
	}
}

// What one replica is told, the others hear; the one that was told does not hear itself,
// and however often it is told, its Lease is written once a second at most.
func TestCall(t *testing.T) {
	w := newWork(t)
	clusters := names("call", 6)
	a, b, c := w.begin(clusters, w.group), w.begin(clusters, w.group), w.begin(clusters, w.group)
	stranger := w.begin(names("none", 1), w.group+"-other")
	w.shared(clusters, a, b, c)
	for _, r := range []*replica{a, b, c, stranger} {
		select {
		case <-r.Called():
			t.Errorf("%s heard a call, but no replica had called", r.name)
		default:
		}
	}
	called := time.Now()
	a.Call()
	for _, r := range []*replica{b, c} {
		select {
		case <-r.Called():
			t.Logf("%s heard the call after %s", r.name, time.Since(called))
		case <-time.After(patience):
			t.Fatalf("%s does not hear the call", r.name)
		}
	}

	// A busy machine takes longer: the bounds are a rate, and grow with the time.
	began, before, heard := time.Now(), a.writes.Load(), 0
	for time.Since(began) < 3*time.Second || heard < 2 {
		if time.Since(began) > patience {
			t.Fatalf("in a flood of %s it heard %d calls", patience, heard)
		}
		a.Call()
		select {
		case <-b.Called():
			heard++
		case <-time.After(time.Millisecond):
		}
	}
	flood := time.Since(began)
	renewals, calls := int64(flood/(100*time.Millisecond))+2, int64(flood/time.Second)+1
	if wrote := a.writes.Load() - before; wrote > renewals+calls || int64(heard) > calls {
		t.Errorf("a flood of %s was %d writes, %d of them renewals at most, and was heard %d times, %d at most", flood, wrote, renewals, heard, calls)
	}
	for _, r := range []*replica{a, stranger} {
		select {
		case <-r.Called():
			t.Errorf("%s heard a call that was not for it", r.name)
		default:
		}
	}
}
