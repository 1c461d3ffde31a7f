// Package slowstart runs many similar calls in growing batches. If all fail for one reason, such
// as a quota or a webhook, only few have failed before that is known.
package slowstart

import (
	"sync"
)

// AtFirst is the size of the first batch.
const AtFirst = 1

// Run calls do with 0 to n-1, concurrently within a batch. Each batch is twice as large as the
// previous one, but at most atOnce. After a batch with a failure no other batch begins. Run
// returns how many calls succeeded, and the first error by index.
func Run(n, atOnce int, do func(i int) error) (int, error) {
	succeeded := 0
	for begun, batch := 0, AtFirst; begun < n; batch *= 2 {
		batch = min(batch, n-begun, max(atOnce, 1))
		errs := make([]error, batch)
		var wg sync.WaitGroup
		for i := range batch {
			wg.Go(func() { errs[i] = do(begun + i) })
		}
		wg.Wait()
		begun += batch
		var first error
		for _, err := range errs {
			if err == nil {
				succeeded++
			} else if first == nil {
				first = err
			}
		}
		if first != nil {
			return succeeded, first
		}
	}
	return succeeded, nil
}
