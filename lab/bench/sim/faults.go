package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/lab/process"
)

// Faults are the simulated faults of a cluster. The zero value has none.
type Faults struct {
	// Each request is delayed by Latency plus a random time below Jitter.
	Latency metav1.Duration `json:"latency,omitzero"`
	Jitter  metav1.Duration `json:"jitter,omitzero"`
	// Throttled is the share of requests that are answered with 429, from 0 to 1.
	Throttled float64 `json:"throttled,omitempty"`
	// Hung: connections are accepted, but no data is read from or written to them.
	Hung bool `json:"hung,omitempty"`
	// Refusing: the port is closed, and existing connections are reset.
	Refusing bool `json:"refusing,omitempty"`
}

// faults holds the faults of one cluster and the connections that they affect.
type faults struct {
	mu       sync.Mutex
	is       Faults
	random   *rand.Rand
	thawed   chan struct{} // closed while not hung
	cut      chan struct{} // closed to cut the watches
	conns    map[*conn]bool
	address  string
	listener net.Listener // nil while refusing
	serve    func(net.Listener)
}

func newFaults(seed uint64, serve func(net.Listener)) *faults {
	thawed := make(chan struct{})
	close(thawed)
	return &faults{random: rand.New(rand.NewPCG(seed, 1)), thawed: thawed, cut: make(chan struct{}), conns: map[*conn]bool{}, serve: serve} //nolint:gosec // no secret
}

// listen starts to listen, on the previous port if there was one.
func (f *faults) listen(ctx context.Context) error {
	at := f.address
	if at == "" {
		at = "127.0.0.1:0"
	}
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", at)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	f.address, f.listener = l.Addr().String(), l
	go f.serve(&listener{Listener: l, faults: f})
	return nil
}

// set replaces the faults of the cluster.
func (f *faults) set(ctx context.Context, to Faults) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.is
	f.is = to
	switch {
	case to.Hung && !was.Hung:
		f.thawed = make(chan struct{})
	case !to.Hung && was.Hung:
		close(f.thawed)
	}
	if to.Refusing && !was.Refusing {
		err := f.listener.Close()
		for c := range f.conns {
			err = errors.Join(err, c.reset())
		}
		return err
	}
	if !to.Refusing && was.Refusing {
		return f.listen(ctx)
	}
	return nil
}

func (f *faults) get() Faults {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.is
}

// cutWatches ends all watches.
func (f *faults) cutWatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.cut)
	f.cut = make(chan struct{})
}

func (f *faults) cutter() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cut
}

// delay waits for the simulated latency.
func (f *faults) delay(ctx context.Context) error {
	f.mu.Lock()
	d := f.is.Latency.Duration
	if f.is.Jitter.Duration > 0 {
		d += time.Duration(f.random.Int64N(int64(f.is.Jitter.Duration)))
	}
	f.mu.Unlock()
	if d <= 0 {
		return nil
	}
	return process.Wait(ctx, d)
}

func (f *faults) throttles() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.is.Throttled > 0 && f.random.Float64() < f.is.Throttled
}

// listener wraps accepted connections so that the cluster's faults affect them.
type listener struct {
	net.Listener
	faults *faults
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // net/http looks at it
	}
	made := &conn{Conn: c, faults: l.faults, closed: make(chan struct{})}
	l.faults.mu.Lock()
	defer l.faults.mu.Unlock()
	l.faults.conns[made] = true
	return made, nil
}

// conn is a connection that blocks while its cluster is hung.
type conn struct {
	net.Conn
	faults *faults
	once   sync.Once
	closed chan struct{}
}

// frozen blocks until the cluster is not hung, or fails when the connection is closed.
func (c *conn) frozen() error {
	c.faults.mu.Lock()
	thawed := c.faults.thawed
	c.faults.mu.Unlock()
	select {
	case <-thawed:
		return nil
	case <-c.closed:
		return net.ErrClosed
	}
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if frozen := c.frozen(); frozen != nil {
		return 0, frozen
	}
	return n, err //nolint:wrapcheck // net/http looks at it
}

func (c *conn) Write(b []byte) (int, error) {
	if err := c.frozen(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b) //nolint:wrapcheck // as above
}

func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.faults.mu.Lock()
		delete(c.faults.conns, c)
		c.faults.mu.Unlock()
	})
	return c.Conn.Close() //nolint:wrapcheck // as above
}

// reset closes the connection with a TCP reset, as the end of a process does.
func (c *conn) reset() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		if err := tcp.SetLinger(0); err != nil {
			return fmt.Errorf("reset a connection: %w", err)
		}
	}
	return c.Conn.Close() //nolint:wrapcheck // says enough
}
