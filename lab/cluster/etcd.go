package cluster

import "fmt"

func etcdArgs(s *clusterState) []string {
	peer := fmt.Sprintf("https://127.0.0.1:%d", s.Ports.EtcdPeer)
	return []string{
		"--name=" + s.Name,
		"--data-dir=" + s.dir.path("etcd"),
		"--listen-client-urls=" + s.etcd(),
		"--advertise-client-urls=" + s.etcd(),
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=" + s.Name + "=" + peer,
		// Every user of the machine can connect to loopback.
		"--client-cert-auth",
		"--trusted-ca-file=" + s.dir.pki("etcd-ca.crt"),
		"--cert-file=" + s.dir.pki("etcd.crt"),
		"--key-file=" + s.dir.pki("etcd.key"),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + s.dir.pki("etcd-ca.crt"),
		"--peer-cert-file=" + s.dir.pki("etcd.crt"),
		"--peer-key-file=" + s.dir.pki("etcd.key"),
		"--log-level=warn",
		// A lab may lose data if the machine crashes. A killed process loses none.
		"--unsafe-no-fsync",
		// A single member never misses a heartbeat. An idle etcd spends its time on
		// heartbeat ticks, so they are rare. The member elects itself within two
		// election timeouts.
		"--heartbeat-interval=200",
		"--election-timeout=1000",
		// etcd keeps entries in memory until a snapshot.
		"--snapshot-count=2000",
		"--quota-backend-bytes=1073741824",
	}
}
