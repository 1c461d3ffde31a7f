package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// Switch is the name of the bridge that connects the machine and its real nodes. The
// bridge is connected to no other network.
const Switch = "keelson-lab"

// ErrTaken is returned if the machine's switch belongs to another cluster.
var ErrTaken = errors.New("the machine's real nodes are another cluster's")

// NewSwitch creates the switch unless it exists. It sets the machine's address on the
// switch and the routes through the nodes. A switch has one owner, the path of a cluster's
// folder, while that path exists: the ranges of nodes, pods and Services are the same in
// every cluster. The error wraps [ErrTaken] if the switch has another owner.
func NewSwitch(owner string, address netip.Prefix, routes []Route) error {
	bridge, err := netlink.LinkByName(Switch)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		bridge = &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: Switch}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("make the switch %s: %w", Switch, err)
		}
	} else if err != nil {
		return fmt.Errorf("look for the switch %s: %w", Switch, err)
	} else if alias := bridge.Attrs().Alias; alias != owner {
		if _, err := os.Stat(alias); err == nil {
			return fmt.Errorf("%w: %s; run lab down on it first", ErrTaken, alias)
		}
	}
	if err := netlink.LinkSetAlias(bridge, owner); err != nil {
		return fmt.Errorf("mark the switch: %w", err)
	}
	if err := netlink.AddrReplace(bridge, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
		return fmt.Errorf("give the switch the address %s: %w", address, err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("bring up the switch: %w", err)
	}
	return setRoutes(bridge, routes)
}

func setRoutes(through netlink.Link, routes []Route) error {
	for _, r := range routes {
		route := netlink.Route{LinkIndex: through.Attrs().Index, Dst: ipNet(r.To), Gw: r.Via.AsSlice()}
		if err := netlink.RouteReplace(&route); err != nil {
			return fmt.Errorf("route %s via %s: %w", r.To, r.Via, err)
		}
	}
	return nil
}

func cableName(index int) string { return fmt.Sprintf("%s%d", Switch, index) }

// Unplug removes the cable of a node that has ended. The kernel would remove the cable with
// the node's network namespace, but keeps the namespace for minutes if a connection could
// not be closed. A missing cable is not an error.
func Unplug(index int) error {
	cable, err := netlink.LinkByName(cableName(index))
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(cable)
	}
	if err != nil {
		return fmt.Errorf("unplug node %d: %w", index, err)
	}
	return nil
}

// Plug connects a node to the switch; pid is the node's first process.
func Plug(pid, index int) error {
	bridge, err := netlink.LinkByName(Switch)
	if err != nil {
		return fmt.Errorf("find the switch %s: %w", Switch, err)
	}
	if err := Unplug(index); err != nil {
		return err
	}
	cable := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: cableName(index), MasterIndex: bridge.Attrs().Index},
		PeerName:      Interface,
		PeerNamespace: netlink.NsPid(pid),
	}
	if err := netlink.LinkAdd(cable); err != nil {
		return fmt.Errorf("plug in node %d: %w", index, err)
	}
	if err := netlink.LinkSetUp(cable); err != nil {
		return fmt.Errorf("plug in node %d: %w", index, err)
	}
	return nil
}

// RemoveSwitch removes the switch if it belongs to owner. Otherwise it does nothing.
func RemoveSwitch(owner string) error {
	bridge, err := netlink.LinkByName(Switch)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the switch %s: %w", Switch, err)
	}
	if bridge.Attrs().Alias != owner {
		return nil
	}
	if err := netlink.LinkDel(bridge); err != nil {
		return fmt.Errorf("remove the switch: %w", err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
