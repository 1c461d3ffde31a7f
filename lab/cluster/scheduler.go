package cluster

func schedulerArgs(s *clusterState) []string {
	return []string{
		"--kubeconfig=" + s.dir.kubeconfig("kube-scheduler"),
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=100",
		"--kube-api-burst=200",
		"--profiling=false",
	}
}
