package delivery

import "sync"

// movedClusters are the clusters whose connections lead to another server by now. Such a cluster
// needs a new agent: the state of the old agent is that of the old server. mu guards clusters.
type movedClusters struct {
	signal chan struct{} // signals that a cluster was added

	mu       sync.Mutex
	clusters map[string]bool
}

func newMovedClusters() *movedClusters {
	return &movedClusters{signal: make(chan struct{}, 1), clusters: map[string]bool{}}
}

// add notes that the connection of a cluster leads to another server.
func (m *movedClusters) add(cluster string) {
	m.mu.Lock()
	m.clusters[cluster] = true
	m.mu.Unlock()
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

// take returns the clusters that were added since the last call.
func (m *movedClusters) take() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.clusters
	m.clusters = map[string]bool{}
	return taken
}
