package applier

import (
	"time"

	"github.com/keelson-io/keelson/differ"
)

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

// SetInstanceLimits makes pages and the limit of what is read small.
func (c *Cluster) SetInstanceLimits(page int64, all int) {
	c.limits = instanceLimits{page: page, all: all}
}

// ForgetInstances drops what was found of custom resources.
func (c *Cluster) ForgetInstances() { clear(c.lookedAt) }

// Unpack decodes the content of a record's Secret.
func Unpack(data []byte) (Record, error) {
	var r Record
	err := new(packer).unpack(data, &r)
	return r, err
}

// Soonest is when an apply looks again that has several reasons to.
func Soonest(words ...time.Duration) time.Duration {
	var o Outcome
	for _, after := range words {
		o.lookAgain(after)
	}
	return o.Again
}
