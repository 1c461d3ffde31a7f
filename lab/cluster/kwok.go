package cluster

func kwokArgs(s *clusterState) []string {
	return []string{
		"--kubeconfig=" + s.dir.kubeconfig("kwok"),
		"--config=" + s.dir.config("stages.yaml"),
		"--manage-all-nodes=true",
		// No leases. Each lease costs a write every few seconds, and a restarted
		// kwok would wait until the leases of its predecessor expire.
		"--node-lease-duration-seconds=0",
	}
}
