package renderer

import (
	"fmt"
	"maps"
	"path"
	"strings"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// defaultMaxOutput bounds what templates may render to. The largest public
// charts, with all their custom resource definitions, stay below a third of it.
const defaultMaxOutput = 16 << 20

// execution is a chart with the output of its templates for one set of values.
type execution struct {
	*loadedChart
	top      chartutil.Values
	files    map[string]string // text by Helm's name of the template
	warnings []string
}

// execute runs the templates.
func (c *loadedChart) execute(top chartutil.Values) (*execution, *Error) {
	asked := &lookups{}
	// Templates may write into their values (`set`). The next execution must not see that.
	files, err := engine.RenderWithClientProvider(c.chart, copyTop(top), asked)
	if err != nil {
		return nil, c.templateError(err)
	}
	var bytes int64
	for name, text := range files {
		bytes += int64(len(text))
		if strings.HasSuffix(name, "NOTES.txt") || strings.HasPrefix(path.Base(name), "_") {
			delete(files, name) // notes for people, and partials
		}
	}
	if bytes > c.job.MaxOutput {
		return nil, c.fail(c.longest(files), 0, fmt.Sprintf("the templates render to %d MiB, and may render to %d MiB",
			bytes>>20, c.job.MaxOutput>>20), nil)
	}
	return &execution{loadedChart: c, top: top, files: files, warnings: asked.warnings(c)}, nil
}

// copyTop copies what a template can write to, except the chart's own files.
func copyTop(top chartutil.Values) chartutil.Values {
	out := maps.Clone(top)
	if values, ok := top["Values"].(chartutil.Values); ok {
		out["Values"] = chartutil.Values(copyMap(values))
	}
	return out
}

// longest returns the template with the longest output, by its name under template/.
func (c *loadedChart) longest(files map[string]string) string {
	most, size := "", -1
	for name, text := range files {
		if len(text) > size {
			most, size = name, len(text)
		}
	}
	if src, ok := c.templates[most]; ok {
		return src.file
	}
	return "Chart.yaml"
}
