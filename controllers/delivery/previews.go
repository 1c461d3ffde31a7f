package delivery

import "context"

// Previews writes to pull requests, in one process of a fleet.
type Previews interface {
	// Run works until the context ends.
	Run(ctx context.Context)
	// Soon requests a check of the pull requests. It does not block.
	Soon()
}
