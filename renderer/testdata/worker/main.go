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
	"time"

	"github.com/keelson-io/keelson/renderer"
)

func main() {
	var err error
	if len(os.Args) == 3 && os.Args[1] == "endless" { // with a mark by which a test finds it
		time.Sleep(5 * time.Minute)
		return
	}
	switch strings.Join(os.Args[1:], " ") {
	case "task":
		err = renderer.ServeTask(os.Stdin, os.NewFile(3, "answers"), do)
	case "child":
	case "endless":
		time.Sleep(time.Minute)
	case "escape":
		err = renderer.Work(os.Stdin, escaping{})
	case "parent", "parent closed":
		err = parent(len(os.Args) > 2)
	default:
		err = renderer.Work(os.Stdin, os.NewFile(3, "answers"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func do(task string) (map[string]string, error) {
	what, file, _ := strings.Cut(task, " ")
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
		_, err := io.Copy(io.Discard, os.Stdin) // stdin stays open
		return nil, err
	case "error":
		return nil, fmt.Errorf("it can't be done")
	case "long":
		return map[string]string{"text": strings.Repeat("x", 1<<20)}, nil
	case "write":
		f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
		if err == nil {
			_, err = f.WriteString("x")
		}
		return nil, err
	case "leave": // starts a process that is to outlive this one
		child := exec.Command("/proc/self/exe", "endless", file)
		child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return map[string]string{"apart": fmt.Sprint(apart())}, child.Start()
	case "kill":
		child := exec.Command("/proc/self/exe", "endless")
		if err := child.Start(); err != nil {
			return nil, err
		}
		if err := child.Process.Kill(); err != nil {
			return nil, err
		}
		return map[string]string{"ended": child.Wait().Error()}, nil
	case "read":
		_, err := os.ReadFile(file)
		return map[string]string{}, err
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
		answer := map[string]string{
			"environment": strings.Join(os.Environ(), " "), "read": said(read), "dial": said(dialed),
			"child": said(exec.Command("/proc/self/exe", "child").Run()), "priority": fmt.Sprint(20 - priority), "apart": fmt.Sprint(apart()),
		}
		for what, err := range escapes() {
			answer[what] = said(err)
		}
		return answer, err
	}
	return nil, fmt.Errorf("no task %q", task)
}

func deeper(n int) int { return deeper(n+1) + 1 }
