package cmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/naming"
)

// workTree is the folder of a fleet repository whose files a command edits. Symbolic links out of
// it are not followed.
type workTree struct {
	root  *os.Root
	fleet *registry.Fleet // read from the files, committed or not
}

// openWorkTree opens the work tree that --repo names.
func (a *app) openWorkTree(ctx context.Context, command string) (*workTree, error) {
	if a.Revision != "" {
		return nil, cli.Usagef("%s edits the files of a work tree: leave --revision out", command)
	}
	if a.remote() {
		return nil, fmt.Errorf("%s edits files of the fleet repository, and %s is no folder: clone it, and give --repo FOLDER",
			command, shownURL(a.Repo))
	}
	f, err := a.loadFleet(ctx, true)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(a.Repo)
	if err != nil {
		return nil, fmt.Errorf("open the work tree: %w", err)
	}
	return &workTree{root: root, fleet: f}, nil
}

func (w *workTree) close() { _ = w.root.Close() } // all written files are closed already

// cluster returns a cluster, even one with mistakes.
func (w *workTree) cluster(name string) (*registry.Cluster, error) {
	if c := w.fleet.Cluster(name); c != nil {
		return c, nil
	}
	return nil, unknown(fmt.Sprintf("there is no cluster %q in the work tree", name), name, "clusters", clusterNames(w.fleet))
}

// component checks that a cluster has a component.
func (w *workTree) component(c *registry.Cluster, name string) error {
	if c.Delivery(name) != nil {
		return nil
	}
	return unknown(fmt.Sprintf("cluster %s has no component %q", c.Name, name), name, "components", componentNames(c))
}

// unknown returns an error with a suggestion.
func unknown(what, name, kind string, names []string) error {
	if hint := naming.Suggest(name, names); hint != "" {
		return fmt.Errorf("%s (%s)", what, hint)
	}
	return fmt.Errorf("%s: %s", what, choice(kind, names))
}

// read returns a file's content, nil if there is no file.
func (w *workTree) read(name string) ([]byte, error) {
	data, err := w.root.ReadFile(filepath.FromSlash(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the work tree: %w", err)
	}
	return data, nil
}

// edit changes a file, and reports whether it changed; nil content removes the file. The file is
// written completely or not at all.
func (w *workTree) edit(name string, change func([]byte) ([]byte, error)) (changed bool, err error) {
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
		err = w.root.Remove(file)
	default:
		err = w.replace(file, after)
	}
	if err != nil {
		return false, fmt.Errorf("write %s: %w", name, err)
	}
	return true, nil
}

func (w *workTree) replace(file string, data []byte) (err error) {
	mode := fs.FileMode(0o644)
	info, err := w.root.Lstat(file)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return errors.New("it is no ordinary file")
	case err == nil:
		mode = info.Mode().Perm()
	case !errors.Is(err, fs.ErrNotExist):
		return err //nolint:wrapcheck // the caller says what for
	}
	if err := w.root.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err //nolint:wrapcheck // as above
	}
	next := file + ".keelson"
	if err := w.root.WriteFile(next, data, mode); err != nil {
		return err //nolint:wrapcheck // as above
	}
	if err := w.root.Rename(next, file); err != nil {
		return errors.Join(err, w.root.Remove(next))
	}
	return nil
}

// edited is the result for a file.
type edited struct {
	Cluster   string `json:"cluster"`
	Component string `json:"component,omitempty"`
	File      string `json:"file"`
	Changed   bool   `json:"changed"`
}

// commit prints how to commit and push an edit.
func (a *app) commit(e edited, message string) {
	fmt.Fprintf(a.Env.Out, "commit it, and push; nothing changes before that:\n  git add %s && git commit -m %s -- %s\n",
		path.Clean(e.File), quoted(message), path.Clean(e.File))
}

// quoted returns text quoted for a shell.
func quoted(s string) string {
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
