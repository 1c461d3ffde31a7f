package sandbox

import (
	"fmt"
	"os"
	"slices"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// The limits of [Confine] bound what templates can do. The measures here are for a mistake in Go or
// Helm that lets a template run code of its own. Then the process has no capability, can access no
// other process and no file, and can call only a small part of the kernel's code. The kernel must
// support these measures; otherwise only the limits apply.

// dropCapabilities gives up all capabilities, in every thread. A process that this one starts gets
// none back, since it may have no new privileges.
func dropCapabilities() error {
	if err := cap.NewSet().SetProc(); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}

// readOnly lets the process and its children read these files and folders, run its own program, and
// nothing else. They can't read the memory or environment of an outside process through /proc.
// Signals are not restricted: before Landlock's version 8 each thread has a domain of its own, so
// the process could not end what another of its threads has started.
func readOnly(limits Limits) error {
	err := landlock.V11.BestEffort().RestrictPaths(
		landlock.RODirs(limits.Read...).IgnoreIfMissing(),
		landlock.RWFiles(limits.Lock...).IgnoreIfMissing(),
		landlock.RODirs("/proc", "/sys/fs/cgroup", "/sys/kernel/mm").IgnoreIfMissing(), // for Go's runtime and the limits
		// A program that was built with cgo loads the C library.
		landlock.RODirs("/lib", "/lib64", "/usr/lib", "/usr/lib64").IgnoreIfMissing(),
		landlock.ROFiles("/etc/ld.so.cache").IgnoreIfMissing(),
		landlock.ROFiles("/proc/self/exe"), // the program's file, even after its replacement
		landlock.RWFiles(os.DevNull),
	)
	if err != nil {
		return fmt.Errorf("give up files: %w", err)
	}
	return nil
}

// renderCalls returns the system calls of Go's runtime, and those that read jobs and write answers.
// It includes the calls of a C library's threads, for builds with cgo.
func renderCalls() []string {
	return []string{
		"read", "write", "pread64", "close", // pipes, and how much memory is used
		"epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_wait", "eventfd2", "pipe2", "poll", "ppoll",
		"munmap", "mprotect", "mremap", "madvise", "mincore", "brk",
		"futex", "futex_waitv", "sched_yield", "sched_getaffinity", "set_robust_list", "rseq", "membarrier",
		"nanosleep", "clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday", "time", "getrandom", "getrusage",
		"getpid", "gettid", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall",
		"exit", "exit_group",
	}
}

// taskCalls returns the additional system calls of a task: it reads files, and starts processes
// with the same confinement.
func taskCalls() []string {
	return []string{
		"open", "openat", "lseek", "stat", "lstat", "fstat", "newfstatat", "statx", "statfs", "fstatfs", "access", "faccessat", "faccessat2",
		"getdents64", "readlink", "readlinkat", "getcwd", "chdir", "fadvise64", "flock", "ioctl",
		"vfork", "execve", "execveat", "wait4", "waitid", "kill", "tgkill", "pidfd_open", "pidfd_send_signal",
		"dup", "dup2", "dup3", "pipe", "setpgid", "getpgid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getgroups",
		"arch_prctl", "set_tid_address", "prctl", "getrlimit", "setrlimit", "getpriority",
		"capget", "capset", "seccomp", "uname", "sysinfo",
	}
}

// where allows a system call if an argument meets a condition.
func where(name string, argument uint32, is seccomp.Operation, value uint64) seccomp.NameWithConditions {
	return seccomp.NameWithConditions{Name: name, Conditions: seccomp.ArgumentConditions{{Argument: argument, Operation: is, Value: value}}}
}

// renderConditions returns the calls that every process may make with certain arguments only.
func renderConditions() []seccomp.NameWithConditions {
	return []seccomp.NameWithConditions{
		// Shared memory counts for no limit of the process.
		where("mmap", 3, seccomp.BitsNotSet, unix.MAP_SHARED),
		// F_SETOWN and F_SETSIG make the kernel send any signal to any process of the user. All
		// commands from 8 to 15 have this bit; the commands that Go uses do not.
		where("fcntl", 1, seccomp.BitsNotSet, unix.F_SETOWN),
	}
}

// threadConditions returns the calls of a process that starts no other process: threads, and
// signals between them.
func threadConditions() []seccomp.NameWithConditions {
	return []seccomp.NameWithConditions{
		where("clone", 0, seccomp.BitsSet, unix.CLONE_THREAD),
		where("tgkill", 0, seccomp.Equal, uint64(os.Getpid())),
	}
}

// taskConditions returns the calls of a process that starts others, in namespaces such as those of
// [Isolations], and with limits of its own.
func taskConditions() []seccomp.NameWithConditions {
	return []seccomp.NameWithConditions{
		where("clone", 0, seccomp.BitsNotSet, unix.CLONE_NEWNS|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS|unix.CLONE_NEWCGROUP),
		where("prlimit64", 0, seccomp.Equal, 0), // only of the process itself
	}
}

// filterCalls makes the kernel refuse all other system calls, of every thread and of the processes
// that this one starts.
func filterCalls(task bool) error {
	table, err := arch.GetInfo("")
	if err != nil || !seccomp.Supported() {
		return nil //nolint:nilerr // an architecture or a kernel without filters
	}
	known := func(names []string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			_, ok := table.SyscallNames[name]
			return !ok // each architecture has its own calls
		})
	}
	allowed := seccomp.SyscallGroup{Action: seccomp.ActionAllow, Names: known(renderCalls()), NamesWithCondtions: renderConditions()}
	if task {
		allowed.Names = append(allowed.Names, known(taskCalls())...)
		allowed.NamesWithCondtions = append(allowed.NamesWithCondtions, taskConditions()...)
	} else {
		allowed.NamesWithCondtions = append(allowed.NamesWithCondtions, threadConditions()...)
	}
	// A filter can't read the flags of clone3. If the kernel seems to lack clone3, a C library uses
	// clone; Go always uses clone.
	absent := seccomp.SyscallGroup{Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS), Names: known([]string{"clone3"})}
	err = seccomp.LoadFilter(seccomp.Filter{
		Flag:   seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{DefaultAction: seccomp.ActionErrno, Syscalls: []seccomp.SyscallGroup{allowed, absent}},
	})
	if err != nil {
		return fmt.Errorf("give up system calls: %w", err)
	}
	return nil
}
