package cluster

func kwokArgs(r *record) []string {
	return []string{
		"--kubeconfig=" + r.kubeconfig("kwok"),
		"--config=" + r.config("stages.yaml"),
		"--manage-all-nodes=true",
		// No leases: each is a write every few seconds, and a kwok that starts
		// again would wait for those of the one before it to run out.
		"--node-lease-duration-seconds=0",
	}
}
