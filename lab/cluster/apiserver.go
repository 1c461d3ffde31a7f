package cluster

import "fmt"

// issuer is the issuer of service account tokens, the same as with kubeadm.
const issuer = "https://kubernetes.default.svc.cluster.local"

func apiserverArgs(r *record) []string {
	args := []string{
		"--bind-address=" + r.Options.host(),
		fmt.Sprintf("--secure-port=%d", r.Ports.APIServer),
		"--tls-cert-file=" + r.pki("apiserver.crt"),
		"--tls-private-key-file=" + r.pki("apiserver.key"),
		"--client-ca-file=" + r.pki("ca.crt"),
		"--allow-privileged=true",

		"--etcd-servers=" + r.etcd(),
		"--etcd-cafile=" + r.pki("etcd-ca.crt"),
		"--etcd-certfile=" + r.pki("etcd.crt"),
		"--etcd-keyfile=" + r.pki("etcd.key"),

		"--service-cluster-ip-range=" + r.Options.ServiceCIDR,
		"--service-account-issuer=" + issuer,
		"--service-account-key-file=" + r.pki("service-account.pub"),
		"--service-account-signing-key-file=" + r.pki("service-account.key"),

		// The aggregation layer, so that an APIService works as in other clusters.
		"--requestheader-client-ca-file=" + r.pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + r.pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + r.pki("front-proxy-client.key"),

		"--audit-policy-file=" + r.config("audit-policy.yaml"),
		"--audit-log-path=" + r.auditLog(),
		"--audit-log-format=json",
		"--audit-log-mode=blocking", // an entry is in the log before its request is answered
		"--audit-log-maxsize=1024",  // MB; readers keep offsets, so rotate late
		"--audit-log-maxbackup=1",

		"--profiling=false",
	}
	if r.Options.real() {
		return append(
			args,
			"--authorization-mode=Node,RBAC",
			"--advertise-address="+machine,
			"--kubelet-certificate-authority="+r.pki("ca.crt"),
			"--kubelet-client-certificate="+r.pki(kubeletUser+".crt"),
			"--kubelet-client-key="+r.pki(kubeletUser+".key"),
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
