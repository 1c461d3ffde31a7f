// Package lease lets one of several processes work, by a Lease in the hub.
//
// Three things keep a process that lost the Lease from writing, each where the
// one before can't reach. The election stops the work when a renewal fails or
// another holder is seen. The [Gate] refuses every write that would leave after
// the renew deadline, by the process's own clock, also when the process slept
// through the end of its term. [Lease.Confirm] asks the hub, before records are
// taken over. What was on its way meanwhile is for the records' epochs to
// refuse.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
)

// ErrLost says that this process does not, or not surely, hold the Lease.
var ErrLost = errors.New("this process does not hold the lease")

// Identity returns a name for this process that no other ever had:
// HOSTNAME_UUID, as Kubernetes' own controllers make theirs.
func Identity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("make a name for this process: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// Options are the settings of a [Lease]; all are required but Name.
type Options struct {
	// Hub is the cluster that holds the Lease. Its connection must not go through
	// the Lease's own gate.
	Hub *rest.Config
	// Name of the Lease in the namespace [v1alpha1.Namespace]; empty:
	// [v1alpha1.LeaseName].
	Name string
	// Identity of this process, [Identity].
	Identity string
	// Duration is how long others wait after the last renewal that they saw, in
	// whole seconds. RenewDeadline, shorter, is how long the holder works without
	// a renewal. RetryPeriod lies between two tries.
	Duration, RenewDeadline, RetryPeriod time.Duration
	Log                                  *slog.Logger
	Now                                  func() time.Time
}

// Check says which of the durations can't be.
func (o *Options) Check() error {
	switch {
	case o.Duration < time.Second || o.Duration%time.Second != 0:
		return fmt.Errorf("the lease duration takes whole seconds, at least 1s, and not %s", o.Duration)
	case o.RetryPeriod <= 0:
		return fmt.Errorf("the retry period takes more than 0s, and not %s", o.RetryPeriod)
	case o.RenewDeadline >= o.Duration:
		return fmt.Errorf("the renew deadline (%s) must be shorter than the lease duration (%s)", o.RenewDeadline, o.Duration)
	case float64(o.RenewDeadline) <= leaderelection.JitterFactor*float64(o.RetryPeriod):
		return fmt.Errorf("the renew deadline (%s) must be longer than the retry period (%s) and a fifth of it", o.RenewDeadline, o.RetryPeriod)
	}
	return nil
}

// Lease is a term of office that this process runs for, once.
type Lease struct {
	options Options
	client  kubernetes.Interface
	gate    *Gate
	lock    *lock
	// lost ends the work; set while there is some.
	lost atomic.Pointer[context.CancelCauseFunc]
}

// New prepares a Lease; it makes no call.
func New(o Options) (*Lease, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = v1alpha1.LeaseName
	}
	hub := rest.CopyConfig(o.Hub)
	hub.Timeout = o.RenewDeadline / 2 // so that a request that hangs leaves time for another
	client, err := kubernetes.NewForConfig(hub)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	l := &Lease{options: o, client: client, gate: newGate(o.Now, o.RenewDeadline)}
	l.lock = &lock{lease: l, Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: o.Name},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
	}}
	return l, nil
}

// Gate is what connections are to be wrapped with: [Gate.Wrap].
func (l *Lease) Gate() *Gate { return l.gate }

// Holds says whether this process surely holds the Lease now.
func (l *Lease) Holds() bool { return l.gate.Check() == nil }

// String names the Lease for people.
func (l *Lease) String() string {
	return fmt.Sprintf("Lease %s/%s in the hub", v1alpha1.Namespace, l.options.Name)
}

// Run waits for the Lease and then works. The work's context ends with ctx, or
// with [ErrLost] as its cause when the Lease is lost; the work must then return.
//
// When ctx ends the Lease is kept until the work has returned, and then given
// back, so that another process takes over at once. The error is ErrLost, or the
// work's; nil when ctx ended first.
func (l *Lease) Run(ctx context.Context, work func(context.Context) error) error {
	working, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	electing, resign := context.WithCancel(context.WithoutCancel(ctx))
	leading := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l.lock, Name: l.options.Name, ReleaseOnCancel: true,
		LeaseDuration: l.options.Duration, RenewDeadline: l.options.RenewDeadline, RetryPeriod: l.options.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leading) },
			OnStoppedLeading: func() { l.lose("it could not be renewed") },
			OnNewLeader:      func(who string) { l.options.Log.Info("leader", "identity", who, "us", who == l.options.Identity) },
		},
	})
	if err != nil {
		resign()
		return fmt.Errorf("%s: %w", l, err)
	}
	l.lost.Store(&lose)
	elected := make(chan struct{})
	go func() {
		defer close(elected)
		elector.Run(electing)
	}()
	defer func() {
		l.lost.Store(nil) // what ends now is not a loss
		l.lock.resigned.Store(true)
		resign()
		<-elected
		l.gate.close()
	}()
	select {
	case <-leading:
	case <-working.Done():
		return nil
	}
	err = work(working)
	if cause := context.Cause(working); errors.Is(cause, ErrLost) {
		return cause
	}
	return err
}

// lose stops the work at once.
func (l *Lease) lose(why string) {
	lose := l.lost.Load()
	if lose == nil {
		return
	}
	l.gate.close()
	l.options.Log.Error("the lease is lost: nothing more is written", "lease", l.options.Name, "because", why)
	(*lose)(fmt.Errorf("%w any more: %s", ErrLost, why))
}

// Writer is this process as the writer of records.
func (l *Lease) Writer() applier.Writer {
	return applier.Writer{Identity: l.options.Identity, Confirm: l.Confirm}
}

// Confirm asks the hub whether this process holds the Lease. The error is
// [ErrLost] and [applier.ErrDeposed] when it does not, or when its term may have
// ended while it asked; any other means that it could not be learned.
func (l *Lease) Confirm(ctx context.Context) error {
	err := l.confirm(ctx)
	if errors.Is(err, ErrLost) {
		return fmt.Errorf("%w: %w", applier.ErrDeposed, err)
	}
	return err
}

func (l *Lease) confirm(ctx context.Context) error {
	lease, err := l.client.CoordinationV1().Leases(v1alpha1.Namespace).Get(ctx, l.options.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: there is no %s", ErrLost, l)
	case err != nil:
		return fmt.Errorf("read %s: %w", l, err)
	}
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != l.options.Identity {
		return fmt.Errorf("%w: %q holds %s", ErrLost, holder, l)
	}
	return l.gate.Check()
}

// lock is the Lease as the election sees it. It tells the gate of renewals.
type lock struct {
	resourcelock.Interface

	lease *Lease
	// leads since the first renewal.
	leads atomic.Bool
	// resigned: the work has ended, so that the Lease may be given back.
	resigned atomic.Bool
}

// Get tells of another holder at once; the election would go on trying until the
// renew deadline.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // the election asks what kind of error it is
	}
	if who := record.HolderIdentity; l.leads.Load() && who != l.Identity() {
		l.lease.lose(fmt.Sprintf("%q holds it", who))
	}
	return record, raw, nil
}

// Create creates the Lease, and in a new hub its namespace.
func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.renew(func() error {
		err := l.Interface.Create(ctx, r)
		if !apierrors.IsNotFound(err) {
			return err //nolint:wrapcheck // as in Get
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}
		if _, err := l.lease.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err //nolint:wrapcheck // as in Get
		}
		return l.Interface.Create(ctx, r)
	})
}

// Update renews the Lease, takes it over, or gives it back. What still works
// keeps it: the election would give it back also when renewing failed.
func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == l.Identity() {
		return l.renew(func() error { return l.Interface.Update(ctx, r) })
	}
	if !l.resigned.Load() {
		return errors.New("the work has not ended, so the lease is not given back")
	}
	l.lease.gate.close()
	return l.Interface.Update(ctx, r) //nolint:wrapcheck // as in Get
}

func (l *lock) renew(write func() error) error {
	begun := l.lease.options.Now()
	if err := write(); err != nil {
		return err
	}
	l.leads.Store(true)
	l.lease.gate.renewed(begun)
	return nil
}
