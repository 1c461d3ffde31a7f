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

	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// previewCommand is what Keelson starts itself with to preview a pull request. It is not
// for people.
const previewCommand = "preview-worker"

const (
	// previewTime bounds one preview of a pull request, by the clock.
	previewTime = 3 * time.Minute
	// previewCPU bounds its processor time, of which it may use that of two.
	previewCPU = 2*previewTime + 10*time.Second
	// verdictBytes bound what comes of it: a comment has 64 KiB, and a reason for the log.
	verdictBytes = 256 << 10
	// leastPreviewMemory is what a preview of a small fleet takes.
	leastPreviewMemory = "64Mi"
)

// previewTask is all that the process of one preview is told: it has no login, no key and
// no environment.
type previewTask struct {
	// URL and CacheDir are where the commits are: nothing is fetched.
	URL, CacheDir string
	TrustedKeys   []string // public ones, in files
	Base, Head    string
	// RenderTime and RenderMemory bound one chart, and Bytes the differences.
	RenderTime          time.Duration
	RenderMemory, Bytes int64
}

func newPreviewWorker(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    previewCommand,
		Short:  "Preview a pull request for another keelson",
		Hidden: true,
		Args:   args("none", 0, 0),
		// It has no environment and no folder: there are no settings to read.
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
		RunE: func(cmd *cobra.Command, _ []string) error {
			return renderer.ServeTask(a.env.In, os.NewFile(3, "answers"), func(t previewTask) (forge.Verdict, error) {
				return a.previewProposal(cmd.Context(), t)
			})
		},
	}
}

// previewProposal does a task.
func (a *app) previewProposal(ctx context.Context, t previewTask) (forge.Verdict, error) {
	repo, err := registry.Open(ctx, registry.Options{
		URL: t.URL, CacheDir: t.CacheDir, TrustedKeys: t.TrustedKeys, Proposals: true, Fetched: true,
	})
	if err != nil {
		return forge.Verdict{}, err
	}
	a.rendering.timeout = t.RenderTime
	a.rendering.memory.Quantity = *resource.NewQuantity(t.RenderMemory, resource.BinarySI)
	return forge.Judge(ctx, repo, t.Base, t.Head, a.stranger(t.Bytes))
}

// previewApart previews commits of a repository in a process of its own: whatever they do
// to that process, this one goes on.
func (a *app) previewApart(repo *registry.Repo, cacheDir string, memory int64) (func(ctx context.Context, base, head string) (forge.Verdict, error), error) {
	// The process has another folder.
	cacheDir, err := filepath.Abs(cacheDir)
	if err != nil {
		return nil, fmt.Errorf("find the folder for the cache: %w", err)
	}
	keys := make([]string, len(a.trustedKeys))
	for i, file := range a.trustedKeys {
		if keys[i], err = filepath.Abs(file); err != nil {
			return nil, fmt.Errorf("find the trusted keys: %w", err)
		}
	}
	folders, lock, err := repo.Files()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, base, head string) (forge.Verdict, error) {
		return renderer.RunTask[forge.Verdict](ctx, renderer.TaskOptions{
			Args: []string{previewCommand}, Memory: memory, CPU: previewCPU, AnswerBytes: verdictBytes,
			Read: slices.Concat(folders, keys), Lock: []string{lock},
		}, previewTask{
			URL: repo.URL(), CacheDir: cacheDir, TrustedKeys: keys, Base: base, Head: head,
			RenderTime: a.rendering.timeout, RenderMemory: min(a.rendering.memory.Value(), memory),
			// What the differences take in memory is a part of what comparing them does.
			Bytes: memory / 4,
		})
	}, nil
}
