package renderer

import (
	"strings"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// execute runs the templates and returns their text by Helm's name for each.
func (c *loadedChart) execute(top chartutil.Values) (map[string]string, []string, *Error) {
	asked := &lookups{}
	files, err := engine.RenderWithClientProvider(c.chart, top, asked)
	if err != nil {
		return nil, nil, c.templateError(err)
	}
	for name := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			delete(files, name)
		}
	}
	return files, asked.warnings(c), nil
}
