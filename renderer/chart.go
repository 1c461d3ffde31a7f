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
	// fileOf gives the name under template/ of a file by the address of its first byte: Helm
	// renames files of subcharts, but keeps their bytes.
	fileOf map[*byte]string
	// templates by the names that Helm's engine and its errors use.
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

// chartFiles returns the version's files, without those that .helmignore names, in the order in
// which Helm walks a folder. All files of a packed chart are used: helm package has already left
// ignored files out.
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

// ignored reports whether .helmignore names the file or a folder above it.
func ignored(rules *ignore.Rules, name string) bool {
	for i, r := range name {
		if r == '/' && rules.Ignore(name[:i], fileInfo{name: path.Base(name[:i]), dir: true}) {
			return true
		}
	}
	return rules.Ignore(name, fileInfo{name: path.Base(name)})
}

// fileInfo has the properties of a file that ignore rules read.
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

// check refuses charts that the helm command refuses before it renders.
func (c *loadedChart) check() *Error {
	switch c.chart.Metadata.Type {
	case "", "application":
	default:
		return c.fail("Chart.yaml", 0, "a chart of type "+c.chart.Metadata.Type+" can't be delivered: it must be an application", nil)
	}
	if err := chartutil.ValidateReleaseName(c.version.Component); err != nil {
		return c.fail("Chart.yaml", 0, "the component's name is no Helm release name: "+err.Error(), err)
	}
	// Without a subchart that was not committed, its objects would look unwanted.
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

// fileName returns the file's name under template/. A file of a packed subchart has none, and gets
// the name that Helm uses.
func (c *loadedChart) fileName(f *chart.File, helmName string) string {
	if len(f.Data) > 0 {
		if name, ok := c.fileOf[&f.Data[0]]; ok {
			return name
		}
	}
	_, name, _ := strings.Cut(helmName, "/") // the root chart's name comes first
	return name
}

// loadErrorPlace reads file and line from the text of an error of Helm's loader, whose errors have
// no types.
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
