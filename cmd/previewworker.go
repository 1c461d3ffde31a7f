package cmd

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/rendering"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/controllers/preview"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/sops"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
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

func newPreviewWorker(inv *cli.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:    previewCommand,
		Short:  "Preview a pull request for another keelson",
		Hidden: true,
		Args:   cli.Args("none", 0, 0),
		// The process has no environment and no folder, so there are no settings to read.
		PersistentPreRun: func(*cobra.Command, []string) { inv.Started = true },
		RunE: func(cmd *cobra.Command, _ []string) error {
			return renderer.ServeTask(inv.Env.In, os.NewFile(3, "answers"), func(t previewTask) (forge.Verdict, error) {
				return previewProposal(cmd.Context(), inv, t)
			})
		},
	}
}

// previewProposal carries out a task.
func previewProposal(ctx context.Context, inv *cli.Invocation, t previewTask) (forge.Verdict, error) {
	repo, err := registry.Open(ctx, gitrepo.Options{
		URL: t.URL, CacheDir: t.CacheDir, TrustedKeys: t.TrustedKeys, Proposals: true, Fetched: true,
	})
	if err != nil {
		return forge.Verdict{}, err
	}
	u := newUntrustedPreviewer(inv.Env.Now, rendering.Limits{Time: t.RenderTime, Memory: t.RenderMemory}, t.Bytes)
	defer u.pool.Close()
	return forge.Judge(ctx, repo, t.Base, t.Head, u.previews())
}

// previewLimits bound the preview of one pull request.
type previewLimits struct {
	render rendering.Limits
	memory int64 // bytes
}

// previewApart previews commits of a repository in a separate process. A failure of that process
// does not affect this one.
func previewApart(repo *registry.Repo, cacheDir string, trustedKeys []string, limits previewLimits) (func(ctx context.Context, base, head string) (forge.Verdict, error), error) {
	// The separate process has another working folder.
	cacheDir, err := filepath.Abs(cacheDir)
	if err != nil {
		return nil, fmt.Errorf("find the folder for the cache: %w", err)
	}
	keys := make([]string, len(trustedKeys))
	for i, file := range trustedKeys {
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
			Args: []string{previewCommand}, Memory: limits.memory, CPU: previewCPU, AnswerBytes: verdictBytes,
			Read: slices.Concat(folders, keys), Lock: []string{lock},
		}, previewTask{
			URL: repo.Git().URL(), CacheDir: cacheDir, TrustedKeys: keys, Base: base, Head: head,
			RenderTime: limits.render.Time, RenderMemory: min(limits.render.Memory, limits.memory),
			// The memory of the differences is a part of the memory of the comparison.
			Bytes: limits.memory / 4,
		})
	}, nil
}

// untrustedPreviewer previews untrusted proposals. It has its own workers, cache and redactors, and no keys:
// with a key, a chart that reverses a password would show it. It handles one cluster at a time,
// which bounds its memory.
type untrustedPreviewer struct {
	pool  *renderer.Pool
	now   func() time.Time
	bytes int64 // bounds the differences
}

// newUntrustedPreviewer starts no process before the first preview. The caller closes its pool.
func newUntrustedPreviewer(now func() time.Time, limits rendering.Limits, bytes int64) *untrustedPreviewer {
	return &untrustedPreviewer{now: now, bytes: bytes, pool: renderer.NewPool(renderer.PoolOptions{
		Args: []string{rendering.WorkerCommand}, Workers: 1, Timeout: limits.Time, Memory: limits.Memory,
	})}
}

// previews returns the function that previews proposals, with one cache for all of them.
func (u *untrustedPreviewer) previews() func(context.Context, *registry.Fleet, *registry.Fleet) (*preview.Preview, *redact.Redactor, error) {
	const cacheBytes = 64 << 20
	cache := renderer.NewCache(renderer.NewUnsealing(u.pool, sops.Keys{}), cacheBytes)
	caps := renderer.NewExtensions(renderer.DefaultCapabilities())
	return func(ctx context.Context, base, head *registry.Fleet) (*preview.Preview, *redact.Redactor, error) {
		key := make([]byte, 32)
		if _, err := rand.Read(key); err != nil {
			return nil, nil, fmt.Errorf("make a key: %w", err)
		}
		own := &rendering.Redacting{Next: cache, Redactor: redact.New(), Bound: &rendering.SecretBound{Seen: map[redact.Value]bool{}}}
		p, err := preview.Make(ctx, preview.Options{
			Base: base, Head: head, MaskKey: key, Workers: 1, Bytes: u.bytes, Now: u.now(), ClusterTakes: clusterTakes,
			Render: func(c *registry.Cluster) preview.Render { return renderer.NewTargets(own, c, caps).Render },
		})
		if err == nil && own.Redactor.Effort() > rendering.UntrustedEffort {
			err = forge.ErrTooManySecrets
		}
		return p, own.Redactor, err
	}
}
