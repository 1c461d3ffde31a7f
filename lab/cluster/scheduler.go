package cluster

func schedulerArgs(r *record) []string {
	return []string{
		"--kubeconfig=" + r.kubeconfig("kube-scheduler"),
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=100",
		"--kube-api-burst=200",
		"--profiling=false",
	}
}
