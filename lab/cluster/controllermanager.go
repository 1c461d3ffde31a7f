package cluster

import "strings"

// controllers returns the controllers that a cluster of the lab needs. Controllers
// without work here are left out, because they only cost watches: clouds, routes,
// attaching of volumes, signing of certificates, device claims.
func controllers() []string {
	return []string{
		"clusterrole-aggregation-controller",
		"cronjob-controller",
		"daemonset-controller",
		"deployment-controller",
		"disruption-controller",
		"endpoints-controller",
		"endpointslice-controller",
		"garbage-collector-controller",
		"horizontal-pod-autoscaler-controller",
		"job-controller",
		"namespace-controller",
		"node-lifecycle-controller",
		"persistentvolume-binder-controller",
		"persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller",
		"pod-garbage-collector-controller",
		"replicaset-controller",
		"resourcequota-controller",
		"root-ca-certificate-publisher-controller",
		"serviceaccount-controller",
		"serviceaccount-token-controller",
		"statefulset-controller",
		"ttl-after-finished-controller",
	}
}

func controllerManagerArgs(s *clusterState) []string {
	args := []string{
		"--kubeconfig=" + s.dir.kubeconfig("kube-controller-manager"),
		"--controllers=" + strings.Join(controllers(), ","),
		// One user per controller, as in other clusters, so that the audit log
		// and managedFields distinguish the controllers.
		"--use-service-account-credentials=true",
		"--root-ca-file=" + s.dir.pki("ca.crt"),
		"--service-account-private-key-file=" + s.dir.pki("service-account.key"),
		"--service-cluster-ip-range=" + s.Options.ServiceCIDR,
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=100",
		"--kube-api-burst=200",
		"--profiling=false",
	}
	if s.Options.real() {
		return args
	}
	// kwok writes no heartbeat; see files/stages/node.yaml.
	return append(args, "--node-monitor-period=60s", "--node-monitor-grace-period=8760h")
}
