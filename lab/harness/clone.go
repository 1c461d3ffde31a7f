package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Clone is the folder of a working clone of a repository. Its branch is main.
type Clone string

// The author of commits.
const author, mail = "Platform Team", "platform@example.com"

// NewBare creates an empty bare repository.
func NewBare(ctx context.Context, dir string) error {
	_, err := Run(ctx, ".", "git", "init", "--quiet", "--bare", "--initial-branch=main", dir)
	return err
}

// NewClone clones a repository for commits of a made-up author, whose URL is also where it pushes, into a folder that is not
// there yet.
func NewClone(ctx context.Context, url, dir string) (Clone, error) {
	if _, err := Run(ctx, filepath.Dir(dir), "git", "clone", "--quiet", url, dir); err != nil {
		return "", err
	}
	c := Clone(dir)
	_, nameErr := c.Git(ctx, "config", "user.name", author)
	_, mailErr := c.Git(ctx, "config", "user.email", mail)
	return c, errors.Join(nameErr, mailErr)
}

// Git runs git in the clone, and returns its output without blanks around. Neither the user's
// configuration nor the machine's has an effect.
func (c Clone) Git(ctx context.Context, args ...string) (string, error) {
	git := exec.CommandContext(ctx, "git", args...)
	git.Dir = string(c)
	git.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull,
		"GIT_AUTHOR_NAME="+author, "GIT_AUTHOR_EMAIL="+mail, "GIT_COMMITTER_NAME="+author, "GIT_COMMITTER_EMAIL="+mail)
	out, err := output(git)
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
