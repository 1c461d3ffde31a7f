package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// TestChild is the process of TestSignal: it ends well when it gets its signal.
func TestChild(t *testing.T) { //nolint:paralleltest // it is the only test of its process
	if os.Getenv("RELOAD_AGENT_CHILD") == "" {
		t.Skip("TestSignal starts it")
	}
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGUSR1)
	fmt.Println("ready")
	<-got
}
