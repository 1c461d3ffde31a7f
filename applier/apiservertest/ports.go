package apiservertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// The ports are below those that the kernel chooses (from 32768 on Linux), and below those
// of the lab (from 16000). Between the choice of one of the kernel's ports and the start of
// the API server, a server of another test can get the same port. That server then receives
// this one's health checks, and its test fails by chance.
const firstPort, lastPort = 11000, 15999

// ports are reserved for this process. Two processes never reserve the same port at the same
// time, because each holds the lock on the port's file. The kernel releases the locks of a
// process that dies.
type ports struct {
	numbers []int
	locks   []*os.File
}

// folder returns the folder of the locks, which all processes of a user share.
func folder() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("keelson-test-ports-%d", os.Getuid()))
}

// reservePorts reserves n free ports of 127.0.0.1.
func reservePorts(n int) (*ports, error) {
	folder := folder()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	reserved := &ports{}
	for _, offset := range rand.Perm(lastPort - firstPort + 1) {
		if err := reserved.try(folder, firstPort+offset); err != nil {
			return nil, errors.Join(err, reserved.release())
		}
		if len(reserved.numbers) == n {
			return reserved, nil
		}
	}
	err := fmt.Errorf("reserve a port: fewer than %d are free on 127.0.0.1 between %d and %d", n, firstPort, lastPort)
	return nil, errors.Join(err, reserved.release())
}

// try reserves a port if it is free.
func (p *ports) try(folder string, port int) error {
	file, err := os.OpenFile(filepath.Join(folder, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("reserve a port: %w", err)
	}
	locked := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
	if !locked || !isFree(port) {
		_ = file.Close() // nothing was written
		return nil
	}
	p.numbers, p.locks = append(p.numbers, port), append(p.locks, file)
	return nil
}

// release lets other processes reserve the ports.
func (p *ports) release() error {
	var errs []error
	for _, file := range p.locks {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}

// isFree reports whether no server listens on a port.
func isFree(port int) bool {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address(port)) //nolint:forbidigo // it doesn't block
	if err != nil {
		return false
	}
	_ = l.Close() // no connection was accepted
	return true
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
