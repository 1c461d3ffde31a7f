package cluster

// ports of a cluster, kept over restarts.
type ports struct {
	Etcd      int `json:"etcd"`
	EtcdPeer  int `json:"etcdPeer"`
	APIServer int `json:"apiserver"`
	Registry  int `json:"registry,omitempty"` // of a cluster with real nodes
}
