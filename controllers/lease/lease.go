// Package lease lets a process write as long as it renews a Lease of its own in
// the hub.
//
// Nobody else writes that Lease, and it is made once: whoever finds that it ran
// out deletes it, which the process can't undo. While it is there, nobody else has
// what it lists; so a process that could not renew it in time waits, and goes on
// when it can.
//
// Three things keep a process without a Lease from writing, each where the one
// before can't reach. Renewing it fails, and ends the work. The [Gate] refuses every
// write that would leave after the renew deadline, by the process's own clock, also
// when the process slept through it. [Lease.Confirm] asks the hub, before records
// are taken over. What was on its way meanwhile is for the records' epochs to
// refuse.
package lease

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// ErrLost says that this process does not, or not surely, hold its Lease.
var ErrLost = errors.New("this process does not hold its lease")

// jitter is how much longer than the retry period a wait may be, as a part of it,
// so that replicas that started together don't go on together.
const jitter = 0.2

// Identity returns a name for this process that no other ever had:
// HOSTNAME_UUID, as Kubernetes' own controllers make theirs.
func Identity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("make a name for this process: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// Options are the settings of a [Lease]; all are required but Labels.
type Options struct {
	// Hub is the cluster that holds the Lease. Its connection must not go through
	// the Lease's own gate.
	Hub *rest.Config
	// Identity of this process, [Identity].
	Identity string
	// Labels of the Lease.
	Labels map[string]string
	// Duration is how long others wait after the last renewal that they saw, in
	// whole seconds. RenewDeadline, shorter, is how long the holder writes without
	// a renewal. RetryPeriod lies between two renewals.
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
	case float64(o.RenewDeadline) <= (1+jitter)*float64(o.RetryPeriod):
		return fmt.Errorf("the renew deadline (%s) must be longer than the retry period (%s) and a fifth of it", o.RenewDeadline, o.RetryPeriod)
	}
	return nil
}

// Lease is this process's own. It is safe for concurrent use.
type Lease struct {
	options Options
	name    string
	client  kubernetes.Interface
	gate    *Gate

	mu sync.Mutex // held while the Lease is written
	// current is the Lease as the API server last answered; nil before it was made.
	current     *coordinationv1.Lease
	annotations map[string]string // as they should be
	lost        error
	lose        context.CancelCauseFunc
}

// Name of the Lease of a process: [v1alpha1.LeasePrefix] and ten digits of the
// SHA-256 of its identity.
func Name(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return v1alpha1.LeasePrefix + hex.EncodeToString(sum[:5])
}

// New prepares a Lease; it makes no call.
func New(o Options) (*Lease, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	hub := rest.CopyConfig(o.Hub)
	hub.Timeout = o.RenewDeadline / 2 // so that a request that hangs leaves time for another
	client, err := kubernetes.NewForConfig(hub)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return &Lease{options: o, name: Name(o.Identity), client: client, gate: newGate(o.Now, o.RenewDeadline)}, nil
}

// Gate is what connections are to be wrapped with: [Gate.Wrap].
func (l *Lease) Gate() *Gate { return l.gate }

// Holds says whether this process surely holds the Lease now.
func (l *Lease) Holds() bool { return l.gate.Check() == nil }

// Name of the Lease in the namespace [v1alpha1.Namespace].
func (l *Lease) Name() string { return l.name }

// String names the Lease for people.
func (l *Lease) String() string {
	return fmt.Sprintf("Lease %s/%s in the hub", v1alpha1.Namespace, l.name)
}

// Client reads and deletes Leases; its requests don't hang.
func (l *Lease) Client() coordinationclient.LeaseInterface {
	return l.client.CoordinationV1().Leases(v1alpha1.Namespace)
}

// Run makes the Lease, trying until ctx ends, and then works. The work's context
// ends with ctx, or with [ErrLost] as its cause when the Lease is lost; the work
// must then return. A Lease runs once.
//
// When ctx ends the Lease is kept until the work has returned, and then deleted,
// so that others go on at once. The error is ErrLost, or the work's; nil when ctx
// ended first.
func (l *Lease) Run(ctx context.Context, work func(context.Context) error) error {
	working, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	l.mu.Lock()
	l.lose = lose
	l.mu.Unlock()
	if !l.acquire(ctx) {
		return nil
	}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewals sync.WaitGroup
	renewals.Go(func() { l.renewals(renewing) })
	err := work(working)
	stop()
	renewals.Wait()
	l.gate.close()
	if cause := context.Cause(working); errors.Is(cause, ErrLost) {
		return cause
	}
	if gone := l.giveBack(context.WithoutCancel(ctx)); gone != nil {
		l.options.Log.Warn("the lease was not given back: others wait until it runs out", "lease", l.name, "error", gone)
	}
	return err
}

// acquire makes the Lease, and says whether it is there; it is not when ctx ended.
func (l *Lease) acquire(ctx context.Context) bool {
	for {
		err := l.create(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			l.options.Log.Warn("the lease can't be made; trying again", "lease", l.name, "error", err)
		}
		if !l.pause(ctx) {
			return false
		}
	}
}

func (l *Lease) pause(ctx context.Context) bool {
	timer := time.NewTimer(wait.Jitter(l.options.RetryPeriod, jitter))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// create makes the Lease, and in a new hub its namespace. An answer that was lost
// is no obstacle: the name is this process's alone.
func (l *Lease) create(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	begun := l.options.Now()
	created, err := l.Client().Create(ctx, l.next(nil, begun), metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}
		if _, err := l.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create Namespace %s: %w", v1alpha1.Namespace, err)
		}
		begun = l.options.Now()
		created, err = l.Client().Create(ctx, l.next(nil, begun), metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		if l.current, err = l.Client().Get(ctx, l.name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("read %s: %w", l, err)
		}
		return l.write(ctx)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", l, err)
	}
	l.current = created
	l.gate.renewed(begun)
	return nil
}

// next is the Lease as it is to be written at a time.
func (l *Lease) next(before *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	lease := before.DeepCopy()
	at := metav1.NewMicroTime(now)
	if lease == nil {
		lease = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: l.name, Namespace: v1alpha1.Namespace, Labels: l.options.Labels},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &l.options.Identity, AcquireTime: &at,
				LeaseDurationSeconds: new(int32(l.options.Duration / time.Second)), //nolint:gosec // seconds of a lease
			},
		}
	}
	lease.Annotations = maps.Clone(l.annotations)
	lease.Spec.RenewTime = &at
	return lease
}

// renewals renews the Lease until the context ends or it is lost.
func (l *Lease) renewals(ctx context.Context) {
	for l.pause(ctx) {
		if err := l.Renew(ctx, nil); errors.Is(err, ErrLost) {
			return
		} else if err != nil && ctx.Err() == nil {
			l.options.Log.Warn("the lease was not renewed", "lease", l.name, "error", err)
		}
	}
}

// Renew writes the Lease now, with the given annotations; nil leaves them as they
// were last given. With an error the hub may have the old ones or the new ones,
// and will have the new ones after the next renewal. The error is [ErrLost] when
// it never will.
func (l *Lease) Renew(ctx context.Context, annotations map[string]string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if annotations != nil {
		l.annotations = annotations
	}
	if l.lost != nil {
		return l.lost
	}
	if err := l.write(ctx); !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	// Somebody wrote or deleted it, or an answer of an earlier write was lost.
	current, err := l.Client().Get(ctx, l.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return l.losing("somebody deleted it")
	case err != nil:
		return fmt.Errorf("read %s: %w", l, err)
	case current.UID != l.current.UID:
		return l.losing("somebody made another in its place")
	case ptr.Deref(current.Spec.HolderIdentity, "") != l.options.Identity:
		return l.losing(fmt.Sprintf("%q holds it", ptr.Deref(current.Spec.HolderIdentity, "")))
	}
	l.current = current
	return l.write(ctx)
}

// write updates the Lease, and tells the gate. It is refused when the Lease is
// another one by now: it names the UID, so that it does not make it anew either.
func (l *Lease) write(ctx context.Context) error {
	begun := l.options.Now()
	written, err := l.Client().Update(ctx, l.next(l.current, begun), metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("renew %s: %w", l, err)
	}
	l.current = written
	l.gate.renewed(begun)
	return nil
}

// losing stops the work at once.
func (l *Lease) losing(why string) error {
	l.gate.close()
	l.lost = fmt.Errorf("%w any more: %s", ErrLost, why)
	l.options.Log.Error("the lease is lost: nothing more is written", "lease", l.name, "because", why)
	l.lose(l.lost)
	return l.lost
}

// giveBack deletes the Lease as it was last seen.
func (l *Lease) giveBack(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = fmt.Errorf("%w any more: it was given back", ErrLost)
	err := l.Client().Delete(ctx, l.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.current.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", l, err)
	}
	return nil
}

// Confirm asks the hub for the Lease of this process. The error is [ErrLost] when
// it is not there any more, or its term may have ended meanwhile; any other means
// that it could not be learned.
func (l *Lease) Confirm(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := l.Client().Get(ctx, l.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: there is no %s", ErrLost, l)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", l, err)
	}
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != l.options.Identity {
		return nil, fmt.Errorf("%w: %q holds %s", ErrLost, holder, l)
	}
	return lease, l.gate.Check()
}
