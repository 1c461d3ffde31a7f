package cmd

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/controllers/delivery"
	"github.com/keelson-io/keelson/controllers/forge"
	"github.com/keelson-io/keelson/controllers/preview"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/sops"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// forgeOptions locate the pull requests.
type forgeOptions struct {
	kind, url, repository, tokenFile string
	memory                           resource.QuantityValue // of one preview
}

// add adds the flags. The help text starts with of, followed by the name of the forge.
func (o *forgeOptions) add(f *pflag.FlagSet, of string) {
	f.StringVar(&o.kind, "forge", "", of+" a `FORGE`: gitea (Forgejo, too),\ngithub or gitlab; empty: none")
	f.StringVar(&o.url, "forge-url", "", "`URL` of the forge (default: github.com or gitlab.com)")
	f.StringVar(&o.repository, "forge-repository", "", "`OWNER/NAME` of the fleet repository on the forge")
	f.StringVar(&o.tokenFile, "forge-token-file", "", "`FILE` of a token that may read the repository, write comments and pull\nrequests, and set commit statuses; it is read again for each request")
}

// addMemory adds the flag for previews.
func (o *forgeOptions) addMemory(f *pflag.FlagSet) {
	o.memory = resource.QuantityValue{Quantity: resource.MustParse("512Mi")}
	f.Var(&o.memory, "preview-memory", "`BYTES` of memory that the preview of one pull request may take")
}

func (o *forgeOptions) checkMemory() error {
	if least := resource.MustParse(leastPreviewMemory); o.memory.Cmp(least) < 0 {
		return cli.Usagef("--preview-memory takes at least %s, and not %s", least.String(), o.memory.String())
	}
	return nil
}

func (o *forgeOptions) check() error {
	switch {
	case o.kind == "" && (o.url != "" || o.repository != "" || o.tokenFile != ""):
		return cli.Usagef("--forge-url, --forge-repository and --forge-token-file are for a forge: give --forge, too")
	case o.kind == "":
		return nil
	case o.repository == "":
		return cli.Usagef("--forge needs --forge-repository OWNER/NAME")
	case o.tokenFile == "":
		return cli.Usagef("--forge needs --forge-token-file: a forge takes nothing without a token")
	}
	return cli.OneOf("--forge", o.kind, forge.Kinds()...)
}

// openForge connects to a forge; nil without --forge.
func (a *app) openForge(o forgeOptions, wrap func(http.RoundTripper) http.RoundTripper, r prometheus.Registerer) (forge.Forge, error) {
	if o.kind == "" {
		return nil, nil //nolint:nilnil // nothing was asked for
	}
	f, err := forge.Open(forge.Options{
		Kind: o.kind, URL: o.url, Repository: o.repository, TokenFile: o.tokenFile,
		Hide: a.Env.Redactor.Hide, Wrap: wrap, Now: a.Env.Now, Registry: r,
	})
	if err != nil {
		return nil, cli.Usagef("--forge: %w", err)
	}
	return f, nil
}

// pulls prepares the loop that puts previews on pull requests; nil without a forge.
func (a *app) pulls(ctx context.Context, o controllerOptions, l forge.LoopOptions) (delivery.Previews, error) {
	if l.Forge == nil {
		return nil, nil //nolint:nilnil // nothing was asked for
	}
	// A separate clone, so that pull requests, however large, can't disturb deliveries.
	dir := o.cacheDir
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find a folder for the cache: %w", err)
		}
		dir = filepath.Join(user, "keelson")
	}
	options := a.repoOptions(filepath.Join(dir, "proposals"))
	options.Proposals = true
	var err error
	if l.Repo, err = registry.Open(ctx, options); err != nil {
		return nil, err
	}
	if l.Preview, err = a.previewApart(l.Repo, options.CacheDir, o.forge.memory.Value()); err != nil {
		return nil, err
	}
	l.Revision, l.Interval, l.Version, l.Now, l.Time = a.Revision, o.interval, a.Env.Version, a.Env.Now, previewTime
	return forge.NewLoop(l)
}

// stranger previews untrusted proposals. It has its own workers, cache and redactors, and no keys:
// with a key, a chart that reverses a password would show it. It handles one cluster at a time,
// which bounds its memory. The argument bytes bounds the differences.
func (a *app) stranger(bytes int64) func(context.Context, *registry.Fleet, *registry.Fleet) (*preview.Preview, *redact.Redactor, error) {
	const cacheBytes = 64 << 20
	a.rendering.untrusted = renderer.NewPool(renderer.PoolOptions{
		Args: []string{workerCommand}, Workers: 1, Timeout: a.rendering.timeout, Memory: a.rendering.memory.Value(),
	})
	cache := renderer.NewCache(renderer.NewUnsealing(a.rendering.untrusted, sops.Keys{}), cacheBytes)
	caps := renderer.NewExtensions(renderer.DefaultCapabilities())
	return func(ctx context.Context, base, head *registry.Fleet) (*preview.Preview, *redact.Redactor, error) {
		key := make([]byte, 32)
		if _, err := rand.Read(key); err != nil {
			return nil, nil, fmt.Errorf("make a key: %w", err)
		}
		own := &remembering{next: cache, redactor: redact.New(), bound: &secretBound{seen: map[redact.Value]bool{}}}
		p, err := preview.Make(ctx, preview.Options{
			Base: base, Head: head, MaskKey: key, Workers: 1, Bytes: bytes, Now: a.Env.Now(), ClusterTakes: clusterTakes,
			Render: func(c *registry.Cluster) preview.Render { return renderer.NewTargets(own, c, caps).Render },
		})
		if err == nil && own.redactor.Effort() > untrustedEffort {
			err = forge.ErrTooManySecrets
		}
		return p, own.redactor, err
	}
}

const (
	// untrustedSecrets bounds the values of Secrets, in bytes, that one preview of a proposal
	// hides. Their forms take up to 100 times as much memory until the preview is written.
	untrustedSecrets = 512 << 10
	// untrustedEffort bounds how many lengths the redactor tries at one place of the text. The
	// search for values with a common start would take minutes.
	untrustedEffort = 256
)
