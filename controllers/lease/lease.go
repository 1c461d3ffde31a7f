// Package lease lets a process write as long as it renews its own Lease in the hub.
//
// No other process writes that Lease, and it is made once. A process that finds it expired deletes
// it, which its owner can't undo. While the Lease exists, no other process has the clusters in it.
// So a process that could not renew in time waits, and goes on after the next renewal.
// Three mechanisms stop the writes of a process without a Lease, each where the previous one is not
// enough. First, a renewal fails, and ends the work. Second, the [Gate] refuses every write after
// the renew deadline, by the local clock, also after the process was suspended. Third,
// [Lease.Confirm] asks the hub before records are taken over. Writes in flight are refused by the
// epochs of records.
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

// ErrLost means that this process does not, or not certainly, hold its Lease.
var ErrLost = errors.New("this process does not hold its lease")

// jitter is the largest random addition to the retry period, as a fraction. It keeps replicas that
// started together from renewing together.
const jitter = 0.2

// Identity returns a unique name for this process: HOSTNAME_UUID, like Kubernetes' own controllers.
func Identity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("make a name for this process: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// Options are the settings of a [Lease]; all are required except Labels.
type Options struct {
	// Hub is the cluster that holds the Lease. Its connection must not go through
	// the Lease's own gate.
	Hub *rest.Config
	// Identity of this process, from the function [Identity].
	Identity string
	// Labels of the Lease.
	Labels map[string]string
	// Duration is how long other processes wait after the last renewal that they saw, in whole
	// seconds. RenewDeadline is shorter: how long the holder writes without a renewal. RetryPeriod
	// is the time between two renewals.
	Duration, RenewDeadline, RetryPeriod time.Duration
	Log                                  *slog.Logger
	Now                                  func() time.Time
}

// Check returns an error if one of the durations is invalid.
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

// Lease is the Lease of this process. It is safe for concurrent use.
type Lease struct {
	options Options
	name    string
	client  kubernetes.Interface
	gate    *Gate

	mu sync.Mutex // held while the Lease is written
	// current is the Lease in the last answer of the API server; nil before it was made.
	current     *coordinationv1.Lease
	annotations map[string]string // to be written
	lost        error
	lose        context.CancelCauseFunc
}

// Name returns the name of the Lease of a process: [v1alpha1.LeasePrefix] and ten hexadecimal
// digits of the SHA-256 of its identity.
func Name(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return v1alpha1.LeasePrefix + hex.EncodeToString(sum[:5])
}

// New creates a Lease without making a call. The error says that a duration or the settings of the
// hub are invalid.
func New(o Options) (*Lease, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	hub := rest.CopyConfig(o.Hub)
	hub.Timeout = o.RenewDeadline / 2 // leaves time for a second request if the first hangs
	client, err := kubernetes.NewForConfig(hub)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return &Lease{options: o, name: Name(o.Identity), client: client, gate: newGate(o.Now, o.RenewDeadline)}, nil
}

// Gate returns the gate that connections must be wrapped with: [Gate.Wrap].
func (l *Lease) Gate() *Gate { return l.gate }

// Holds reports whether this process certainly holds the Lease now.
func (l *Lease) Holds() bool { return l.gate.Check() == nil }

// Name returns the name of the Lease in the namespace [v1alpha1.Namespace].
func (l *Lease) Name() string { return l.name }

// String returns the Lease's name for messages.
func (l *Lease) String() string {
	return fmt.Sprintf("Lease %s/%s in the hub", v1alpha1.Namespace, l.name)
}

// Client returns a client for Leases whose requests have a timeout.
func (l *Lease) Client() coordinationclient.LeaseInterface {
	return l.client.CoordinationV1().Leases(v1alpha1.Namespace)
}

// Run makes the Lease, and retries until ctx ends; then it runs work. The context of work ends with
// ctx, or with [ErrLost] as its cause when the Lease is lost. Then work must return. A Lease runs
// once.
//
// After ctx ended, the Lease is kept until work has returned, and then deleted, so that other
// processes can go on at once. The error is ErrLost or that of work; nil if ctx ended before the
// Lease was made.
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
		l.options.Log.Warn("the lease was not released: other replicas wait until it expires", "lease", l.name, "error", gone)
	}
	return err
}

// acquire makes the Lease, and reports whether it exists; false after ctx ended.
func (l *Lease) acquire(ctx context.Context) bool {
	for {
		err := l.create(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			l.options.Log.Warn("the lease can't be made; trying again", "lease", l.name, "error", err)
		}
		if !l.waitToRetry(ctx) {
			return false
		}
	}
}

// waitToRetry waits for a retry period with jitter, and returns false when ctx ends first.
func (l *Lease) waitToRetry(ctx context.Context) bool {
	timer := time.NewTimer(wait.Jitter(l.options.RetryPeriod, jitter))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// create makes the Lease, and in a new hub its namespace. If the Lease already exists, an earlier
// answer was lost, because the name belongs to this process alone.
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

// next returns the Lease with the annotations and the renew time to write.
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
	for l.waitToRetry(ctx) {
		if err := l.Renew(ctx, nil); errors.Is(err, ErrLost) {
			return
		} else if err != nil && ctx.Err() == nil {
			l.options.Log.Warn("the lease was not renewed", "lease", l.name, "error", err)
		}
	}
}

// Renew writes the Lease now, with the given annotations; nil keeps the previous ones. After an
// error the hub may have the old or the new annotations, and has the new ones after the next
// renewal. The error is [ErrLost] if no renewal can succeed any more.
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
	// Another client wrote or deleted the Lease, or the answer to an earlier write was lost.
	current, err := l.Client().Get(ctx, l.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return l.losing("another client deleted it")
	case err != nil:
		return fmt.Errorf("read %s: %w", l, err)
	case current.UID != l.current.UID:
		return l.losing("another client created a new one in its place")
	case ptr.Deref(current.Spec.HolderIdentity, "") != l.options.Identity:
		return l.losing(fmt.Sprintf("%q holds it", ptr.Deref(current.Spec.HolderIdentity, "")))
	}
	l.current = current
	return l.write(ctx)
}

// write updates the Lease, and opens the gate. The update names the UID. So it fails if the Lease
// was deleted or made again.
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

// losing shuts the gate and stops the work at once.
func (l *Lease) losing(why string) error {
	l.gate.close()
	l.lost = fmt.Errorf("%w any more: %s", ErrLost, why)
	l.options.Log.Error("the lease is lost: nothing more is written", "lease", l.name, "because", why)
	l.lose(l.lost)
	return l.lost
}

// giveBack deletes the Lease, unless its UID has changed.
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

// Confirm reads the Lease of this process from the hub. The error is [ErrLost] if the Lease is
// gone, has another holder, or may have expired meanwhile. Any other error means that the answer is
// unknown.
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
