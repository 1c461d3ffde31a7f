package delivery

import "github.com/keelson-io/keelson/api/v1alpha1"

// onUnknownDelivery handles an unknown Delivery of the hub, such as after its store was restored. If this
// process has the cluster, the component is queued. If git does not have the cluster, the Delivery
// is deleted.
func (c *Controller) onUnknownDelivery(d *v1alpha1.Delivery) {
	cluster, component := d.Labels[v1alpha1.LabelCluster], d.Labels[v1alpha1.LabelComponent]
	c.mu.Lock()
	r, fleet := c.agents[cluster], c.reader.current()
	c.mu.Unlock()
	if fleet == nil || cluster == "" || component == "" || d.Annotations[v1alpha1.AnnotationFleet] != fleet.Spec.Name {
		return // it belongs to another fleet
	}
	if r == nil {
		if c.only == "" && fleet.Cluster(cluster) == nil {
			c.log.Info("a Delivery of a cluster that is not in git is deleted", "delivery", d.Name)
			c.writer.Discard(d)
		}
		return
	}
	r.agent.state.add(component)
	r.agent.queue.Add(component)
}

// sweep deletes the Deliveries of clusters that left git while no process was running.
func (c *Controller) sweep() {
	fleet := c.reader.current()
	if fleet == nil {
		return
	}
	for _, d := range c.writer.TakeFirst() {
		if fleet.Cluster(d.Labels[v1alpha1.LabelCluster]) == nil {
			c.onUnknownDelivery(d)
		}
	}
}
