// Package node implements the first process of a real node. The process has its own
// namespaces (mounts, network, processes, host name, IPC). It sets up the state of a booted
// machine, and starts and restarts the node's programs, as an init process does.
//
// When the process ends, the kernel ends every process of the node and removes the
// node's mounts and interfaces. Only cgroups remain; [RemoveCgroups] removes them.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Namespaces are the clone flags of a node's own namespaces, for [syscall.SysProcAttr].
const Namespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC

// Interface is the name of the network interface at the node's end of the cable.
const Interface = "eth0"

// Config is the configuration of a node.
type Config struct {
	Name     string       `json:"name"`
	Address  netip.Prefix `json:"address"` // of the node's interface
	Gateway  netip.Addr   `json:"gateway"`
	Routes   []Route      `json:"routes"` // to the pods of other nodes
	Cgroup   string       `json:"cgroup"` // parent of the pods' cgroups, a path from the root of every hierarchy
	Binds    []Bind       `json:"binds"`
	Path     string       `json:"path"` // $PATH of the programs
	Programs []Program    `json:"programs"`
	Logs     string       `json:"logs"` // folder with one log per program
}

// Route is the route to a range of addresses.
type Route struct {
	To  netip.Prefix `json:"to"`
	Via netip.Addr   `json:"via"`
}

// Bind is a bind mount in the node: Folder appears at At and hides the machine's content.
type Bind struct {
	Folder string `json:"folder"`
	At     string `json:"at"`
}

// Program is a program that runs as long as the node.
type Program struct {
	Name string   `json:"name"`
	Path string   `json:"path"`
	Args []string `json:"args"`
}

// cableWait is the longest wait for the interface, which [Plug] adds from outside.
const cableWait = 20 * time.Second

// Main runs the node that a JSON file describes. It returns when the context ends, or
// with an error if the node or one of its programs can't start. The calling process must
// be the first process in its namespaces.
func Main(ctx context.Context, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read what the node is: %w", err)
	}
	var c Config
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("read what the node is: %s: %w", file, err)
	}
	if os.Getpid() != 1 {
		return errors.New("a node has to be the first process in namespaces of its own: lab up --node real starts it")
	}
	if err := syscall.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("name the node: %w", err)
	}
	for _, step := range []func(context.Context) error{c.mount, c.network, c.cgroups} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return c.supervise(ctx)
}

// mount mounts the folders that a node must not share with the machine or other nodes.
func (c *Config) mount(context.Context) error {
	// From here on, mounts are not visible outside the node.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separate the mounts: %w", err)
	}
	for _, b := range c.Binds {
		for _, dir := range []string{b.Folder, b.At} {
			if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as these are everywhere: pods' users look into them
				return fmt.Errorf("make %s: %w", dir, err)
			}
		}
		if err := unix.Mount(b.Folder, b.At, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", b.Folder, b.At, err)
		}
	}
	for at, kind := range map[string]string{"/proc": "proc", "/run": "tmpfs"} {
		if err := unix.Mount(kind, at, kind, unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	// systemd does the same on a machine, so that a kubelet's volumes appear in containers.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the mounts with the node's containers: %w", err)
	}
	return nil
}

// network waits for the interface, and sets its address and routes.
func (c *Config) network(ctx context.Context) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	cable, err := await(ctx, Interface)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(cable, &netlink.Addr{IPNet: ipNet(c.Address)}); err != nil {
		return fmt.Errorf("give %s the address %s: %w", Interface, c.Address, err)
	}
	if err := netlink.LinkSetUp(cable); err != nil {
		return fmt.Errorf("bring up %s: %w", Interface, err)
	}
	routes := append([]Route{{To: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Via: c.Gateway}}, c.Routes...)
	if err := setRoutes(cable, routes); err != nil {
		return err
	}
	// The setting applies only to this network namespace.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return fmt.Errorf("forward packets: %w", err)
	}
	return nil
}

func await(ctx context.Context, name string) (link netlink.Link, err error) {
	if wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, cableWait, true, func(context.Context) (bool, error) {
		link, err = netlink.LinkByName(name)
		return err == nil, nil
	}) != nil {
		return nil, fmt.Errorf("%s: not there after %s: %w", name, cableWait, err)
	}
	return link, nil
}
