package engines_test

import (
	"context"
	"fmt"

	"github.com/argoproj/argo-cd/gitops-engine/pkg/diff"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/utils/tracing"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// argoManager is the field manager of Argo CD.
const argoManager = "argocd-controller"

// gitopsEngine compares as Argo CD does with gitops-engine, in each of the three modes. Live
// objects have managedFields, as in Argo CD's cluster cache.
type gitopsEngine struct {
	*apiServer
	parser  *managedfields.GvkParser
	apply   kube.ResourceOperations
	dryRuns diff.KubeApplier
}

func newGitopsEngine(ctx context.Context, s *apiServer) (e *gitopsEngine, disconnect func(), err error) {
	kubectl := &kube.KubectlCmd{Log: logr.Discard(), Tracer: tracing.NopTracer{}}
	e = &gitopsEngine{apiServer: s}
	// Load the schemas as Argo CD's cluster cache does. The API server publishes the schema of a
	// CRD some moments after it starts to serve the kind.
	err = until(ctx, func(context.Context) (bool, error) {
		if _, e.parser, err = kubectl.LoadOpenAPISchema(s.config); err != nil {
			return false, err
		}
		for gvk := range s.objects.kinds() {
			if e.parser.Type(gvk) == nil {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("load the schema: %w", err)
	}
	apply, forget, err := kubectl.ManageResources(s.config)
	if err != nil {
		return nil, nil, err
	}
	dryRuns, forgetToo, err := kubectl.ManageServerSideDiffDryRuns(s.config)
	if err != nil {
		forget()
		return nil, nil, err
	}
	e.apply, e.dryRuns = apply, dryRuns
	return e, func() { forget(); forgetToo() }, nil
}

// settleThreeWay is Argo CD's default: kubectl's client-side apply, and a three-way merge with the
// annotation that this apply writes.
func (e *gitopsEngine) settleThreeWay(ctx context.Context, want *unstructured.Unstructured) (check, error) {
	return e.settle(ctx, want, false)
}

// settleStructured compares as Argo CD does with ServerSideApply=true.
func (e *gitopsEngine) settleStructured(ctx context.Context, want *unstructured.Unstructured) (check, error) {
	return e.settle(ctx, want, true, diff.WithStructuredMergeDiff(true))
}

// settleServerSide compares as Argo CD does with ServerSideDiff=true: it takes the live object from
// the cache and makes a dry-run apply.
func (e *gitopsEngine) settleServerSide(ctx context.Context, want *unstructured.Unstructured) (check, error) {
	return e.settle(ctx, want, true, diff.WithServerSideDiff(true),
		diff.WithServerSideDryRunner(diff.NewK8sServerSideDryRunner(e.dryRuns)))
}

func (e *gitopsEngine) settle(ctx context.Context, want *unstructured.Unstructured, serverSide bool, mode ...diff.Option) (check, error) {
	_, err := e.apply.ApplyResource(ctx, want.DeepCopy(), cmdutil.DryRunNone, false, false, serverSide, argoManager)
	if err != nil {
		return nil, err
	}
	live, err := e.read(ctx, want)
	if err != nil {
		return nil, err
	}
	options := append([]diff.Option{
		diff.WithLogr(logr.Discard()), diff.WithGVKParser(e.parser), diff.WithManager(argoManager), diff.WithNormalizer(withoutStatus{}),
	}, mode...)
	return func(_ context.Context, want *unstructured.Unstructured) (bool, error) {
		result, err := diff.Diff(want, live, options...)
		if err != nil {
			return false, err
		}
		return result.Modified, nil
	}, nil
}

// withoutStatus removes the status, which Argo CD ignores by default. Argo CD's own normalizer
// costs more: it applies a JSON patch to the serialised object.
type withoutStatus struct{}

func (withoutStatus) Normalize(o *unstructured.Unstructured) error {
	unstructured.RemoveNestedField(o.Object, "status")
	return nil
}
