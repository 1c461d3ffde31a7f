// Command worker is a worker process without the race detector, for tests that
// run with it, and the process of a task.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/keelson-io/keelson/renderer"
)

func main() {
	var err error
	switch strings.Join(os.Args[1:], " ") {
	case "task":
		err = renderer.ServeTask(os.Stdin, os.NewFile(3, "answers"), do)
	case "child":
	default:
		err = renderer.Work(os.Stdin, os.NewFile(3, "answers"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func do(what string) (map[string]string, error) {
	switch what {
	case "memory":
		for all := [][]byte{}; ; {
			all = append(all, make([]byte, 1<<20))
			for i := range all[len(all)-1] {
				all[len(all)-1][i] = 1
			}
		}
	case "recursion":
		return nil, fmt.Errorf("%d", deeper(1))
	case "wait":
		_, err := io.Copy(io.Discard, os.Stdin) // which stays open
		return nil, err
	case "error":
		return nil, fmt.Errorf("it can't be done")
	case "long":
		return map[string]string{"text": strings.Repeat("x", 1<<20)}, nil
	case "write":
		return nil, os.WriteFile(os.TempDir()+"/keelson-task-test", []byte("x"), 0o600)
	case "look":
		said := func(err error) string {
			if err != nil {
				return err.Error()
			}
			return "ok"
		}
		_, read := os.ReadFile("/proc/self/status")
		_, dialed := (&net.Dialer{}).Dial("tcp", "127.0.0.1:1")
		priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
		return map[string]string{
			"environment": strings.Join(os.Environ(), " "), "read": said(read), "dial": said(dialed),
			"child": said(exec.Command("/proc/self/exe", "child").Run()), "priority": fmt.Sprint(20 - priority),
		}, err
	}
	return nil, fmt.Errorf("no task %q", what)
}

func deeper(n int) int { return deeper(n+1) + 1 }
