// Package ports reserves TCP ports of loopback for the servers of a lab.
//
// A server with a configured port needs a port that no other program takes before the
// server's start, or while the server is stopped. A reservation is a file in a folder that
// all processes of a user share. The reservation lasts as long as its owner, a file or
// folder, exists. So nothing has to release it.
package ports

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/keelson-io/keelson/lab/lock"
)

// The ports are below the range of outgoing connections (from 32768 on Linux) and below
// the range of node ports of Services (from 30000).
const (
	// First is the lowest port that is reserved.
	First = 16000
	// Last is the highest port that is reserved.
	Last = 29999
)

// Reserve returns n ports of 127.0.0.1 that are free and not reserved. They stay reserved
// while owner, a file or folder, exists.
func Reserve(ctx context.Context, owner string, n int) ([]int, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("keelson-ports-%d", os.Getuid()))
	unlock, err := lock.Dir(ctx, dir, nil)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	defer unlock()
	reserved, err := read(dir)
	if err != nil {
		return nil, err
	}
	var found []int
	for _, offset := range rand.Perm(Last - First + 1) {
		port := First + offset
		if reserved[port] || !free(ctx, port) {
			continue
		}
		if found = append(found, port); len(found) == n {
			return found, write(dir, owner, found)
		}
	}
	return nil, fmt.Errorf("reserve a port: none is free on 127.0.0.1 between %d and %d", First, Last)
}

// read returns the reserved ports. It removes reservations whose owner no longer exists.
func read(dir string) (map[int]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the reserved ports: %w", err)
	}
	reserved := map[int]bool{}
	for _, e := range entries {
		port, err := strconv.Atoi(e.Name())
		if err != nil {
			continue // not a reservation
		}
		path := filepath.Join(dir, e.Name())
		owner, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the reserved ports: %w", err)
		}
		if _, err := os.Stat(string(owner)); errors.Is(err, fs.ErrNotExist) {
			if err := os.Remove(path); err != nil {
				return nil, fmt.Errorf("give back a port: %w", err)
			}
			continue
		}
		reserved[port] = true
	}
	return reserved, nil
}

func write(dir, owner string, found []int) error {
	owner, err := filepath.Abs(owner)
	if err != nil {
		return fmt.Errorf("reserve a port: %w", err)
	}
	for _, port := range found {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(port)), []byte(owner), 0o600); err != nil {
			return fmt.Errorf("reserve a port: %w", err)
		}
	}
	return nil
}

// free reports whether nothing listens on a port.
func free(ctx context.Context, port int) bool {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = l.Close() // nothing was accepted
	return true
}
