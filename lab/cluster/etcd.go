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
		// Loopback is open to everyone on the machine.
		"--client-cert-auth",
		"--trusted-ca-file=" + r.pki("etcd-ca.crt"),
		"--cert-file=" + r.pki("etcd.crt"),
		"--key-file=" + r.pki("etcd.key"),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + r.pki("etcd-ca.crt"),
		"--peer-cert-file=" + r.pki("etcd.crt"),
		"--peer-key-file=" + r.pki("etcd.key"),
		"--log-level=warn",
		// A lab may lose its data with the machine; a killed process loses none.
		"--unsafe-no-fsync",
		// One member never misses a heartbeat of another, and ticking is what
		// etcd does when idle. It elects itself within two election timeouts.
		"--heartbeat-interval=200",
		"--election-timeout=1000",
		// Entries are held in memory until a snapshot.
		"--snapshot-count=2000",
		"--quota-backend-bytes=1073741824",
	}
}
