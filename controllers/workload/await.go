package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

// kinds returns the resources that the cluster must serve before the controller runs.
func kinds() []string { return []string{"clonesets", "daemonsets", "statefulsets"} }

// pollBackoff returns the delays between checks for the resources. The CRDs are usually applied
// seconds after the Deployment, or by a person later.
func pollBackoff() wait.Backoff {
	return wait.Backoff{Duration: 250 * time.Millisecond, Factor: 1.5, Steps: 20, Cap: 10 * time.Second, Jitter: 0.1}
}

// await returns nil as soon as the cluster serves the resources, or an error when the context
// ends. It logs each change of the reason for waiting, and [Controller.Ready] reports that
// reason. A failure of the first check is returned as an error. Later failures are retried.
func (c *Controller) await(ctx context.Context) error {
	waits := ""
	err := pollBackoff().DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		missing, err := c.missing(ctx)
		why := "waits for " + strings.Join(missing, ", ") + " of " + v1beta1.GroupVersion.String() +
			", which the cluster doesn't serve yet: apply the CRDs of components/workload-controllers"
		switch {
		case err != nil && waits == "":
			return false, err
		case err != nil:
			why = err.Error()
		case len(missing) == 0:
			return true, nil
		}
		if why != waits {
			waits = why
			c.unready.Store(&why)
			c.options.Log.Warn(why)
		}
		return false, nil
	})
	if err == nil && waits != "" {
		c.options.Log.Info("the cluster serves the missing kinds now")
	}
	return err //nolint:wrapcheck // missing says what was asked
}

// missing returns the resources that the cluster does not serve.
func (c *Controller) missing(ctx context.Context) ([]string, error) {
	served, err := c.asks.ServerResourcesForGroupVersionWithContext(ctx, v1beta1.GroupVersion.String())
	switch {
	case apierrors.IsNotFound(err):
		return kinds(), nil
	case err != nil:
		return nil, fmt.Errorf("discover the kinds of the cluster: %w", err)
	}
	return slices.DeleteFunc(kinds(), func(kind string) bool {
		return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == kind })
	}), nil
}
