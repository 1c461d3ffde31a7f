package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/lab/cluster"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

func newOpenAPI(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "openapi NAME FOLDER",
		Short: "Write the OpenAPI documents of a cluster, without descriptions",
		Long: `Writes the OpenAPI v3 document of each group and version that a cluster serves
into a folder, as GROUP_VERSION.json.gz (v1 is core_v1.json.gz), with what
people read left out. keelson diff builds those of a current Kubernetes in.`,
		Example:           `  lab openapi a ../differ/openapi`,
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: complete(open, false),
		RunE: open.run(func(c *cobra.Command, l *cluster.Lab, given []string) error {
			kubeconfig, err := l.Kubeconfig(given[0], cluster.Admin)
			if err != nil {
				return err
			}
			if err := must.Try(func() { writeDocuments(c.Context(), kubeconfig, given[1]) }); err != nil {
				return fmt.Errorf("OpenAPI of %s: %w", given[0], err)
			}
			return nil
		}),
	}
}

// writeDocuments is a step of package must, as what it calls.
func writeDocuments(ctx context.Context, kubeconfig, folder string) {
	config := must.Get(clientcmd.BuildConfigFromFlags("", kubeconfig))
	client := must.Get(discovery.NewDiscoveryClientForConfig(config)).OpenAPIV3WithContext(ctx)
	for path, doc := range must.Get(client.PathsWithContext(ctx)) {
		if name, ok := documentName(path); ok {
			must.Wrap(func() {
				writeDocument(filepath.Join(folder, name), must.Get(doc.SchemaWithContext(ctx, runtime.ContentTypeJSON)))
			}, "%s", path)
		}
	}
}

// documentName returns the file name for a group and version; ok is false for other paths.
func documentName(path string) (string, bool) {
	parts := strings.Split(path, "/")
	switch {
	case len(parts) == 2 && parts[0] == "api":
		return "core_" + parts[1] + ".json.gz", true
	case len(parts) == 3 && parts[0] == "apis":
		return parts[1] + "_" + parts[2] + ".json.gz", true
	}
	return "", false
}

// writeDocument writes only the schemas. Equal input gives equal bytes.
func writeDocument(file string, data []byte) {
	var doc struct {
		OpenAPI    string         `json:"openapi"`
		Info       any            `json:"info"`
		Paths      map[string]any `json:"paths"`
		Components struct {
			Schemas map[string]any `json:"schemas"`
		} `json:"components"`
	}
	must.Do(json.Unmarshal(data, &doc))
	doc.Paths = map[string]any{}
	withoutProse(doc.Components.Schemas)
	must.Do(harness.WriteGzip(file, must.Get(json.Marshal(doc))))
}

// withoutProse removes descriptions. A property named description stays: its value is a schema, not
// a text.
func withoutProse(v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			if _, text := child.(string); text && name == "description" {
				delete(v, name)
				continue
			}
			withoutProse(child)
		}
	case []any:
		for _, child := range v {
			withoutProse(child)
		}
	}
}
