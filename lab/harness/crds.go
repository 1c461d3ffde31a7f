package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
)

// crdTimeout is how long a new kind may take until it is served.
const crdTimeout = 3 * time.Minute

// InstallCRDs creates the CRDs in the YAML files of a folder, of which there must be one, and
// waits until their kinds are served.
func InstallCRDs(ctx context.Context, client dynamic.Interface, folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("%d CRDs in %s: %w", len(files), folder, err)
	}
	crds := client.Resource(Resource("apiextensions.k8s.io/v1/customresourcedefinitions"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read a CRD: %w", err)
		}
		crd, err := Object(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if _, err := crds.Create(ctx, crd, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, crdTimeout, true, func(ctx context.Context) (bool, error) {
			now, err := crds.Get(ctx, crd.GetName(), metav1.GetOptions{})
			return err == nil && established(now), err //nolint:wrapcheck // wrapped below
		})
		if err != nil {
			return fmt.Errorf("%s is not served: %w", crd.GetName(), err)
		}
	}
	return nil
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, one := range conditions {
		if c, _ := one.(map[string]any); c["type"] == "Established" {
			return c["status"] == "True"
		}
	}
	return false
}
