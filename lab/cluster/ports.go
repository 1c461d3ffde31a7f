package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// ports of a cluster, kept over restarts.
type ports struct {
	Etcd      int `json:"etcd"`
	EtcdPeer  int `json:"etcdPeer"`
	APIServer int `json:"apiserver"`
}

// Ports are taken from below what kernels hand out to outgoing connections
// (32768 on Linux) and what Services take as node ports (30000), so that the
// port of a stopped server is still free when it starts again.
const firstPort, lastPort = 16000, 29999

// attempts at finding free ports before giving up.
const attempts = 200

// choosePorts returns ports that nothing listens on and that no other cluster
// has, running or not.
func choosePorts(ctx context.Context, others []*record) (ports, error) {
	taken := map[int]bool{}
	for _, o := range others {
		taken[o.Ports.Etcd], taken[o.Ports.EtcdPeer], taken[o.Ports.APIServer] = true, true, true
	}
	var p ports
	for _, port := range []*int{&p.Etcd, &p.EtcdPeer, &p.APIServer} {
		for range attempts {
			n := firstPort + rand.IntN(lastPort-firstPort+1)
			if taken[n] || !free(ctx, n) {
				continue
			}
			*port, taken[n] = n, true
			break
		}
		if *port == 0 {
			return ports{}, errors.New("no free port on 127.0.0.1 between " + strconv.Itoa(firstPort) + " and " + strconv.Itoa(lastPort))
		}
	}
	return p, nil
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
