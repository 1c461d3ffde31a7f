package delivery

import "context"

// Previews writes to pull requests. One process of a fleet does.
type Previews interface {
	// Run works until the context ends.
	Run(ctx context.Context)
	// Soon has the pull requests looked at. It returns at once.
	Soon()
}
