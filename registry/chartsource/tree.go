package chartsource

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"go.yaml.in/yaml/v4"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/archive"
	"github.com/keelson-io/keelson/registry/naming"
)

// Tree is the work tree of a fleet repository. Symbolic links out of the tree are not followed.
type Tree struct{ root *os.Root }

// OpenTree opens a folder, which must hold a folder components.
func OpenTree(folder string) (*Tree, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, fmt.Errorf("open the fleet repository: %w", err)
	}
	if info, err := root.Stat("components"); err != nil || !info.IsDir() {
		return nil, errors.Join(fmt.Errorf("%s has no folder components: is it the root of a fleet repository?", folder), root.Close())
	}
	return &Tree{root: root}, nil
}

// Close closes the folder.
func (t *Tree) Close() error { return t.root.Close() } //nolint:wrapcheck // it says what

// Components returns the names of all components with a chart.yaml, in order.
func (t *Tree) Components() ([]string, error) {
	all, err := t.Folders()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range all {
		_, err := t.root.Lstat(path.Join("components", name, registry.ChartSourceFile))
		switch {
		case err == nil:
			names = append(names, name)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("look at component %s: %w", name, err)
		}
	}
	return names, nil
}

// Folders returns the names of all components, in order.
func (t *Tree) Folders() ([]string, error) {
	entries, err := fs.ReadDir(t.root.FS(), "components")
	if err != nil {
		return nil, fmt.Errorf("list the components: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && naming.CheckComponent(e.Name()) == "" {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// HasSpec reports whether a component has a component.yaml.
func (t *Tree) HasSpec(component string) bool {
	_, err := t.root.Lstat(path.Join("components", component, "component.yaml"))
	return err == nil
}

// Component is the content of a component's folder.
type Component struct {
	Name string
	// Source is nil without a chart.yaml.
	Source *v1alpha1.ChartSource
	// Files are the files below template/, in name order.
	Files []archive.File
}

// Component reads the folder of a component, which need not exist. For mistakes in chart.yaml the
// error is [document.Problems].
func (t *Tree) Component(name string) (*Component, error) {
	if wrong := naming.CheckComponent(name); wrong != "" {
		return nil, errors.New(wrong)
	}
	c := &Component{Name: name}
	folder := path.Join("components", name)
	file := path.Join(folder, registry.ChartSourceFile)
	data, err := t.root.ReadFile(file)
	switch {
	case err == nil:
		source, problems := registry.DecodeChartSource(file, data)
		if err := problems.Err(); err != nil {
			return nil, err
		}
		c.Source = &source
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	at := path.Join(folder, "template")
	info, err := t.root.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil || !info.IsDir() {
		return nil, errors.Join(fmt.Errorf("%s is no folder", at), err)
	}
	template, err := t.root.OpenRoot(at)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", at, err)
	}
	c.Files, err = readFolder(template)
	if err = errors.Join(err, template.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", at, err)
	}
	return c, nil
}

// Packed reports whether chart.yaml says that template/ holds the .tgz.
func (c *Component) Packed() bool { return c.Source != nil && c.Source.Files == "" }

// Difference is one file that differs from the pinned chart.
type Difference struct {
	File string `json:"file"` // relative to the component's folder
	// State is "changed", "missing" or "extra".
	State string `json:"state"`
}

// Compare returns the differences between the component and a chart, in file order. Notes beside a
// packed chart belong to the user and are no difference.
func (c *Component) Compare(chart *Chart, packed bool) []Difference {
	want := map[string][]byte{}
	for _, f := range chart.layout(packed) {
		want[f.Name] = f.Data
	}
	var out []Difference
	add := func(file, state string) { out = append(out, Difference{File: file, State: state}) }
	for _, f := range c.Files {
		data, ok := want[f.Name]
		delete(want, f.Name)
		switch {
		case !ok && packed && registry.IsChartNote(f.Name):
		case !ok:
			add("template/"+f.Name, "extra")
		case !bytes.Equal(data, f.Data):
			add("template/"+f.Name, "changed")
		}
	}
	for name := range want {
		add("template/"+name, "missing")
	}
	switch {
	case c.Source == nil:
		add(registry.ChartSourceFile, "missing")
	case !reflect.DeepEqual(*c.Source, chart.source(packed)):
		add(registry.ChartSourceFile, "changed")
	}
	slices.SortFunc(out, func(a, b Difference) int { return strings.Compare(a.File, b.File) })
	return out
}

// Touched reports whether template/ changed since keelson vendor wrote it, by the sums in
// chart.yaml. Files without a chart.yaml count as touched.
func (c *Component) Touched() bool {
	switch {
	case len(c.Files) == 0:
		return false
	case c.Source == nil:
		return true
	case c.Packed():
		found := false
		for _, f := range c.Files {
			if registry.IsChartNote(f.Name) {
				continue
			}
			if found || archive.Digest(f.Data) != c.Source.Digest {
				return true
			}
			found = true
		}
		return false
	}
	return archive.Sum(c.Files) != c.Source.Files
}

// layout returns the files that belong into template/.
func (c *Chart) layout(packed bool) []archive.File {
	if packed {
		return []archive.File{{Name: c.Source.Name + "-" + c.Source.Version + ".tgz", Data: c.Archive}}
	}
	return c.Files
}

// source returns the chart.yaml that belongs to the chart.
func (c *Chart) source(packed bool) v1alpha1.ChartSource {
	s := c.Source
	s.Header = v1alpha1.Header{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindChartSource}
	s.Files = ""
	if !packed {
		s.Files = archive.Sum(c.Files)
	}
	return s
}

// CanPack returns an error if the chart can't be kept packed, otherwise nil.
func (c *Chart) CanPack() error {
	switch limit := registry.ChartLimits().FileBytes; {
	case c.Archive == nil:
		return fmt.Errorf("%s is a folder: pack it with helm package first", c.Source.Name)
	case len(c.Source.Dependencies) > 0:
		return fmt.Errorf("%s lacks its dependency %s, and can't be kept packed: run helm dependency build and helm package",
			c.Source.Name, c.Source.Dependencies[0].Name)
	case int64(len(c.Archive)) > limit:
		return fmt.Errorf("the .tgz of %s is larger than a file of a component may be, %d MiB: keep it unpacked", c.Source.Name, limit>>20)
	}
	return nil
}

// Write writes a chart into a component's template/, and its chart.yaml beside it. Both are written
// under temporary names first and then renamed. If a rename fails, the earlier renames are undone.
// After an error, a new empty folder of the component can remain. A failure to remove the replaced
// files is returned after the new files are in place.
func (t *Tree) Write(c *Component, chart *Chart, packed bool) (err error) {
	folder := path.Join("components", c.Name)
	if err := t.root.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make the component's folder: %w", err)
	}
	mark := rand.Text()[:8]
	fresh, old := path.Join(folder, ".template-"+mark), path.Join(folder, ".template-old-"+mark)
	freshSource := path.Join(folder, ".chart-"+mark+".yaml")
	template := path.Join(folder, "template")
	defer func() {
		err = errors.Join(err, t.root.RemoveAll(fresh), t.root.RemoveAll(freshSource))
	}()
	for _, f := range append(c.notes(packed), chart.layout(packed)...) {
		if err := t.writeFile(path.Join(fresh, f.Name), f.Data); err != nil {
			return err
		}
	}
	data, err := formatSource(chart.source(packed))
	if err != nil {
		return err
	}
	if err := t.writeFile(freshSource, data); err != nil {
		return err
	}
	return t.replace(
		[2]string{template, old},
		[2]string{fresh, template},
		[2]string{freshSource, path.Join(folder, registry.ChartSourceFile)},
	)
}

// replace renames in order: the old folder out of the way if it exists, then the new folder and the
// new file to their places.
func (t *Tree) replace(aside, in, source [2]string) error {
	moved := true
	if err := t.root.Rename(aside[0], aside[1]); errors.Is(err, fs.ErrNotExist) {
		moved = false
	} else if err != nil {
		return fmt.Errorf("replace %s: %w", aside[0], err)
	}
	back := func(err error) error {
		err = fmt.Errorf("replace %s: %w", aside[0], err)
		if moved {
			err = errors.Join(err, t.root.Rename(aside[1], aside[0]))
		}
		return err
	}
	if err := t.root.Rename(in[0], in[1]); err != nil {
		return back(err)
	}
	if err := t.root.Rename(source[0], source[1]); err != nil {
		return back(errors.Join(err, t.root.Rename(in[1], in[0])))
	}
	if err := t.root.RemoveAll(aside[1]); err != nil {
		return fmt.Errorf("remove what was replaced: %w", err)
	}
	return nil
}

func (t *Tree) writeFile(name string, data []byte) error {
	if err := t.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := t.root.WriteFile(name, data, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// notes returns the user's notes beside a packed chart, which Write keeps if the chart stays
// packed.
func (c *Component) notes(packed bool) []archive.File {
	if !packed || !c.Packed() {
		return nil
	}
	var out []archive.File
	for _, f := range c.Files {
		if registry.IsChartNote(f.Name) {
			out = append(out, f)
		}
	}
	return out
}

// formatSource writes chart.yaml with its keys in a fixed order, by meaning.
func formatSource(s v1alpha1.ChartSource) ([]byte, error) {
	type dependency struct{ URL, Name, Version, Digest string }
	out := struct {
		APIVersion   string `yaml:"apiVersion"`
		Kind         string
		URL          string
		Name         string
		Version      string
		Constraint   string       `yaml:",omitempty"`
		Digest       string       `yaml:",omitempty"`
		Files        string       `yaml:",omitempty"`
		Dependencies []dependency `yaml:",omitempty"`
	}{
		APIVersion: s.APIVersion, Kind: s.Kind, URL: s.URL, Name: s.Name, Version: s.Version,
		Constraint: s.Constraint, Digest: s.Digest, Files: s.Files,
	}
	for _, d := range s.Dependencies {
		out.Dependencies = append(out.Dependencies, dependency(d))
	}
	data, err := yaml.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("write chart.yaml: %w", err)
	}
	return append([]byte("# Written by keelson vendor, and checked by keelson vendor --check.\n"), data...), nil
}

// Ignored returns the files in a component's folder that git add would skip because of a
// .gitignore, of the repository or of the chart itself.
func (t *Tree) Ignored(c *Component) ([]string, error) {
	patterns, err := t.ignores(c)
	if err != nil {
		return nil, err
	}
	matcher := gitignore.NewMatcher(patterns)
	var out []string
	for _, f := range c.Files {
		full := append([]string{"components", c.Name, "template"}, strings.Split(f.Name, "/")...)
		for i := range full {
			if matcher.Match(full[:i+1], i+1 < len(full)) {
				out = append(out, path.Join(full...))
				break
			}
		}
	}
	return out, nil
}

// ignores returns the patterns for the component's files. Patterns of higher folders come first.
func (t *Tree) ignores(c *Component) ([]gitignore.Pattern, error) {
	var patterns []gitignore.Pattern
	add := func(folder []string, data []byte) {
		for line := range strings.SplitSeq(string(data), "\n") {
			if line = strings.TrimRight(line, "\r"); line != "" && !strings.HasPrefix(line, "#") {
				patterns = append(patterns, gitignore.ParsePattern(line, folder))
			}
		}
	}
	above := []string{"components", c.Name}
	for i := range len(above) + 1 {
		data, err := t.root.ReadFile(path.Join(append(slices.Clone(above[:i]), ".gitignore")...))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read .gitignore: %w", err)
		}
		add(above[:i], data)
	}
	inside := map[string][]byte{}
	for _, f := range c.Files {
		if path.Base(f.Name) == ".gitignore" {
			inside[path.Join("components", c.Name, "template", path.Dir(f.Name))] = f.Data
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(inside)) {
		add(strings.Split(folder, "/"), inside[folder])
	}
	return patterns, nil
}
