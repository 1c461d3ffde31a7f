package chartsource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/archive"
	"github.com/keelson-io/keelson/registry/naming"
)

// Chart is a chart with the content for template/.
type Chart struct {
	Source v1alpha1.ChartSource
	// Archive is the .tgz; nil for a folder on disk.
	Archive []byte
	// Files are the chart's files in name order, including downloaded dependencies.
	Files []archive.File
	// Warnings are messages for users, for example that a tag was moved.
	Warnings []string
}

// Wanted names the chart to get.
type Wanted struct {
	// Chart is oci://HOST/PATH/NAME, the path of a .tgz or of a folder, or, with
	// Repository (https://HOST/PATH), a name.
	Chart, Repository string
	// Version is a version or a range like ^1.45. "" is the newest version.
	Version string
}

// From returns a Wanted for any version of the chart from the same origin.
func From(source v1alpha1.ChartSource) Wanted {
	if strings.HasPrefix(source.URL, "oci://") {
		return Wanted{Chart: source.URL}
	}
	return Wanted{Chart: source.Name, Repository: source.URL}
}

// ErrMoved says that a version has another digest than the pinned one.
var ErrMoved = errors.New("a version was published a second time, with another content")

// Resolve finds the newest version in the wanted range, and reads it with its dependencies.
func (c *Client) Resolve(ctx context.Context, want Wanted) (*Chart, error) {
	chart, err := c.resolve(ctx, want)
	if err != nil {
		return nil, err
	}
	if chart.Source.Version != want.Version && !exact(want.Version) {
		chart.Source.Constraint = want.Version
	}
	return c.complete(ctx, chart, want, nil)
}

func (c *Client) resolve(ctx context.Context, want Wanted) (*Chart, error) {
	place, name, err := split(want)
	if err != nil {
		return nil, err
	}
	if place == "" {
		return c.local(want)
	}
	return c.remote(ctx, v1alpha1.ChartSource{URL: place, Name: name, Version: want.Version})
}

// split returns the origin and the name of a chart. The origin is "" for a chart on disk.
func split(want Wanted) (place, name string, err error) {
	isURL := strings.Contains(want.Chart, "://")
	switch {
	case want.Repository != "":
		if wrong := naming.CheckChart(want.Chart); wrong != "" {
			return "", "", errors.New(wrong)
		}
		place, name = want.Repository, want.Chart
		if strings.HasPrefix(place, "oci://") {
			place = strings.TrimSuffix(place, "/") + "/" + name
		}
	case strings.HasPrefix(want.Chart, "oci://"):
		place, name = want.Chart, path.Base(want.Chart)
		name, _, _ = strings.Cut(name, ":")
	case isURL:
		return "", "", fmt.Errorf("%q is the URL of neither a registry (oci://…) nor a file: a chart repository is given apart from the chart's name", want.Chart)
	default:
		return "", "", nil
	}
	if wrong := naming.CheckChartURL(place); wrong != "" {
		return "", "", errors.New(wrong)
	}
	if wrong := naming.CheckChart(name); wrong != "" {
		return "", "", errors.New(wrong)
	}
	return place, name, nil
}

// Fetch reads exactly the chart that source pins by digest, and its pinned dependencies. It returns
// an error for a chart from disk.
func (c *Client) Fetch(ctx context.Context, source v1alpha1.ChartSource) (*Chart, error) {
	if strings.HasPrefix(source.URL, "file:") {
		return nil, fmt.Errorf("%s %s is from a disk (%s): bring it again with --chart", source.Name, source.Version, source.URL)
	}
	// Not nil: a dependency without a pin must be refused.
	pins := append([]v1alpha1.ChartDependency{}, source.Dependencies...)
	source.Dependencies, source.Files = nil, ""
	chart, err := c.remote(ctx, source)
	if err != nil {
		return nil, err
	}
	return c.complete(ctx, chart, Wanted{}, pins)
}

// remote reads a chart from a registry or repository: the newest version in a range. With a digest,
// it reads the pinned chart.
func (c *Client) remote(ctx context.Context, source v1alpha1.ChartSource) (*Chart, error) {
	var (
		data     []byte
		warnings []string
		err      error
	)
	if strings.HasPrefix(source.URL, "oci://") {
		data, warnings, err = c.fromRegistry(ctx, &source)
	} else {
		data, err = c.fromRepository(ctx, &source)
	}
	if err != nil {
		return nil, err
	}
	chart, err := unpack(source, data)
	if err != nil {
		return nil, fmt.Errorf("%s %s of %s: %w", source.Name, source.Version, source.URL, err)
	}
	chart.Warnings = warnings
	return chart, nil
}

// fromRegistry reads a chart from an OCI registry, and sets its version and digest.
func (c *Client) fromRegistry(ctx context.Context, source *v1alpha1.ChartSource) (data []byte, warnings []string, err error) {
	o, err := c.ociChart(source.URL)
	if err != nil {
		return nil, nil, err
	}
	c.log("look up %s %s", source.URL, source.Version)
	if !exact(source.Version) {
		versions, err := o.versions(ctx)
		if err != nil {
			return nil, nil, err
		}
		if source.Version, err = newest(versions, source.Version); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", source.URL, err)
		}
	}
	desc, err := o.find(ctx, source.Version)
	if notFound(err) && source.Digest == "" {
		// The tag may differ by a leading v.
		versions, listErr := o.versions(ctx)
		if listErr != nil {
			return nil, nil, err
		}
		if source.Version, listErr = newest(versions, source.Version); listErr != nil {
			return nil, nil, fmt.Errorf("%s: %w", source.URL, listErr)
		}
		desc, err = o.find(ctx, source.Version)
	}
	switch pinned := source.Digest; {
	case pinned == "" && err != nil:
		return nil, nil, err
	case pinned == "":
		source.Digest = desc.Digest.String()
	case notFound(err):
		warnings = append(warnings, fmt.Sprintf("%s has no tag %s any more; the pinned content is still available", source.URL, tagOf(source.Version)))
	case err != nil:
		return nil, nil, err
	case desc.Digest.String() != pinned:
		warnings = append(warnings, fmt.Sprintf("tag %s of %s was moved: it is %s now; the pinned content is still available",
			tagOf(source.Version), source.URL, desc.Digest))
	}
	c.log("read %s@%.19s…", source.URL, source.Digest)
	data, err = o.read(ctx, source.Digest)
	if notFound(err) && len(warnings) > 0 {
		err = fmt.Errorf("%w: %s %s of %s: the pinned content is gone: %w", ErrMoved, source.Name, source.Version, source.URL, err)
	}
	return data, warnings, err
}

// fromRepository reads a chart from a chart repository, and sets its version and digest.
func (c *Client) fromRepository(ctx context.Context, source *v1alpha1.ChartSource) ([]byte, error) {
	r, err := c.chartRepository(source.URL)
	if err != nil {
		return nil, err
	}
	all, err := r.index(ctx, source.Name)
	if err != nil {
		return nil, err
	}
	versions := make([]string, len(all))
	for i, v := range all {
		versions[i] = v.Version
	}
	if source.Version, err = newest(versions, source.Version); err != nil {
		return nil, fmt.Errorf("%s of %s: %w", source.Name, source.URL, err)
	}
	found := all[slices.Index(versions, source.Version)]
	data, err := r.read(ctx, found)
	if err != nil {
		return nil, err
	}
	digest := archive.Digest(data)
	if source.Digest != "" && source.Digest != digest {
		return nil, fmt.Errorf("%w: %s %s of %s is %s, and %s is pinned", ErrMoved, source.Name, source.Version, source.URL, digest, source.Digest)
	}
	source.Digest = digest
	return data, nil
}

// unpack makes a chart from a .tgz, whose name and version must match its source.
func unpack(source v1alpha1.ChartSource, data []byte) (*Chart, error) {
	_, files, err := archive.Unpack(data, registry.ChartLimits())
	if err != nil {
		return nil, fmt.Errorf("the .tgz can't be read: %w", err)
	}
	m, err := readMetadata(files)
	if err != nil {
		return nil, err
	}
	if m.Name != source.Name || !same(m.Version, source.Version) {
		return nil, fmt.Errorf("the .tgz holds another chart: %q, version %q", m.Name, m.Version)
	}
	return &Chart{Source: source, Archive: data, Files: files}, nil
}

// local reads a chart from the disk.
func (c *Client) local(want Wanted) (*Chart, error) {
	if want.Version != "" {
		return nil, errors.New("a chart from the disk has the version that it has: leave --version out")
	}
	info, err := os.Stat(want.Chart)
	if err != nil {
		return nil, fmt.Errorf("read the chart: %w", err)
	}
	chart := &Chart{Source: v1alpha1.ChartSource{URL: c.fileURL(want.Chart)}}
	switch {
	case info.IsDir():
		chart.Files, err = readFolderAt(want.Chart)
	case info.Size() > maxArchive:
		err = tooLarge(want.Chart, maxArchive)
	default:
		if chart.Archive, err = os.ReadFile(want.Chart); err == nil {
			chart.Source.Digest = archive.Digest(chart.Archive)
			_, chart.Files, err = archive.Unpack(chart.Archive, registry.ChartLimits())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the chart %s: %w", want.Chart, err)
	}
	m, err := readMetadata(chart.Files)
	if err != nil {
		return nil, fmt.Errorf("read the chart %s: %w", want.Chart, err)
	}
	if wrong := naming.CheckChart(m.Name); wrong != "" {
		return nil, fmt.Errorf("read the chart %s: %s", want.Chart, wrong)
	}
	chart.Source.Name, chart.Source.Version = m.Name, m.Version
	return chart, nil
}

// fileURL names a file relative to the root of the repository. A file outside the repository is
// named by its base name alone, because its path has no meaning on another machine.
func (c *Client) fileURL(file string) string {
	abs, err := filepath.Abs(file)
	root, rootErr := filepath.Abs(c.options.Root)
	if err == nil && rootErr == nil {
		if rel, err := filepath.Rel(root, abs); err == nil && filepath.IsLocal(rel) {
			return "file:" + filepath.ToSlash(rel)
		}
	}
	return "file:" + filepath.Base(abs)
}

// readFolder reads a chart's folder within the limits of a component. It refuses links, because
// their targets can differ on another machine.
func readFolder(root *os.Root) (files []archive.File, err error) {
	limits := registry.ChartLimits()
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case d.IsDir():
			return nil
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is no plain file", name)
		}
		data, err := readLimited(root, name, &limits)
		if err != nil {
			return err
		}
		files = append(files, archive.File{Name: name, Data: data})
		return nil
	})
	slices.SortFunc(files, func(a, b archive.File) int { return strings.Compare(a.Name, b.Name) })
	return files, err //nolint:wrapcheck // the caller says what it is for
}

func readFolderAt(folder string) (files []archive.File, err error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says what it is for
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return readFolder(root)
}

// readLimited reads a file and subtracts it from the limits.
func readLimited(root *os.Root, name string, left *archive.Limits) ([]byte, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	left.Files--
	left.Bytes -= info.Size()
	switch {
	case left.Files < 0:
		return nil, errors.New("it holds too many files for a component")
	case left.Bytes < 0:
		return nil, errors.New("it is too large for a component")
	case info.Size() > left.FileBytes:
		return nil, tooLarge(name, left.FileBytes)
	}
	return root.ReadFile(name) //nolint:wrapcheck // it names the file
}
