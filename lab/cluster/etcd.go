package cluster

import "fmt"

func etcdArgs(r *record) []string {
	peer := fmt.Sprintf("https://127.0.0.1:%d", r.Ports.EtcdPeer)
	return []string{
		"--name=" + r.Name,
		"--data-dir=" + r.path("etcd"),
		"--listen-client-urls=" + r.etcd(),
		"--advertise-client-urls=" + r.etcd(),
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=" + r.Name + "=" + peer,
		// Every user of the machine can connect to loopback.
		"--client-cert-auth",
		"--trusted-ca-file=" + r.pki("etcd-ca.crt"),
		"--cert-file=" + r.pki("etcd.crt"),
		"--key-file=" + r.pki("etcd.key"),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + r.pki("etcd-ca.crt"),
		"--peer-cert-file=" + r.pki("etcd.crt"),
		"--peer-key-file=" + r.pki("etcd.key"),
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
