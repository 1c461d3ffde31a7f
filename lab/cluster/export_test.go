package cluster

// Stages and Policy expose what is written for a cluster.
func Stages() []byte            { return stages() }
func Policy(level Audit) []byte { return policy(level) }

// PodRange and NodeAddress expose what a node of an index has of the network.
func PodRange(i int) string    { return podRange(i) }
func NodeAddress(i int) string { return nodeAddress(i) }

// MaxNodes is how many there may be.
const MaxNodes = maxNodes

// Args exposes the command lines of a cluster's components.
func Args(dir string, o Options) map[string][]string {
	s := &clusterState{dir: folder(dir), Name: "a", Options: o, Ports: ports{Etcd: 16001, EtcdPeer: 16002, APIServer: 16003}}
	all := map[string][]string{}
	for _, c := range components(o) {
		all[c.name] = c.args(s)
	}
	return all
}

// Apply exposes Change.apply.
func (c Change) Apply(to Options, exists bool) (Options, error) { return c.apply(to, exists) }
