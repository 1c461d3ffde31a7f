package engines_test

import (
	"context"

	"github.com/fluxcd/pkg/ssa"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// fluxSSA compares as Flux's kustomize-controller does: it reads the object and makes a dry-run
// apply.
type fluxSSA struct{ manager *ssa.ResourceManager }

func newFluxSSA(s *apiServer) fluxSSA {
	// There is no status poller: the benchmarks do not wait for health.
	return fluxSSA{ssa.NewResourceManager(s.client, nil, ssa.Owner{
		Field: "kustomize-controller", Group: "kustomize.toolkit.fluxcd.io",
	})}
}

func (f fluxSSA) settle(ctx context.Context, want *unstructured.Unstructured) (check, error) {
	if _, err := f.manager.Apply(ctx, want.DeepCopy(), ssa.DefaultApplyOptions()); err != nil {
		return nil, err
	}
	return func(ctx context.Context, want *unstructured.Unstructured) (bool, error) {
		change, _, _, err := f.manager.Diff(ctx, want, ssa.DefaultDiffOptions())
		if err != nil {
			return false, err
		}
		return change.Action != ssa.UnchangedAction, nil
	}, nil
}
