package cluster

// ports are the ports of a cluster. They stay the same after a restart.
type ports struct {
	Etcd      int `json:"etcd"`
	EtcdPeer  int `json:"etcdPeer"`
	APIServer int `json:"apiserver"`
	Registry  int `json:"registry,omitempty"` // only with real nodes
}
