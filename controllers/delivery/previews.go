package delivery

import (
	"context"

	"github.com/keelson-io/keelson/controllers/shard"
)

// Previews writes to pull requests, in one process of a fleet.
type Previews interface {
	// Run works until the context ends.
	Run(ctx context.Context)
	// Soon requests a check of the pull requests. It does not block.
	Soon()
}

// previews are the task of previews, and its place among the singleton tasks.
type previews struct {
	task    Previews // nil: no previews
	working singletonTask
}

func newPreviews(task Previews) previews {
	return previews{task: task, working: singletonTask{
		name: shard.Previews, taken: "pull requests get previews from here", left: "previews of pull requests go to another replica",
	}}
}
