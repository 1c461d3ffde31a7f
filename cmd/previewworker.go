package cmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
)

// previewCommand is the hidden command that Keelson runs to preview a pull request.
const previewCommand = "preview-worker"

const (
	// previewTime bounds the elapsed time of one preview of a pull request.
	previewTime = 3 * time.Minute
	// previewCPU bounds the processor time of one preview, enough for two processors.
	previewCPU = 2*previewTime + 10*time.Second
	// verdictBytes bounds the result: a comment of 64 KiB, and a reason for the log.
	verdictBytes = 256 << 10
	// leastPreviewMemory is the need of a small fleet.
	leastPreviewMemory = "64Mi"
)

// previewTask is the whole input of a preview process, which has no login, no key and no
// environment.
type previewTask struct {
	// URL and CacheDir locate the commits: nothing is fetched.
	URL, CacheDir string
	TrustedKeys   []string // files of public keys
	Base, Head    string
	// RenderTime and RenderMemory bound one chart. Bytes bounds the differences.
	RenderTime          time.Duration
	RenderMemory, Bytes int64
}

func newPreviewWorker(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    previewCommand,
		Short:  "Preview a pull request for another keelson",
		Hidden: true,
		Args:   cli.Args("none", 0, 0),
		// The process has no environment and no folder, so there are no settings to read.
		PersistentPreRun: func(*cobra.Command, []string) { a.Started = true },
		RunE: func(cmd *cobra.Command, _ []string) error {
			return renderer.ServeTask(a.Env.In, os.NewFile(3, "answers"), func(t previewTask) (forge.Verdict, error) {
				return a.previewProposal(cmd.Context(), t)
			})
		},
	}
}

// previewProposal carries out a task.
func (a *app) previewProposal(ctx context.Context, t previewTask) (forge.Verdict, error) {
	repo, err := registry.Open(ctx, gitrepo.Options{
		URL: t.URL, CacheDir: t.CacheDir, TrustedKeys: t.TrustedKeys, Proposals: true, Fetched: true,
	})
	if err != nil {
		return forge.Verdict{}, err
	}
	a.rendering.timeout = t.RenderTime
	a.rendering.memory.Quantity = *resource.NewQuantity(t.RenderMemory, resource.BinarySI)
	return forge.Judge(ctx, repo, t.Base, t.Head, a.stranger(t.Bytes))
}

// previewApart previews commits of a repository in a separate process. A failure of that process
// does not affect this one.
func (a *app) previewApart(repo *registry.Repo, cacheDir string, memory int64) (func(ctx context.Context, base, head string) (forge.Verdict, error), error) {
	// The separate process has another working folder.
	cacheDir, err := filepath.Abs(cacheDir)
	if err != nil {
		return nil, fmt.Errorf("find the folder for the cache: %w", err)
	}
	keys := make([]string, len(a.TrustedKeys))
	for i, file := range a.TrustedKeys {
		if keys[i], err = filepath.Abs(file); err != nil {
			return nil, fmt.Errorf("find the trusted keys: %w", err)
		}
	}
	folders, lock, err := repo.Git().Files()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, base, head string) (forge.Verdict, error) {
		return renderer.RunTask[forge.Verdict](ctx, renderer.TaskOptions{
			Args: []string{previewCommand}, Memory: memory, CPU: previewCPU, AnswerBytes: verdictBytes,
			Read: slices.Concat(folders, keys), Lock: []string{lock},
		}, previewTask{
			URL: repo.Git().URL(), CacheDir: cacheDir, TrustedKeys: keys, Base: base, Head: head,
			RenderTime: a.rendering.timeout, RenderMemory: min(a.rendering.memory.Value(), memory),
			// The memory of the differences is a part of the memory of the comparison.
			Bytes: memory / 4,
		})
	}, nil
}
