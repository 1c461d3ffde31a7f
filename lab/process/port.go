package process

import (
	"context"
	"fmt"
	"net"
)

// FreePort is a port of loopback that nobody listens on, for a program that has to be
// told its own.
func FreePort(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String()) // a listener's address has one
	if err := l.Close(); err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return port, nil
}
