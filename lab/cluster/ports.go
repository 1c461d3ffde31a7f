package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
)

// ports of a cluster, kept over restarts.
type ports struct {
	Etcd      int `json:"etcd"`
	EtcdPeer  int `json:"etcdPeer"`
	APIServer int `json:"apiserver"`
	Registry  int `json:"registry,omitempty"` // of a cluster with real nodes
}

// Ports are taken from below what kernels hand out to outgoing connections
// (32768 on Linux) and what Services take as node ports (30000), so that the
// port of a stopped server is still free when it starts again.
const firstPort, lastPort = 16000, 29999

// choosePorts returns ports that nothing listens on and that no other cluster
// has, running or not.
func choosePorts(ctx context.Context, real bool, others []*record) (ports, error) {
	taken := map[int]bool{}
	for _, o := range others {
		taken[o.Ports.Etcd], taken[o.Ports.EtcdPeer], taken[o.Ports.APIServer] = true, true, true
		taken[o.Ports.Registry] = true
	}
	var p ports
	wanted := []*int{&p.Etcd, &p.EtcdPeer, &p.APIServer}
	if real {
		wanted = append(wanted, &p.Registry)
	}
	for _, offset := range rand.Perm(lastPort - firstPort + 1) {
		port := firstPort + offset
		if taken[port] || !free(ctx, port) {
			continue
		}
		*wanted[0], wanted = port, wanted[1:]
		if len(wanted) == 0 {
			return p, nil
		}
	}
	return ports{}, fmt.Errorf("no free port on 127.0.0.1 between %d and %d", firstPort, lastPort)
}

func free(ctx context.Context, port int) bool {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}
