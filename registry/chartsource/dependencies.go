package chartsource

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/archive"
	"github.com/keelson-io/keelson/registry/naming"
)

// complete returns the chart with its dependencies.
func (c *Client) complete(ctx context.Context, chart *Chart, from Wanted, pins []v1alpha1.ChartDependency) (*Chart, error) {
	if err := c.addDependencies(ctx, chart, from, pins); err != nil {
		return nil, err
	}
	return chart, nil
}

// addDependencies gets the charts that Chart.yaml names and charts/ does not hold, like helm
// dependency build: the locked version, otherwise the newest in the range. With pins, only pinned
// versions are used. A packed chart holds its dependencies already, unless it was packed by hand.
func (c *Client) addDependencies(ctx context.Context, chart *Chart, from Wanted, pins []v1alpha1.ChartDependency) error {
	m, err := readMetadata(chart.Files)
	if err != nil {
		return err
	}
	have, err := bundled(chart.Files)
	if err != nil {
		return err
	}
	brought := map[string]string{}
	for _, d := range m.Dependencies {
		if v, ok := brought[d.Name]; ok && !satisfies(d.Version, v) {
			return fmt.Errorf("%s %s depends on two versions of %s, %s and %s: run helm dependency build and vendor the folder",
				m.Name, m.Version, d.Name, v, d.Version)
		}
		if have[d.Name] {
			continue
		}
		have[d.Name] = true
		sub, err := c.dependency(ctx, d, from, pins)
		if err != nil {
			return fmt.Errorf("%s %s depends on %s %s: %w", m.Name, m.Version, d.Name, d.Version, err)
		}
		brought[d.Name] = sub.Source.Version
		digest := sub.Source.Digest
		if digest == "" {
			digest = archive.Sum(sub.Files)
		}
		chart.Source.Dependencies = append(chart.Source.Dependencies, v1alpha1.ChartDependency{
			URL: sub.Source.URL, Name: sub.Source.Name, Version: sub.Source.Version, Digest: digest,
		})
		for _, f := range sub.Files {
			chart.Files = append(chart.Files, archive.File{Name: path.Join("charts", d.Name, f.Name), Data: f.Data})
		}
		chart.Warnings = append(chart.Warnings, sub.Warnings...)
	}
	slices.SortFunc(chart.Files, func(a, b archive.File) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// dependency gets one dependency, which must hold its own dependencies.
func (c *Client) dependency(ctx context.Context, d dependency, from Wanted, pins []v1alpha1.ChartDependency) (*Chart, error) {
	if wrong := naming.CheckChart(d.Name); wrong != "" {
		return nil, fmt.Errorf("%s", wrong)
	}
	var want Wanted
	switch scheme, rest, _ := strings.Cut(d.Repository, "://"); {
	case d.Repository == "":
		return nil, fmt.Errorf("it names no repository, and it is not in charts/")
	case pins != nil:
		return c.pinnedDependency(ctx, d, pins)
	case scheme == "file":
		folder, ok := localFolder(from)
		if !ok {
			return nil, fmt.Errorf("it is in a folder beside the chart (%s), which did not come along", d.Repository)
		}
		want = Wanted{Chart: filepath.Join(folder, filepath.FromSlash(rest))}
	case scheme == "oci", scheme == "https", scheme == "http":
		want = Wanted{Chart: d.Name, Repository: d.Repository, Version: d.Version}
	default:
		return nil, fmt.Errorf("its repository %q is a name of a local helm configuration: run helm dependency build and vendor the folder", d.Repository)
	}
	sub, err := c.resolve(ctx, want)
	if err != nil {
		return nil, err
	}
	if sub.Source.Name != d.Name || !satisfies(d.Version, sub.Source.Version) && !same(d.Version, sub.Source.Version) {
		return nil, fmt.Errorf("it contains %s %s", sub.Source.Name, sub.Source.Version)
	}
	return selfContained(sub)
}

// localFolder returns the folder of a chart on disk; false for any other chart.
func localFolder(from Wanted) (string, bool) {
	if from.Chart == "" || from.Repository != "" || strings.Contains(from.Chart, "://") || strings.HasSuffix(from.Chart, ".tgz") {
		return "", false
	}
	return from.Chart, true
}

func (c *Client) pinnedDependency(ctx context.Context, d dependency, pins []v1alpha1.ChartDependency) (*Chart, error) {
	for _, pin := range pins {
		if pin.Name != d.Name {
			continue
		}
		sub, err := c.remote(ctx, v1alpha1.ChartSource{URL: pin.URL, Name: pin.Name, Version: pin.Version, Digest: pin.Digest})
		if err != nil {
			return nil, err
		}
		return selfContained(sub)
	}
	return nil, fmt.Errorf("chart.yaml does not pin it")
}

// selfContained refuses a dependency that lacks its own dependencies. helm dependency build
// resolves only one level, too.
func selfContained(sub *Chart) (*Chart, error) {
	m, err := readMetadata(sub.Files)
	if err != nil {
		return nil, err
	}
	have, err := bundled(sub.Files)
	if err != nil {
		return nil, err
	}
	for _, d := range m.Dependencies {
		if !have[d.Name] {
			return nil, fmt.Errorf("its own dependency %s is not in it: pack it with helm package", d.Name)
		}
	}
	return sub, nil
}

// bundled returns the names of the charts in charts/.
func bundled(files []archive.File) (map[string]bool, error) {
	have := map[string]bool{}
	for _, f := range files {
		rest, inside := strings.CutPrefix(f.Name, "charts/")
		if !inside {
			continue
		}
		switch parts := strings.Split(rest, "/"); {
		case len(parts) == 2 && parts[1] == "Chart.yaml":
			m, err := readMetadata([]archive.File{{Name: "Chart.yaml", Data: f.Data}})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			have[m.Name] = true
		case len(parts) == 1 && path.Ext(rest) == ".tgz":
			_, inside, err := archive.Unpack(f.Data, registry.ChartLimits())
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			m, err := readMetadata(inside)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			have[m.Name] = true
		}
	}
	return have, nil
}
