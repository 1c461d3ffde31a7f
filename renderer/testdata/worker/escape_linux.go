package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/keelson-io/keelson/renderer"
)

// parentID is the process that has started this one, by the number in /proc: in a PID namespace of
// its own, this process does not know it otherwise.
var parentID = func() int {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "PPid:"); ok {
			id, _ := strconv.Atoi(strings.TrimSpace(rest))
			return id
		}
	}
	return 0
}()

// apart reports whether this process has a PID namespace of its own.
func apart() bool { return os.Getppid() != parentID }

// escapes returns what foreign code in this process would try, and the result of each try.
func escapes() map[string]error {
	parent := parentID
	call := func(number uintptr, args ...uintptr) error {
		args = append(args, 0, 0, 0)
		if _, _, errno := unix.Syscall(number, args[0], args[1], args[2]); errno != 0 {
			return errno
		}
		return nil
	}
	read := func(file string) error {
		_, err := os.ReadFile(file)
		if pathError, ok := err.(*os.PathError); ok {
			return pathError.Err
		}
		return err
	}
	capabilities := fmt.Errorf("none")
	var header = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if err := unix.Capget(&header, &has[0]); err == nil && has[0].Effective|has[0].Permitted|has[1].Effective|has[1].Permitted != 0 {
		capabilities = nil
	}
	_, owner := unix.FcntlInt(2, unix.F_SETOWN, parent)
	shared, sharing := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if sharing == nil {
		_ = unix.Munmap(shared)
	}
	child := exec.Command("/proc/self/exe", "child")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		_ = unix.Close(socket)
	}
	return map[string]error{
		"capability":                capabilities,
		"file":                      read("/etc/passwd"),
		"environment of the parent": read(fmt.Sprintf("/proc/%d/environ", parent)),
		"memory of the parent":      read(fmt.Sprintf("/proc/%d/mem", parent)),
		"trace":                     unix.PtraceAttach(parent),
		"read memory":               call(unix.SYS_PROCESS_VM_READV, uintptr(parent)),
		"signal":                    unix.Kill(parent, 0),
		"socket":                    err,
		"program":                   exec.Command("/bin/true").Run(),
		"namespace":                 unix.Unshare(unix.CLONE_NEWUTS),
		"namespace of a child":      child.Run(),
		"signals by a file":         owner,
		"shared memory":             sharing,
		"limits of the parent":      unix.Prlimit(parent, unix.RLIMIT_NOFILE, nil, &unix.Rlimit{}),
		"priority of the parent":    unix.Setpriority(unix.PRIO_PROCESS, parent, 0),
		"io_uring":                  call(unix.SYS_IO_URING_SETUP, 1),
		"bpf":                       call(unix.SYS_BPF),
		"keyring":                   call(unix.SYS_KEYCTL),
		"handle":                    call(unix.SYS_OPEN_BY_HANDLE_AT),
	}
}

// escaping tries to escape as soon as the process reports that it is confined, prints the results,
// and ends the process.
type escaping struct{}

func (escaping) Write(p []byte) (int, error) {
	came := map[string]string{}
	for what, err := range escapes() {
		came[what] = "ok"
		if err != nil {
			came[what] = err.Error()
		}
	}
	_ = json.NewEncoder(os.Stderr).Encode(came)
	os.Exit(0)
	return 0, nil
}

// parent starts a task and prints its answer; closed: its memory is closed to debuggers, as a
// controller's.
func parent(closed bool) error {
	if closed {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return err
		}
	}
	answer, err := renderer.RunTask[map[string]string](context.Background(), renderer.TaskOptions{
		Args: []string{"task"}, Memory: 128 << 20, CPU: time.Minute, AnswerBytes: 64 << 10,
	}, "look")
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}
