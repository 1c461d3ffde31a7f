// Package batchtest draws updates in batches for the state machines of workloads.
package batchtest

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// Draw returns batches of one failed pod at most, or nil, which means none.
func Draw(rt *rapid.T) *v1beta1.UpdateBatches {
	percent, number := intstr.FromString, intstr.FromInt32
	sizes := rapid.SampledFrom([][]intstr.IntOrString{nil, {percent("30%"), percent("70%")}, {number(1)}, {number(2), percent("50%"), number(1)}, {percent("100%")}}).Draw(rt, "sizes")
	if sizes == nil {
		return nil
	}
	return &v1beta1.UpdateBatches{Sizes: sizes, Auto: rapid.Bool().Draw(rt, "auto"), MaxFailed: new(number(1))}
}
