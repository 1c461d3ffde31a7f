package registry

// Values are one delivery's meta-config: layers and the cluster's own file,
// merged by Helm's rules (maps merge, lists replace, null deletes), with the
// place that each value came from. They are immutable.
type Values struct {
	merged map[string]any
}

// ValuesFrom returns Values that hold the given map and know no origins. It is
// for tests and for values that don't come from a fleet repository. The caller
// must not modify the map afterwards; nil stands for no values at all.
func ValuesFrom(merged map[string]any) *Values {
	if merged == nil {
		merged = map[string]any{}
	}
	return &Values{merged: merged}
}

// Map returns the merged values, never nil. A null is kept: it deletes the
// chart's own value when Helm merges it. The caller must not modify the map.
// The Map of a nil *Values is empty.
func (v *Values) Map() map[string]any {
	if v == nil {
		return map[string]any{}
	}
	return v.merged
}
