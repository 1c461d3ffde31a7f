package cmd

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/controllers/gitmemory"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
)

// completionTimeout bounds a completion, unless [Env] sets another time.
const completionTimeout = 3 * time.Second

// openRepo opens the fleet repository, with its cache in the user's folder. A clone of an earlier
// run may be outdated until a fetch.
func (a *app) openRepo(ctx context.Context) (*registry.Repo, error) {
	return registry.Open(ctx, a.repoOptions(""))
}

// openRemembered is openRepo with another cache folder and a memory in the hub.
func (a *app) openRemembered(ctx context.Context, cacheDir string, hub *rest.Config) (*registry.Repo, error) {
	options := a.repoOptions(cacheDir)
	url, err := gitrepo.ShownURL(a.Repo)
	if err != nil {
		return nil, err
	}
	if options.Memory, err = gitmemory.New(hub, url); err != nil {
		return nil, err
	}
	return registry.Open(ctx, options)
}

func (a *app) repoOptions(cacheDir string) gitrepo.Options {
	return gitrepo.Options{
		URL: a.Repo, CacheDir: cacheDir, Looks: !a.delivers,
		TrustedKeys: a.TrustedKeys, AcceptRewind: a.AcceptRewind, Credentials: a.GitCredentials,
		Hide:     func(secrets ...string) { a.Env.Redactor.Hide("git", secrets...) },
		Username: os.Getenv("KEELSON_GIT_USERNAME"), Password: os.Getenv("KEELSON_GIT_PASSWORD"),
	}
}

// remote reports whether the repository is not a local folder.
func (a *app) remote() bool {
	if strings.HasPrefix(a.Repo, "file://") {
		return false
	}
	_, err := os.Stat(a.Repo)
	return err != nil
}

// loadFleet reads the fleet repository at --revision, by default its current state, or the files in
// its work tree.
func (a *app) loadFleet(ctx context.Context, workTree bool) (*registry.Fleet, error) {
	_, f, err := a.loadRepo(ctx, workTree)
	return f, err
}

func (a *app) loadRepo(ctx context.Context, workTree bool) (*registry.Repo, *registry.Fleet, error) {
	if workTree && a.Revision != "" {
		return nil, nil, cli.Usagef("--worktree and --revision contradict each other")
	}
	options := a.repoOptions("")
	options.WorkTree = workTree
	repo, err := registry.Open(ctx, options)
	if err != nil {
		return nil, nil, err
	}
	if a.remote() {
		a.Log.Debug("fetching", "repo", a.Repo)
		if err := repo.Git().Fetch(ctx); err != nil {
			return nil, nil, err
		}
	}
	f, err := repo.Load(ctx, a.Revision)
	if err != nil {
		return nil, nil, err
	}
	if f.Signer != nil {
		a.Log.Debug("the commit is signed", "revision", f.Revision, "by", f.Signer.Name, "key", f.Signer.Fingerprint)
	}
	a.Log.Debug("loaded the fleet", "revision", f.Revision, "clusters", len(f.Clusters), "problems", len(f.Problems))
	return repo, f, nil
}

// findCluster returns a cluster that no problem blocks.
func findCluster(f *registry.Fleet, name string) (*registry.Cluster, error) {
	c := f.Cluster(name)
	if c == nil {
		return nil, fmt.Errorf("there is no cluster %q at revision %.12s: %s", name, f.Revision, choice("clusters", clusterNames(f)))
	}
	if err := c.Blocked(); err != nil {
		return nil, err
	}
	return c, nil
}

// findDeliveries returns the named deliveries of a cluster, sorted by name, or all of them.
func findDeliveries(c *registry.Cluster, components []string) ([]*registry.Delivery, error) {
	if len(components) == 0 {
		return c.Deliveries, nil
	}
	var out []*registry.Delivery
	for _, name := range slices.Compact(slices.Sorted(slices.Values(components))) {
		d := c.Delivery(name)
		if d == nil {
			return nil, fmt.Errorf("cluster %s has no component %q: %s", c.Name, name, choice("components", componentNames(c)))
		}
		out = append(out, d)
	}
	return out, nil
}

// choice names up to 8 of the existing names.
func choice(what string, names []string) string {
	const few = 8
	switch {
	case len(names) == 0:
		return "there are no " + what
	case len(names) > few:
		return fmt.Sprintf("there are %s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	default:
		return "there are " + strings.Join(names, ", ")
	}
}

func clusterNames(f *registry.Fleet) []string {
	names := make([]string, 0, len(f.Clusters))
	for _, c := range f.Clusters {
		names = append(names, c.Name)
	}
	return names
}

func componentNames(c *registry.Cluster) []string {
	names := make([]string, 0, len(c.Deliveries))
	for _, d := range c.Deliveries {
		names = append(names, d.Component)
	}
	return names
}

// completeNames completes CLUSTER, then up to so many COMPONENTs; -1: any number.
func (a *app) completeNames(components int) cobra.CompletionFunc {
	return a.complete(func(f *registry.Fleet, args []string) []string {
		if len(args) == 0 {
			return clusterNames(f)
		}
		c := f.Cluster(args[0])
		if c == nil || components >= 0 && len(args) > components {
			return nil
		}
		return without(componentNames(c), args[1:])
	})
}

// completeClusters completes any number of clusters.
func completeClusters(f *registry.Fleet, args []string) []string {
	return without(clusterNames(f), args)
}

// complete completes an argument with names from the fleet and the arguments before it.
func (a *app) complete(names func(f *registry.Fleet, args []string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		f := a.quietFleet(cmd)
		if f == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(f, args), cobra.ShellCompDirectiveNoFileComp
	}
}

func without(names, taken []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(taken, name) })
}

// quietFleet returns the fleet without a fetch, or nil on any error: a completion must be quick,
// and prints no errors.
func (a *app) quietFleet(cmd *cobra.Command) *registry.Fleet {
	if a.Configure(cmd) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), cmp.Or(a.Env.Completion, completionTimeout))
	defer cancel()
	repo, err := a.openRepo(ctx)
	if err != nil {
		return nil
	}
	f, err := repo.Load(ctx, a.Revision)
	if err != nil {
		return nil
	}
	return f
}
