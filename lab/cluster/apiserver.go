package cluster

import "fmt"

// issuer is the issuer of service account tokens, the same as with kubeadm.
const issuer = "https://kubernetes.default.svc.cluster.local"

func apiserverArgs(s *clusterState) []string {
	args := []string{
		"--bind-address=" + s.Options.host(),
		fmt.Sprintf("--secure-port=%d", s.Ports.APIServer),
		"--tls-cert-file=" + s.dir.pki("apiserver.crt"),
		"--tls-private-key-file=" + s.dir.pki("apiserver.key"),
		"--client-ca-file=" + s.dir.pki("ca.crt"),
		"--allow-privileged=true",

		"--etcd-servers=" + s.etcd(),
		"--etcd-cafile=" + s.dir.pki("etcd-ca.crt"),
		"--etcd-certfile=" + s.dir.pki("etcd.crt"),
		"--etcd-keyfile=" + s.dir.pki("etcd.key"),

		"--service-cluster-ip-range=" + s.Options.ServiceCIDR,
		"--service-account-issuer=" + issuer,
		"--service-account-key-file=" + s.dir.pki("service-account.pub"),
		"--service-account-signing-key-file=" + s.dir.pki("service-account.key"),

		// The aggregation layer, so that an APIService works as in other clusters.
		"--requestheader-client-ca-file=" + s.dir.pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + s.dir.pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + s.dir.pki("front-proxy-client.key"),

		"--audit-policy-file=" + s.dir.config("audit-policy.yaml"),
		"--audit-log-path=" + s.dir.auditLog(),
		"--audit-log-format=json",
		"--audit-log-mode=blocking", // an entry is in the log before its request is answered
		"--audit-log-maxsize=1024",  // MB; readers keep offsets, so rotate late
		"--audit-log-maxbackup=1",

		"--profiling=false",
	}
	if s.Options.real() {
		return append(
			args,
			"--authorization-mode=Node,RBAC",
			"--advertise-address="+machine,
			"--kubelet-certificate-authority="+s.dir.pki("ca.crt"),
			"--kubelet-client-certificate="+s.dir.pki(kubeletUser+".crt"),
			"--kubelet-client-key="+s.dir.pki(kubeletUser+".key"),
			"--kubelet-preferred-address-types=InternalIP",
		)
	}
	return append(
		args,
		"--authorization-mode=RBAC",
		// No pod connects to the API server, so its Service needs no endpoint. The
		// reconciler would write the endpoint every 10 seconds. The API server needs an
		// address all the same, and detects none on a machine without a network.
		// 192.0.2.0/24 is reserved for documentation (RFC 5737).
		"--endpoint-reconciler-type=none",
		"--advertise-address=192.0.2.1",
	)
}
