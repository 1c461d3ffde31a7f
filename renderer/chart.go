package renderer

import (
	"bytes"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/ignore"

	"github.com/keelson-io/keelson/registry"
)

// loadedChart is a chart that one render owns: Helm changes charts while it
// processes their dependencies.
type loadedChart struct {
	job     *job
	version *registry.Version
	chart   *chart.Chart
	// fileOf gives the name under template/ of a file by its first byte's
	// address: Helm renames files of subcharts and keeps their bytes.
	fileOf map[*byte]string
	// templates by the name that Helm's engine and its errors give them.
	templates map[string]templateSource
}

type templateSource struct {
	file string // under template/
	text string
}

// loadChart reads a job's files as Helm reads a chart's folder.
func loadChart(j *job) (*loadedChart, *Error) {
	c := &loadedChart{job: j, version: j.version(), fileOf: map[*byte]string{}}
	files, err := c.chartFiles()
	if err != nil {
		return nil, err
	}
	loaded, cause := loader.LoadFiles(files)
	if cause != nil {
		file, line := loadErrorPlace(cause.Error())
		return nil, c.fail(file, line, cause.Error(), cause)
	}
	c.chart = loaded
	sortDependencies(loaded)
	if err := c.check(); err != nil {
		return nil, err
	}
	return c, nil
}

// chartFiles are the version's files without those that .helmignore names, in
// the order in which Helm walks a folder. Of a packed chart they are all files:
// helm package has left the others out.
func (c *loadedChart) chartFiles() ([]*loader.BufferedFile, *Error) {
	rules := ignore.Empty()
	for _, f := range c.version.Chart {
		if f.Name != ignore.HelmIgnore || c.version.Archive != "" {
			continue
		}
		parsed, err := ignore.Parse(bytes.NewReader(f.Data))
		if err != nil {
			return nil, c.fail(ignore.HelmIgnore, 0, err.Error(), err)
		}
		rules = parsed
	}
	if c.version.Archive == "" {
		rules.AddDefaults()
	}

	var files []*loader.BufferedFile
	for _, f := range c.version.Chart {
		if ignored(rules, f.Name) {
			continue
		}
		data := bytes.TrimPrefix(f.Data, []byte("\xEF\xBB\xBF")) // as Helm does
		if len(data) > 0 {
			c.fileOf[&data[0]] = f.Name
		}
		files = append(files, &loader.BufferedFile{Name: f.Name, Data: data})
	}
	slices.SortFunc(files, func(a, b *loader.BufferedFile) int {
		return slices.Compare(strings.Split(a.Name, "/"), strings.Split(b.Name, "/"))
	})
	return files, nil
}

// ignored tells whether .helmignore names the file or a folder above it.
func ignored(rules *ignore.Rules, name string) bool {
	for i, r := range name {
		if r == '/' && rules.Ignore(name[:i], fileInfo{name: path.Base(name[:i]), dir: true}) {
			return true
		}
	}
	return rules.Ignore(name, fileInfo{name: path.Base(name)})
}

// fileInfo is what ignore rules ask of a file.
type fileInfo struct {
	name string
	dir  bool
}

func (f fileInfo) Name() string     { return f.name }
func (fileInfo) Size() int64        { return 0 }
func (fileInfo) ModTime() time.Time { return time.Time{} }
func (f fileInfo) IsDir() bool      { return f.dir }
func (fileInfo) Sys() any           { return nil }
func (f fileInfo) Mode() fs.FileMode {
	if f.dir {
		return fs.ModeDir
	}
	return 0
}

// sortDependencies orders subcharts by name: Helm loads them in the random
// order of a map.
func sortDependencies(c *chart.Chart) {
	deps := slices.Clone(c.Dependencies())
	slices.SortStableFunc(deps, func(a, b *chart.Chart) int {
		if n := strings.Compare(a.Name(), b.Name()); n != 0 {
			return n
		}
		return strings.Compare(a.Metadata.Version, b.Metadata.Version)
	})
	c.SetDependencies(deps...)
	for _, d := range deps {
		sortDependencies(d)
	}
}

// check refuses what the helm command refuses before it renders.
func (c *loadedChart) check() *Error {
	switch c.chart.Metadata.Type {
	case "", "application":
	default:
		return c.fail("Chart.yaml", 0, "a chart of type "+c.chart.Metadata.Type+" can't be delivered: it must be an application", nil)
	}
	if err := chartutil.ValidateReleaseName(c.version.Component); err != nil {
		return c.fail("Chart.yaml", 0, "the component's name is no Helm release name: "+err.Error(), err)
	}
	// A subchart that was not committed would look like objects that are no
	// longer wanted.
	for _, want := range c.chart.Metadata.Dependencies {
		if want != nil && !slices.ContainsFunc(c.chart.Dependencies(), func(d *chart.Chart) bool { return d.Name() == want.Name }) {
			return c.fail("Chart.yaml", 0, "the dependency "+want.Name+" is missing in charts/", nil)
		}
	}
	return nil
}

// processDependencies leaves out subcharts by condition and tag, and imports
// values, as helm install does.
func (c *loadedChart) processDependencies(values map[string]any, caps *chartutil.Capabilities) *Error {
	if err := chartutil.ProcessDependenciesWithMerge(c.chart, values); err != nil {
		return c.fail("Chart.yaml", 0, "dependencies: "+err.Error(), err)
	}
	if want := c.chart.Metadata.KubeVersion; want != "" && !chartutil.IsCompatibleRange(want, caps.KubeVersion.String()) {
		return c.fail("Chart.yaml", 0, "the chart wants Kubernetes "+want+", the cluster has "+caps.KubeVersion.String(), nil)
	}
	c.templates = map[string]templateSource{}
	c.addTemplates(c.chart)
	return nil
}

func (c *loadedChart) addTemplates(ch *chart.Chart) {
	for _, t := range ch.Templates {
		name := path.Join(ch.ChartFullPath(), t.Name)
		c.templates[name] = templateSource{file: c.fileName(t, name), text: string(t.Data)}
	}
	for _, d := range ch.Dependencies() {
		c.addTemplates(d)
	}
}

// fileName is the file's name under template/. A file out of a packed
// subchart has none of its own, and goes by the name that Helm gives it.
func (c *loadedChart) fileName(f *chart.File, helmName string) string {
	if len(f.Data) > 0 {
		if name, ok := c.fileOf[&f.Data[0]]; ok {
			return name
		}
	}
	_, name, _ := strings.Cut(helmName, "/") // the root chart's name comes first
	return name
}

// loadErrorPlace reads file and line from the text of an error of Helm's
// loader, which has no types.
func loadErrorPlace(text string) (file string, line int) {
	file = "Chart.yaml"
	if m := regexp.MustCompile(`cannot load (\S+):`).FindStringSubmatch(text); m != nil {
		file = m[1]
	}
	if m := regexp.MustCompile(`error unpacking subchart (\S+) in`).FindStringSubmatch(text); m != nil {
		return "charts/" + m[1], 0
	}
	if m := regexp.MustCompile(`yaml: line (\d+):`).FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
	}
	return file, line
}
