package lease_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/lease"
)

// server is a real API server; nil in -short runs.
var server *rest.Config

func TestMain(m *testing.M) {
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { server = config }))
}

const (
	// patience ends a test that would never end. It is not a bound.
	patience = 3 * time.Minute
	// duration and renewDeadline are long enough for a machine that is busy with other
	// work: a test must not lose its Lease by chance.
	duration, renewDeadline = 15 * time.Second, 10 * time.Second
)

// process has a Lease. Its term is as long as its clock says.
type process struct {
	*lease.Lease

	name  string
	sleep atomic.Bool // its renewals do not reach the API server, as if the process was stopped
	skew  atomic.Int64
	stop  context.CancelFunc
	ended chan error
	works chan struct{} // closed when it works
}

func (p *process) now() time.Time { return time.Now().Add(time.Duration(p.skew.Load())) }

// run starts a process with the test's name.
func run(t *testing.T, work func(context.Context) error) *process {
	t.Helper()
	p := &process{name: strings.ToLower(t.Name()), ended: make(chan error, 1), works: make(chan struct{})}
	hub := rest.CopyConfig(server)
	hub.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if p.sleep.Load() {
				return nil, errors.New("asleep")
			}
			return next.RoundTrip(r)
		})
	})
	var err error
	p.Lease, err = lease.New(lease.Options{
		Hub: hub, Identity: p.name, Labels: map[string]string{"test": p.name}, Log: slog.New(slog.DiscardHandler), Now: p.now,
		Duration: duration, RenewDeadline: renewDeadline, RetryPeriod: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	p.stop = stop
	if work == nil {
		work = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	}
	go func() {
		p.ended <- p.Run(ctx, func(ctx context.Context) error {
			close(p.works)
			return work(ctx)
		})
	}()
	t.Cleanup(stop)
	return p
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (p *process) started(t *testing.T) {
	t.Helper()
	select {
	case <-p.works:
	case <-time.After(patience):
		t.Fatalf("%s does not work", p.name)
	}
}

func (p *process) ends(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(patience):
		t.Fatalf("%s does not end", p.name)
		return nil
	}
}

// writes tries to write through the process's gate.
func (p *process) writes(t *testing.T) error {
	t.Helper()
	config := rest.CopyConfig(server)
	config.Wrap(p.Gate().Wrap)
	_, err := client(t, config).CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "written-"}}, metav1.CreateOptions{})
	return err
}

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func leases(t *testing.T) coordinationclient.LeaseInterface {
	t.Helper()
	return client(t, server).CoordinationV1().Leases(v1alpha1.Namespace)
}

// hub is the process's Lease there; nil: there is none.
func (p *process) hub(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	l, err := leases(t).Get(t.Context(), p.Name(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A process writes while it renews its Lease, which says who it is.
func TestWorks(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	p := run(t, nil)
	p.started(t)
	first := p.hub(t)
	if got := *first.Spec.HolderIdentity; got != "testworks" || *first.Spec.LeaseDurationSeconds != 15 || first.Labels["test"] != "testworks" {
		t.Errorf("the Lease is %v", first)
	}
	if err := p.writes(t); err != nil {
		t.Errorf("the holder writes: %v", err)
	}
	if err := p.Renew(t.Context(), map[string]string{"said": "now"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Confirm(t.Context()); err != nil {
		t.Errorf("confirm: %v", err)
	}
	said := p.hub(t)
	if said.Annotations["said"] != "now" {
		t.Errorf("the Lease is %v", said)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		l := p.hub(t) //nolint:contextcheck // it has the test's
		return l.Spec.RenewTime.After(said.Spec.RenewTime.Time) && l.Annotations["said"] == "now", nil
	})
	if err != nil {
		t.Errorf("it is not renewed by itself, or not with what was said: %v", err)
	}
}

// Who finds that a Lease ran out deletes it. The process, when it wakes, can't
// renew it nor make it anew, writes nothing, and ends with ErrLost.
func TestBuried(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	p := run(t, nil)
	p.started(t)
	p.sleep.Store(true)
	if err := leases(t).Delete(t.Context(), p.Name(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.sleep.Store(false)
	if err := p.ends(t); !errors.Is(err, lease.ErrLost) || !strings.Contains(err.Error(), "another client deleted it") {
		t.Errorf("got %v, want ErrLost", err)
	}
	if err := p.writes(t); !errors.Is(err, lease.ErrLost) {
		t.Errorf("it wrote: %v", err)
	}
	if _, err := p.Confirm(t.Context()); !errors.Is(err, lease.ErrLost) {
		t.Errorf("confirm: got %v, want ErrLost", err)
	}
	if l := p.hub(t); l != nil {
		t.Errorf("it made its Lease anew: %v", l)
	}
}

// If the hub does not answer, writes stop after the renew deadline: another process may have
// deleted the Lease. Writes continue when the hub answers and the Lease still exists.
func TestHubIsSilent(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	p := run(t, nil)
	p.started(t)
	holds := func(want bool) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
			return p.Holds() == want, nil
		}); err != nil {
			t.Fatalf("it holds its Lease: %t", p.Holds())
		}
	}
	p.sleep.Store(true)
	holds(false)
	if err := p.writes(t); !errors.Is(err, lease.ErrLost) || !strings.Contains(err.Error(), "last renewed") {
		t.Errorf("it wrote: %v", err)
	}
	p.sleep.Store(false)
	holds(true)
	if err := p.writes(t); err != nil {
		t.Errorf("it does not go on: %v", err)
	}
}

// The clock of a process says that its term is over, before any renewal has
// failed: that is how it wakes up.
func TestGateBeforeRenewal(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	p := run(t, nil)
	p.started(t)
	p.sleep.Store(true)
	p.skew.Store(int64(renewDeadline))
	if err := p.writes(t); !errors.Is(err, lease.ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
	if p.Holds() {
		t.Error("it still holds the lease, it says")
	}
	if _, err := p.Confirm(t.Context()); err == nil || errors.Is(err, lease.ErrLost) {
		t.Errorf("not knowing is not losing: got %v", err)
	}
}

// Who touches the Lease otherwise does no harm; who writes another holder into it
// ends the work.
func TestTouched(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	p := run(t, nil)
	p.started(t)
	change := func(how func(*coordinationv1.Lease)) {
		t.Helper()
		err := retry.RetryOnConflict(wait.Backoff{Steps: 100, Duration: time.Millisecond}, func() error {
			l := p.hub(t)
			how(l)
			_, err := leases(t).Update(t.Context(), l, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	change(func(l *coordinationv1.Lease) { l.Annotations = map[string]string{"example": "other client"} })
	if err := p.Renew(t.Context(), nil); err != nil {
		t.Errorf("it does not get over an annotation: %v", err)
	}
	change(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("usurper") })
	if err := p.ends(t); !errors.Is(err, lease.ErrLost) || !strings.Contains(err.Error(), `"usurper" holds it`) {
		t.Errorf("got %v", err)
	}
	if err := p.writes(t); !errors.Is(err, lease.ErrLost) {
		t.Errorf("it wrote: %v", err)
	}
}

// On an ordinary end the work finishes under the lease, which is gone at once
// then.
func TestGivesBack(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	finish := make(chan struct{})
	p := run(t, func(ctx context.Context) error {
		<-ctx.Done()
		<-finish
		return nil
	})
	p.started(t)
	p.stop()
	if err := p.writes(t); err != nil {
		t.Errorf("it finishes what it has begun: %v", err)
	}
	if p.hub(t) == nil {
		t.Error("the lease is gone while the work is not done")
	}
	close(finish)
	if err := p.ends(t); err != nil {
		t.Errorf("got %v, want an ordinary end", err)
	}
	if l := p.hub(t); l != nil {
		t.Errorf("it is still there: %v", l)
	}
	if err := p.writes(t); !errors.Is(err, lease.ErrLost) {
		t.Errorf("it wrote afterwards: %v", err)
	}
}

// What the work itself fails with is passed on, and the lease is gone.
func TestWorkFails(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	boom := errors.New("boom")
	p := run(t, func(context.Context) error { return boom })
	if err := p.ends(t); !errors.Is(err, boom) {
		t.Errorf("got %v, want the work's", err)
	}
	if l := p.hub(t); l != nil {
		t.Errorf("it is still there: %v", l)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why                    string
		duration, renew, retry time.Duration
		want                   string
	}{
		"Defaults":   {why: "Kubernetes' own.", duration: 15 * time.Second, renew: 10 * time.Second, retry: 2 * time.Second},
		"Fraction":   {why: "A Lease holds whole seconds: others would wait for less.", duration: 2900 * time.Millisecond, renew: 2500 * time.Millisecond, retry: time.Second, want: "whole seconds"},
		"RenewLate":  {why: "Another could lead already.", duration: 10 * time.Second, renew: 10 * time.Second, retry: time.Second, want: "renew deadline (10s) must be shorter"},
		"RetryLate":  {why: "There would be no second try.", duration: 10 * time.Second, renew: 5 * time.Second, retry: 5 * time.Second, want: "renew deadline (5s) must be longer"},
		"RetryNever": {why: "It would ask without a pause.", duration: 10 * time.Second, renew: 5 * time.Second, want: "retry period"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := lease.Options{Duration: tc.duration, RenewDeadline: tc.renew, RetryPeriod: tc.retry}
			err := o.Check()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s got %v, want %q", tc.why, err, tc.want)
			}
		})
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	one, err := lease.Identity()
	if err != nil {
		t.Fatal(err)
	}
	two, err := lease.Identity()
	if err != nil || one == two || !strings.Contains(one, "_") {
		t.Errorf("got %q and %q (%v)", one, two, err)
	}
}
