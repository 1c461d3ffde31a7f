// Package fleet makes fleet repositories of a chosen size, for tests and benchmarks of
// scale. A repository has made-up components with charts of realistic shape, their
// versions as tags, layers by stage, region and provider, and clusters.
//
// The same options give the same commits on any machine. The package needs git.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Options are the size of a fleet. Every component is delivered to every cluster.
type Options struct {
	Components, Clusters int
	// Distinct is the number of distinct render inputs among the Components × Clusters
	// deliveries: from Components to Components × Clusters.
	Distinct int
	Seed     uint64
}

// Default is the fleet that Keelson is measured with.
func Default() Options {
	return Options{Components: 200, Clusters: 300, Distinct: 2000, Seed: 1}
}

// ErrOptions is returned for options that no fleet can have.
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

// Made describes the repository that [Generate] wrote.
type Made struct {
	// Commit is the head of the branch main.
	Commit string
	// Versions is the number of tags. Files is the number of files in which clusters set
	// values. Contents is the number of distinct contents of these files.
	Versions, Files, Contents int
}

// Generate writes a bare repository into a folder. The folder must be empty or missing.
// The error wraps [ErrOptions] if the options are invalid.
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
	if err := initialize(ctx, dir); err != nil {
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

// Pack brings a repository into the state after a clone: one pack with deltas, and one
// file with all refs.
func Pack(ctx context.Context, dir string) error {
	for _, args := range [][]string{{"repack", "-a", "-d", "-q"}, {"pack-refs", "--all"}} {
		if _, err := git(ctx, dir, args...); err != nil {
			return err
		}
	}
	return nil
}

// Create makes a bare repository with one commit, in a folder that doesn't exist yet.
func Create(ctx context.Context, dir string, c Commit) error {
	if err := initialize(ctx, dir); err != nil {
		return err
	}
	return importInto(ctx, dir, func(s *stream) {
		s.commit("first", "", c.Files)
		if c.Tag != "" {
			s.tag(c.Tag)
		}
	})
}

func initialize(ctx context.Context, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("make the folder: %w", err)
	}
	_, err := git(ctx, "", "init", "--quiet", "--bare", "--initial-branch=main", dir)
	return err
}

// Commit is a commit on top of the branch main.
type Commit struct {
	// Files are contents by path. A nil content deletes the file.
	Files map[string][]byte
	// Tag, unless empty, is the name of a tag for the commit.
	Tag string
}

// Push adds a commit to the branch main, as a push does.
func Push(ctx context.Context, dir string, c Commit) error {
	return importInto(ctx, dir, func(s *stream) {
		s.commit("change", "refs/heads/main^0", c.Files)
		if c.Tag != "" {
			s.tag(c.Tag)
		}
	})
}

// Tag sets tags to the last commit of the branch main. It packs all refs into one file,
// as a git host does after a while.
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

// Read returns the content of a file of the branch main. Read adds a line break at the
// end, since the git helper removes one.
func Read(ctx context.Context, dir, path string) ([]byte, error) {
	out, err := git(ctx, dir, "show", "main:"+path)
	return []byte(out + "\n"), err
}
