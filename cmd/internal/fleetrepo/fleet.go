// Package fleetrepo opens the fleet repository that the settings name, finds clusters and components
// in it, completes their names, and edits the files of its work tree.
package fleetrepo

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
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

// CompletionTimeout bounds a completion, unless [Env] sets another time.
const CompletionTimeout = 3 * time.Second

// Opener opens the fleet repository that the settings name.
type Opener struct {
	*cli.Invocation
	// Delivers means that content of the repository is delivered: Keelson then remembers what it
	// has seen of the branch.
	Delivers bool
}

// New returns an opener that uses the settings of a command.
func New(inv *cli.Invocation) *Opener { return &Opener{Invocation: inv} }

// OpenRepo opens the fleet repository, with its cache in the user's folder. A clone of an earlier
// run may be outdated until a fetch.
func (o *Opener) OpenRepo(ctx context.Context) (*registry.Repo, error) {
	return registry.Open(ctx, o.RepoOptions(""))
}

// OpenRemembered opens the fleet repository with another cache folder, and with the memory in the hub
// of what was seen of its branch.
func (o *Opener) OpenRemembered(ctx context.Context, cacheDir string, hub *rest.Config) (*registry.Repo, error) {
	options := o.RepoOptions(cacheDir)
	url, err := gitrepo.ShownURL(o.Repo)
	if err != nil {
		return nil, err
	}
	if options.Memory, err = gitmemory.New(hub, url); err != nil {
		return nil, err
	}
	return registry.Open(ctx, options)
}

// RepoOptions returns the options of the command's settings. An empty cacheDir means the user's
// cache folder.
func (o *Opener) RepoOptions(cacheDir string) gitrepo.Options {
	return gitrepo.Options{
		URL: o.Repo, CacheDir: cacheDir, Looks: !o.Delivers,
		TrustedKeys: o.TrustedKeys, AcceptRewind: o.AcceptRewind, Credentials: o.GitCredentials,
		Hide:     func(secrets ...string) { o.Env.Redactor.Hide("git", secrets...) },
		Username: os.Getenv("KEELSON_GIT_USERNAME"), Password: os.Getenv("KEELSON_GIT_PASSWORD"),
	}
}

// Remote reports whether the repository is not a local folder.
func (o *Opener) Remote() bool {
	if strings.HasPrefix(o.Repo, "file://") {
		return false
	}
	_, err := os.Stat(o.Repo)
	return err != nil
}

// LoadFleet reads the fleet repository at --revision, by default its current state, or the files in
// its work tree.
func (o *Opener) LoadFleet(ctx context.Context, workTree bool) (*registry.Fleet, error) {
	_, f, err := o.LoadRepo(ctx, workTree)
	return f, err
}

// LoadRepo opens the fleet repository, fetches it if it is remote, and loads the fleet.
func (o *Opener) LoadRepo(ctx context.Context, workTree bool) (*registry.Repo, *registry.Fleet, error) {
	if workTree && o.Revision != "" {
		return nil, nil, cli.Usagef("--worktree and --revision contradict each other")
	}
	options := o.RepoOptions("")
	options.WorkTree = workTree
	repo, err := registry.Open(ctx, options)
	if err != nil {
		return nil, nil, err
	}
	if o.Remote() {
		o.Log.Debug("fetching", "repo", o.Repo)
		if err := repo.Git().Fetch(ctx); err != nil {
			return nil, nil, err
		}
	}
	f, err := repo.Load(ctx, o.Revision)
	if err != nil {
		return nil, nil, err
	}
	if f.Signer != nil {
		o.Log.Debug("the commit is signed", "revision", f.Revision, "by", f.Signer.Name, "key", f.Signer.Fingerprint)
	}
	o.Log.Debug("loaded the fleet", "revision", f.Revision, "clusters", len(f.Clusters), "problems", len(f.Problems))
	return repo, f, nil
}

// FindCluster returns a cluster that no problem blocks.
func FindCluster(f *registry.Fleet, name string) (*registry.Cluster, error) {
	return findCluster(f, name, (*registry.Cluster).Blocked)
}

// FindClusterOffline returns a cluster for a command that does not ask it. A missing connection does
// not block such a command.
func FindClusterOffline(f *registry.Fleet, name string) (*registry.Cluster, error) {
	return findCluster(f, name, (*registry.Cluster).BlockedOffline)
}

func findCluster(f *registry.Fleet, name string, blocked func(*registry.Cluster) error) (*registry.Cluster, error) {
	c := f.Cluster(name)
	if c == nil {
		return nil, fmt.Errorf("there is no cluster %q at revision %.12s: %s", name, f.Revision, Choice("clusters", ClusterNames(f)))
	}
	if err := blocked(c); err != nil {
		return nil, err
	}
	return c, nil
}

// FindDeliveries returns the named deliveries of a cluster, sorted by name, or all of them.
func FindDeliveries(c *registry.Cluster, components []string) ([]*registry.Delivery, error) {
	if len(components) == 0 {
		return c.Deliveries, nil
	}
	var out []*registry.Delivery
	for _, name := range slices.Compact(slices.Sorted(slices.Values(components))) {
		d := c.Delivery(name)
		if d == nil {
			return nil, fmt.Errorf("cluster %s has no component %q: %s", c.Name, name, Choice("components", ComponentNames(c)))
		}
		out = append(out, d)
	}
	return out, nil
}

// Choice names up to 8 of the existing names.
func Choice(what string, names []string) string {
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

// ClusterNames returns the names of all clusters of a fleet.
func ClusterNames(f *registry.Fleet) []string {
	names := make([]string, 0, len(f.Clusters))
	for _, c := range f.Clusters {
		names = append(names, c.Name)
	}
	return names
}

// ComponentNames returns the names of all components of a cluster.
func ComponentNames(c *registry.Cluster) []string {
	names := make([]string, 0, len(c.Deliveries))
	for _, d := range c.Deliveries {
		names = append(names, d.Component)
	}
	return names
}

// CompleteNames completes CLUSTER, then up to so many COMPONENTs; -1: any number.
func (o *Opener) CompleteNames(components int) cobra.CompletionFunc {
	return o.Complete(func(f *registry.Fleet, args []string) []string {
		if len(args) == 0 {
			return ClusterNames(f)
		}
		c := f.Cluster(args[0])
		if c == nil || components >= 0 && len(args) > components {
			return nil
		}
		return Without(ComponentNames(c), args[1:])
	})
}

// CompleteClusters completes any number of clusters.
func CompleteClusters(f *registry.Fleet, args []string) []string {
	return Without(ClusterNames(f), args)
}

// Complete completes an argument with names from the fleet and the arguments before it.
func (o *Opener) Complete(names func(f *registry.Fleet, args []string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		f := o.quietFleet(cmd)
		if f == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(f, args), cobra.ShellCompDirectiveNoFileComp
	}
}

// Without returns the names that are not taken. It changes the slice names.
func Without(names, taken []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(taken, name) })
}

// quietFleet returns the fleet without a fetch, or nil on any error: a completion must be quick,
// and prints no errors.
func (o *Opener) quietFleet(cmd *cobra.Command) *registry.Fleet {
	if o.Configure(cmd) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), cmp.Or(o.Env.Completion, CompletionTimeout))
	defer cancel()
	repo, err := o.OpenRepo(ctx)
	if err != nil {
		return nil
	}
	f, err := repo.Load(ctx, o.Revision)
	if err != nil {
		return nil
	}
	return f
}

// ShownURL returns the URL of a repository without its password.
func ShownURL(repo string) string {
	if u, err := url.Parse(repo); err == nil && u.User != nil {
		return u.Redacted()
	}
	return repo
}
