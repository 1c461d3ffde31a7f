// Package slowstart does many things of a kind, few at first: where all of them fail
// for one reason, a quota or a webhook, few have failed before it is known.
package slowstart

import (
	"sync"
)

// AtFirst is how many are tried first.
const AtFirst = 1

// Run calls do with 0 to n-1: first with one, then with twice as many at a time, as
// long as all succeed, and never with more than atOnce. After a batch in which one
// failed no other begins. It returns how many succeeded, and the first error.
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
