package fleetrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/naming"
)

// WorkTree is the folder of a fleet repository whose files a command edits. Symbolic links out of
// it are not followed.
type WorkTree struct {
	Root  *os.Root
	fleet *registry.Fleet // read from the files, committed or not
}

// OpenWorkTree opens the work tree that --repo names.
func (a *Opener) OpenWorkTree(ctx context.Context, command string) (*WorkTree, error) {
	if a.Revision != "" {
		return nil, cli.Usagef("%s edits the files of a work tree: leave --revision out", command)
	}
	if a.Remote() {
		return nil, fmt.Errorf("%s edits files of the fleet repository, and %s is no folder: clone it, and give --repo FOLDER",
			command, ShownURL(a.Repo))
	}
	f, err := a.LoadFleet(ctx, true)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(a.Repo)
	if err != nil {
		return nil, fmt.Errorf("open the work tree: %w", err)
	}
	return &WorkTree{Root: root, fleet: f}, nil
}

// Close releases the folder of the work tree.
func (w *WorkTree) Close() { _ = w.Root.Close() } // all written files are closed already

// Cluster returns a cluster, even one with mistakes.
func (w *WorkTree) Cluster(name string) (*registry.Cluster, error) {
	if c := w.fleet.Cluster(name); c != nil {
		return c, nil
	}
	return nil, Unknown(fmt.Sprintf("there is no cluster %q in the work tree", name), name, "clusters", ClusterNames(w.fleet))
}

// Component checks that a cluster has a component.
func (w *WorkTree) Component(c *registry.Cluster, name string) error {
	if c.Delivery(name) != nil {
		return nil
	}
	return Unknown(fmt.Sprintf("cluster %s has no component %q", c.Name, name), name, "components", ComponentNames(c))
}

// Unknown returns an error with a suggestion.
func Unknown(what, name, kind string, names []string) error {
	if hint := naming.Suggest(name, names); hint != "" {
		return fmt.Errorf("%s (%s)", what, hint)
	}
	return fmt.Errorf("%s: %s", what, Choice(kind, names))
}

// read returns a file's content, nil if there is no file.
func (w *WorkTree) read(name string) ([]byte, error) {
	data, err := w.Root.ReadFile(filepath.FromSlash(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the work tree: %w", err)
	}
	return data, nil
}

// Edit changes a file, and reports whether it changed; nil content removes the file. The file is
// written completely or not at all.
func (w *WorkTree) Edit(name string, change func([]byte) ([]byte, error)) (changed bool, err error) {
	before, err := w.read(name)
	if err != nil {
		return false, err
	}
	after, err := change(before)
	if err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	file := filepath.FromSlash(name)
	switch {
	case bytes.Equal(before, after) && (before == nil) == (after == nil):
		return false, nil
	case after == nil:
		err = w.Root.Remove(file)
	default:
		err = w.replace(file, after)
	}
	if err != nil {
		return false, fmt.Errorf("write %s: %w", name, err)
	}
	return true, nil
}

func (w *WorkTree) replace(file string, data []byte) (err error) {
	mode := fs.FileMode(0o644)
	info, err := w.Root.Lstat(file)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return errors.New("it is no ordinary file")
	case err == nil:
		mode = info.Mode().Perm()
	case !errors.Is(err, fs.ErrNotExist):
		return err //nolint:wrapcheck // the caller says what for
	}
	if err := w.Root.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err //nolint:wrapcheck // as above
	}
	next := file + ".keelson"
	if err := w.Root.WriteFile(next, data, mode); err != nil {
		return err //nolint:wrapcheck // as above
	}
	if err := w.Root.Rename(next, file); err != nil {
		return errors.Join(err, w.Root.Remove(next))
	}
	return nil
}

// Edited is the result for a file.
type Edited struct {
	Cluster   string `json:"cluster"`
	Component string `json:"component,omitempty"`
	File      string `json:"file"`
	Changed   bool   `json:"changed"`
}

// Commit prints how to commit and push an edit.
func (a *Opener) Commit(e Edited, message string) {
	fmt.Fprintf(a.Env.Out, "commit it, and push; nothing changes before that:\n  git add %s && git commit -m %s -- %s\n",
		path.Clean(e.File), Quoted(message), path.Clean(e.File))
}

// Quoted returns text quoted for a shell.
func Quoted(s string) string {
	var b bytes.Buffer
	b.WriteByte('\'')
	for _, r := range cli.OneLine(s) {
		if r == '\'' {
			b.WriteString(`'\''`)
			continue
		}
		b.WriteRune(r)
	}
	b.WriteByte('\'')
	return b.String()
}

// Approved reports whether a file of the work tree already approves a change.
func (w *WorkTree) Approved(a v1alpha1.Approval) bool {
	c := w.fleet.Cluster(a.Cluster)
	if c == nil {
		return false
	}
	d := c.Delivery(a.Component)
	return d != nil && slices.ContainsFunc(d.Approvals, func(b registry.Approval) bool { return b.Object == a.Object && b.Hash == a.Hash })
}
