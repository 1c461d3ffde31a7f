package applier

import "github.com/keelson-io/keelson/differ"

// Batches returns the order in which a plan is carried out, as object names.
func Batches(plan *differ.Plan) [][]string {
	var out [][]string
	for _, b := range batches(plan) {
		var names []string
		for _, c := range b.changes {
			names = append(names, c.ID.String())
		}
		out = append(out, names)
	}
	return out
}
