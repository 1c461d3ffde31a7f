// Package fleet makes fleet repositories as large as one wants, for tests and
// benchmarks of scale: made-up components with charts of realistic shape, their
// versions as tags, layers by stage, region and provider, and clusters.
//
// The same options give the same commits, on any machine. It takes git.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Options say how large a fleet is. Every component is delivered to every
// cluster.
type Options struct {
	Components, Clusters int
	// Distinct is how many of the Components × Clusters deliveries differ in
	// what they are rendered from: between Components and all of them.
	Distinct int
	Seed     uint64
}

// Default is the fleet that Keelson is measured with.
func Default() Options {
	return Options{Components: 200, Clusters: 300, Distinct: 2000, Seed: 1}
}

// ErrOptions is why there is no such fleet.
var ErrOptions = errors.New("no such fleet")

func (o Options) check() error {
	switch {
	case o.Components < 1 || o.Clusters < 1:
		return fmt.Errorf("%w: it takes a component and a cluster", ErrOptions)
	case o.Components > maxComponents():
		return fmt.Errorf("%w: there are names for %d components, not for %d", ErrOptions, maxComponents(), o.Components)
	case o.Clusters > maxClusters:
		return fmt.Errorf("%w: more than %d clusters", ErrOptions, maxClusters)
	case o.Distinct < o.Components || o.Distinct > o.Components*o.Clusters:
		return fmt.Errorf("%w: %d components on %d clusters have between %d and %d distinct renders, not %d", ErrOptions,
			o.Components, o.Clusters, o.Components, o.Components*o.Clusters, o.Distinct)
	}
	return nil
}

// Made is what was written.
type Made struct {
	// Commit is the head of the branch main.
	Commit string
	// Versions are tags, Files those of clusters that set values, and Contents
	// the distinct ones among these.
	Versions, Files, Contents int
}

// Generate writes a bare repository into a folder that must be empty or not
// there.
func Generate(ctx context.Context, dir string, o Options) (Made, error) {
	if err := o.check(); err != nil {
		return Made{}, err
	}
	there, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Made{}, fmt.Errorf("look at the folder: %w", err)
	}
	if len(there) > 0 {
		return Made{}, fmt.Errorf("%s is not empty", dir)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return Made{}, fmt.Errorf("make the folder: %w", err)
	}
	if _, err := git(ctx, "", "init", "--quiet", "--bare", "--initial-branch=main", dir); err != nil {
		return Made{}, err
	}
	p, err := newPlan(o)
	if err != nil {
		return Made{}, err
	}
	made := Made{}
	if err := importInto(ctx, dir, func(s *stream) { made = p.write(s) }); err != nil {
		return Made{}, err
	}
	if err := Pack(ctx, dir); err != nil {
		return Made{}, err
	}
	made.Commit, err = git(ctx, dir, "rev-parse", "main")
	return made, err
}

// Pack leaves a repository as after a clone: one pack with deltas, one file of refs.
func Pack(ctx context.Context, dir string) error {
	for _, args := range [][]string{{"repack", "-a", "-d", "-q"}, {"pack-refs", "--all"}} {
		if _, err := git(ctx, dir, args...); err != nil {
			return err
		}
	}
	return nil
}

// Create makes a bare repository with one commit, in a folder that is not there.
func Create(ctx context.Context, dir string, c Commit) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("make the folder: %w", err)
	}
	if _, err := git(ctx, "", "init", "--quiet", "--bare", "--initial-branch=main", dir); err != nil {
		return err
	}
	return importInto(ctx, dir, func(s *stream) {
		s.commit("first", "", c.Files)
		if c.Tag != "" {
			s.tag(c.Tag)
		}
	})
}

// Commit is one commit on top of the branch main.
type Commit struct {
	// Files by path; nil deletes one.
	Files map[string][]byte
	// Tag, if any, is set to the commit.
	Tag string
}

// Push adds a commit, as a push does.
func Push(ctx context.Context, dir string, c Commit) error {
	return importInto(ctx, dir, func(s *stream) {
		s.commit("change", "refs/heads/main^0", c.Files)
		if c.Tag != "" {
			s.tag(c.Tag)
		}
	})
}

// Tag sets tags to the last commit, in one file for all, as a git host keeps them
// after a while.
func Tag(ctx context.Context, dir string, names ...string) error {
	err := importInto(ctx, dir, func(s *stream) {
		for _, name := range names {
			s.tag(name)
		}
	})
	if err != nil {
		return err
	}
	_, err = git(ctx, dir, "pack-refs", "--all")
	return err
}

// Read returns a file of the branch main.
func Read(ctx context.Context, dir, path string) ([]byte, error) {
	out, err := git(ctx, dir, "show", "main:"+path)
	return []byte(out + "\n"), err
}

// List returns the paths below a folder of the branch main.
func List(ctx context.Context, dir, folder string) ([]string, error) {
	out, err := git(ctx, dir, "ls-tree", "-r", "--name-only", "main", folder+"/")
	return lines(out), err
}
