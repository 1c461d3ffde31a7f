package applier_test

import (
	"context"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// TestObservedObjects: what the objects of one component take together, as the cluster has
// them, is bounded.
func TestObservedObjects(t *testing.T) {
	t.Parallel()
	c, err := applier.New(applier.Options{Name: "hostile", Config: &rest.Config{Host: "http://localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	large := map[string]any{"data": strings.Repeat("x", 1<<20)}
	for n, fits := range map[int]bool{90: true, 100: false} {
		err := c.ObserveObjects(t.Context(), n, func(context.Context, differ.ID) (map[string]any, error) { return large, nil })
		if (err == nil) != fits || err != nil && !strings.Contains(err.Error(), "more than 96 MiB of memory, as the cluster has them: split the component") {
			t.Errorf("%d objects of a mebibyte: the error is %v", n, err)
		}
	}
}
