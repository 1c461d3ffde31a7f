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

// kinds are the resources that have to be served before anything runs.
func kinds() []string { return []string{"clonesets", "daemonsets"} }

// looks are how often a cluster is asked for them: a Deployment's pod begins while what
// delivers both is still at work, which takes seconds, or a person has to do it.
func looks() wait.Backoff {
	return wait.Backoff{Duration: 250 * time.Millisecond, Factor: 1.5, Steps: 20, Cap: 10 * time.Second, Jitter: 0.1}
}

// await returns when the cluster serves the kinds, or the context has ended. What it
// waits for it logs when that changes, and [Controller.Ready] says. A cluster that can't
// be asked at first is an error; one that has answered may be away for a while.
func (c *Controller) await(ctx context.Context) error {
	waits := ""
	err := looks().DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		missing, err := c.missing(ctx)
		why := "waits for " + strings.Join(missing, " and ") + " of " + v1beta1.GroupVersion.String() +
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
		c.options.Log.Info("the cluster serves what was waited for")
	}
	return err //nolint:wrapcheck // missing says what was asked
}

// missing are the kinds that the cluster doesn't serve.
func (c *Controller) missing(ctx context.Context) ([]string, error) {
	served, err := c.asks.ServerResourcesForGroupVersionWithContext(ctx, v1beta1.GroupVersion.String())
	switch {
	case apierrors.IsNotFound(err):
		return kinds(), nil
	case err != nil:
		return nil, fmt.Errorf("ask what the cluster serves: %w", err)
	}
	return slices.DeleteFunc(kinds(), func(kind string) bool {
		return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == kind })
	}), nil
}
