package apiservertest

import (
	"net"
	"slices"
	"testing"
)

// A server that asks the kernel for a port must never get one of an API server's.
func TestPortsAreNotTheKernels(t *testing.T) {
	t.Parallel()
	p, err := reservePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.release(); err != nil {
			t.Error(err)
		}
	}()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	kernels, ok := l.Addr().(*net.TCPAddr)
	if !ok || kernels.Port <= lastPort {
		t.Errorf("the kernel chose %v, within the range of tests", l.Addr())
	}
	if slices.Sort(p.numbers); len(slices.Compact(p.numbers)) != 3 || p.numbers[0] < firstPort || p.numbers[2] > lastPort {
		t.Errorf("reserved %v", p.numbers)
	}
}

// A port is reserved once, and again after its release.
func TestPortIsReservedOnce(t *testing.T) {
	t.Parallel()
	port := reserve(t)
	folder, first, second := t.TempDir(), &ports{}, &ports{}
	for _, p := range []*ports{first, second} {
		if err := p.try(folder, port); err != nil {
			t.Fatal(err)
		}
	}
	if len(first.numbers) != 1 || len(second.numbers) != 0 {
		t.Errorf("reserved %v and %v", first.numbers, second.numbers)
	}
	if err := first.release(); err != nil {
		t.Fatal(err)
	}
	if err := second.try(folder, port); err != nil || len(second.numbers) != 1 {
		t.Errorf("not reserved after its release: %v, %v", second.numbers, err)
	}
	if err := second.release(); err != nil {
		t.Fatal(err)
	}
}

// A port on which a server listens is not reserved, also where the server knows no locks.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	port := reserve(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address(port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := &ports{}
	if err := p.try(t.TempDir(), port); err != nil || len(p.numbers) > 0 {
		t.Errorf("reserved %v although a server listens: %v", p.numbers, err)
	}
}

// reserve returns a port that no other process uses during the test. Tests use it with lock
// folders of their own.
func reserve(t *testing.T) int {
	t.Helper()
	p, err := reservePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.release(); err != nil {
			t.Error(err)
		}
	})
	return p.numbers[0]
}
