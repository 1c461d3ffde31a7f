package cmd

import (
	"errors"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// each runs do for several clusters and joins the errors. An error for one cluster doesn't stop the
// rest. A starting cluster uses more than one core, so the number of cores limits the parallelism.
func each(names []string, do func(name string) error) error {
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	errs := make([]error, len(names))
	for i, name := range names {
		group.Go(func() error {
			errs[i] = do(name)
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	return errors.Join(errs...)
}
