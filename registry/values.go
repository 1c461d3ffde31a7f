package registry

// Values are one delivery's meta-config: layers and the cluster's own file,
// merged by Helm's rules (maps merge, lists replace, null deletes), with the
// place that each value came from. They are immutable.
type Values struct {
	merged  map[string]any
	origins map[string]Position // by path, see [PathKey]
}

// Map returns the merged values. A null is kept: it deletes the chart's own
// value when Helm merges it. The caller must not modify the map.
func (v *Values) Map() map[string]any { return v.merged }
