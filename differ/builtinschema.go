package differ

import (
	"bytes"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// openAPI holds the documents of a stock Kubernetes, without descriptions;
// make openapi refreshes them.
//
//go:embed openapi/*.json.gz
var openAPI embed.FS

// BuiltInSchemas returns the schemas of the wanted groups and versions that a stock Kubernetes
// (v1.36) serves. All other groups and versions are omitted: differ then deduces types, as for a
// custom resource without a schema. The error names the group and version.
func BuiltInSchemas(wanted ...schema.GroupVersion) (Schemas, error) {
	out := Schemas{}
	for _, gv := range wanted {
		document, err := BuiltInDocument(gv)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("built-in schema of %s: %w", gv, err)
		}
		if out[gv], err = ParseOpenAPI(document); err != nil {
			return nil, fmt.Errorf("built-in schema of %s: %w", gv, err)
		}
	}
	return out, nil
}

// BuiltInDocument returns the OpenAPI v3 document of a stock Kubernetes (v1.36) for a group and
// version, without descriptions. The error wraps [fs.ErrNotExist] if there is no such document.
func BuiltInDocument(gv schema.GroupVersion) ([]byte, error) {
	packed, err := openAPI.ReadFile("openapi/" + documentName(gv))
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	document, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	return document, nil
}

func documentName(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "core_" + gv.Version + ".json.gz"
	}
	return strings.ReplaceAll(gv.String(), "/", "_") + ".json.gz"
}

// Versions returns the groups and versions of the kinds in the schema, in any order.
func (s *Schema) Versions() []schema.GroupVersion {
	seen := map[schema.GroupVersion]bool{}
	var out []schema.GroupVersion
	for gvk := range s.types {
		if gv := gvk.GroupVersion(); !seen[gv] {
			seen[gv] = true
			out = append(out, gv)
		}
	}
	return out
}
