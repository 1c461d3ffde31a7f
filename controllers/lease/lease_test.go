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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/lease"
)

// server is a real API server; nil in -short runs.
var server *rest.Config

func TestMain(m *testing.M) {
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { server = config }))
}

const patience = 30 * time.Second

// candidate is a process that wants the lease. Its term is as long as its
// clock says.
type candidate struct {
	*lease.Lease

	name  string
	sleep atomic.Bool // its renewals reach nobody, as while it is stopped
	skew  atomic.Int64
	stop  context.CancelFunc
	ended chan error
	works chan struct{} // closed when it works
}

func (c *candidate) now() time.Time { return time.Now().Add(time.Duration(c.skew.Load())) }

// run starts a candidate for the lease with the test's name.
func run(t *testing.T, name string, work func(context.Context) error) *candidate {
	t.Helper()
	c := &candidate{name: name, ended: make(chan error, 1), works: make(chan struct{})}
	hub := rest.CopyConfig(server)
	hub.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if c.sleep.Load() {
				return nil, errors.New("asleep")
			}
			return next.RoundTrip(r)
		})
	})
	var err error
	c.Lease, err = lease.New(lease.Options{
		Hub: hub, Name: leaseName(t), Identity: name, Log: slog.New(slog.DiscardHandler), Now: c.now,
		Duration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	if work == nil {
		work = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	}
	go func() {
		c.ended <- c.Run(ctx, func(ctx context.Context) error {
			close(c.works)
			return work(ctx)
		})
	}()
	t.Cleanup(stop)
	return c
}

func leaseName(t *testing.T) string { return strings.ToLower(t.Name()) }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (c *candidate) leads(t *testing.T) {
	t.Helper()
	select {
	case <-c.works:
	case <-time.After(patience):
		t.Fatalf("%s does not lead", c.name)
	}
}

func (c *candidate) ends(t *testing.T) error {
	t.Helper()
	select {
	case err := <-c.ended:
		return err
	case <-time.After(patience):
		t.Fatalf("%s does not end", c.name)
		return nil
	}
}

// writes tries to write through the candidate's gate.
func (c *candidate) writes(t *testing.T) error {
	t.Helper()
	config := rest.CopyConfig(server)
	config.Wrap(c.Gate().Wrap)
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

func holder(t *testing.T) string {
	t.Helper()
	l, err := client(t, server).CoordinationV1().Leases(v1alpha1.Namespace).Get(t.Context(), leaseName(t), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ptr.Deref(l.Spec.HolderIdentity, "")
}

// A leader that falls asleep is succeeded after the lease's duration; when it
// wakes it writes nothing, and ends with ErrLost.
func TestTakeOver(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	first := run(t, "first", nil)
	first.leads(t)
	second := run(t, "second", nil)
	if err := first.writes(t); err != nil {
		t.Errorf("the leader writes: %v", err)
	}
	if err := second.writes(t); !errors.Is(err, lease.ErrLost) {
		t.Errorf("who waits wrote: %v", err)
	}
	if err := first.Confirm(t.Context()); err != nil {
		t.Errorf("confirm: %v", err)
	}
	if err := second.Confirm(t.Context()); !errors.Is(err, lease.ErrLost) || !errors.Is(err, applier.ErrDeposed) || !strings.Contains(err.Error(), `"first" holds Lease keelson-system/testtakeover`) {
		t.Errorf("confirm: got %v", err)
	}

	first.sleep.Store(true)
	second.leads(t)
	if err := first.writes(t); !errors.Is(err, lease.ErrLost) {
		t.Errorf("the old leader wrote: %v", err)
	}
	if err := second.writes(t); err != nil {
		t.Errorf("the new leader writes: %v", err)
	}
	first.sleep.Store(false)
	if err := first.ends(t); !errors.Is(err, lease.ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
	if err := first.Confirm(t.Context()); !errors.Is(err, lease.ErrLost) {
		t.Errorf("confirm: got %v, want ErrLost", err)
	}
	if got := holder(t); got != "second" {
		t.Errorf("%q holds the lease", got)
	}
}

// The clock of a leader says that its term is over, before any renewal has
// failed: that is how a process wakes up.
func TestGateBeforeElection(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	c := run(t, "only", nil)
	c.leads(t)
	c.sleep.Store(true)
	c.skew.Store(int64(2 * time.Second))
	if err := c.writes(t); !errors.Is(err, lease.ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
	if c.Holds() {
		t.Error("it still holds the lease, it says")
	}
	if err := c.Confirm(t.Context()); err == nil || errors.Is(err, lease.ErrLost) {
		t.Errorf("not knowing is not losing: got %v", err)
	}
}

// Who sees another holder stops at once, and not only at the renew deadline.
func TestUsurped(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	c := run(t, "robbed", nil)
	c.leads(t)
	leases := client(t, server).CoordinationV1().Leases(v1alpha1.Namespace)
	usurp := func(ctx context.Context) (bool, error) {
		l, err := leases.Get(ctx, leaseName(t), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		l.Spec.HolderIdentity = new("usurper")
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return false, nil
		}
		return true, err
	}
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, patience, true, usurp); err != nil {
		t.Fatal(err)
	}
	if err := c.ends(t); !errors.Is(err, lease.ErrLost) || !strings.Contains(err.Error(), `"usurper" holds it`) {
		t.Errorf("got %v", err)
	}
	if err := c.writes(t); !errors.Is(err, lease.ErrLost) {
		t.Errorf("it wrote: %v", err)
	}
	if got := holder(t); got != "usurper" {
		t.Errorf("%q holds the lease", got)
	}
}

// On an ordinary end the work finishes under the lease, which is free at once
// then.
func TestResign(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	finish := make(chan struct{})
	c := run(t, "retiring", func(ctx context.Context) error {
		<-ctx.Done()
		<-finish
		return nil
	})
	c.leads(t)
	c.stop()
	if err := c.writes(t); err != nil {
		t.Errorf("it finishes what it has begun: %v", err)
	}
	if got := holder(t); got != "retiring" {
		t.Errorf("%q holds the lease while the work is not done", got)
	}
	close(finish)
	if err := c.ends(t); err != nil {
		t.Errorf("got %v, want an ordinary end", err)
	}
	if got := holder(t); got != "" {
		t.Errorf("%q still holds the lease", got)
	}
	if err := c.writes(t); !errors.Is(err, lease.ErrLost) {
		t.Errorf("it wrote afterwards: %v", err)
	}
}

// What the work itself fails with is passed on, and the lease is free.
func TestWorkFails(t *testing.T) {
	apiservertest.Need(t, server)
	t.Parallel()
	boom := errors.New("boom")
	if err := run(t, "failing", func(context.Context) error { return boom }).ends(t); !errors.Is(err, boom) {
		t.Errorf("got %v, want the work's", err)
	}
	if got := holder(t); got != "" {
		t.Errorf("%q still holds the lease", got)
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
