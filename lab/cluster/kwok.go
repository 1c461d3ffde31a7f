package cluster

func kwokArgs(r *record) []string {
	return []string{
		"--kubeconfig=" + r.kubeconfig("kwok"),
		"--config=" + r.config("stages.yaml"),
		"--manage-all-nodes=true",
		// No leases. Each lease costs a write every few seconds, and a restarted
		// kwok would wait until the leases of its predecessor expire.
		"--node-lease-duration-seconds=0",
	}
}
