package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Clone is the folder of a working clone of a repository. Its branch is main.
type Clone string

// NewBare creates an empty bare repository.
func NewBare(ctx context.Context, dir string) error {
	_, err := Run(ctx, ".", "git", "init", "--quiet", "--bare", "--initial-branch=main", dir)
	return err
}

// NewClone clones a repository, whose URL is also where it pushes, into a folder that is not
// there yet.
func NewClone(ctx context.Context, url, dir string) (Clone, error) {
	if _, err := Run(ctx, filepath.Dir(dir), "git", "clone", "--quiet", url, dir); err != nil {
		return "", err
	}
	c := Clone(dir)
	_, nameErr := c.Git(ctx, "config", "user.name", "Platform Team")
	_, mailErr := c.Git(ctx, "config", "user.email", "platform@example.com")
	return c, errors.Join(nameErr, mailErr)
}

// Git runs git in the clone, and returns its output without the last line break.
func (c Clone) Git(ctx context.Context, args ...string) (string, error) {
	out, err := Run(ctx, string(c), "git", args...)
	return strings.TrimSpace(out), err
}

// Path returns the path of a file of the clone.
func (c Clone) Path(name string) string { return filepath.Join(string(c), filepath.FromSlash(name)) }

// Write writes a file of the clone.
func (c Clone) Write(name, content string) error {
	err := os.MkdirAll(filepath.Dir(c.Path(name)), 0o755)
	if err == nil {
		err = os.WriteFile(c.Path(name), []byte(content), 0o644) //nolint:gosec // anyone may read a repository
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// Push commits all files, even if none changed, and pushes them.
func (c Clone) Push(ctx context.Context, message string) error {
	for _, args := range [][]string{{"add", "-A"}, {"commit", "--quiet", "--allow-empty", "--message", message}, {"push", "--quiet", "origin", "HEAD:main"}} {
		if _, err := c.Git(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// Tag publishes the last commit under a name.
func (c Clone) Tag(ctx context.Context, name string) error {
	if _, err := c.Git(ctx, "tag", name); err != nil {
		return err
	}
	_, err := c.Git(ctx, "push", "--quiet", "origin", name)
	return err
}
