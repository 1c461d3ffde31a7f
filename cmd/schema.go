package cmd

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// schemaSources describes the values of --schema.
const schemaSources = "--schema takes CRDs (apiextensions.k8s.io/v1, YAML or JSON), or an OpenAPI document as\n" +
	"kubectl get --raw /openapi/v3/apis/GROUP/VERSION or kubectl get --raw /openapi/v2 prints"

var errNoSchema = errors.New("no kind is described here; " + schemaSources)

// readSchemas returns the built-in schemas of the compared objects. Schemas of CRDs among the
// objects, in their future state, override them; schemas of the files override both.
func readSchemas(files []string, states []differ.State, versions []schema.GroupVersion) (differ.Schemas, error) {
	slices.SortFunc(versions, func(a, b schema.GroupVersion) int { return cmp.Compare(a.String(), b.String()) })
	schemas, err := differ.BuiltInSchemas(slices.Compact(versions)...)
	if err != nil {
		return nil, err
	}
	if err := schemas.AddDefined(states); err != nil {
		return nil, fmt.Errorf("schema among the objects: %w", err)
	}
	for _, file := range files {
		found, err := readSchemaFile(file)
		if err != nil {
			return nil, err
		}
		for _, s := range found {
			schemas.Add(s)
		}
	}
	return schemas, nil
}

func readSchemaFile(file string) ([]*differ.Schema, error) {
	data, err := readFile(file)
	if err != nil {
		return nil, err
	}
	var out []*differ.Schema
	known := 0
	err = eachDocument(file, data, func(text []byte) error {
		found, err := readSchemaDocument(text)
		if err != nil {
			return err
		}
		for _, s := range found {
			known += len(s.Versions())
		}
		out = append(out, found...)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case known == 0:
		return nil, fmt.Errorf("%s: %w", file, errNoSchema)
	}
	return out, nil
}

// readSchemaDocument reads a document that describes kinds. It skips objects of other kinds, which
// projects publish in the same files as CRDs.
func readSchemaDocument(text []byte) ([]*differ.Schema, error) {
	var head struct {
		OpenAPI    string `json:"openapi"`
		Swagger    string `json:"swagger"`
		APIVersion string `json:"apiVersion"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, errNoSchema
	}
	switch {
	case strings.HasPrefix(head.OpenAPI, "3."):
		s, err := differ.ParseOpenAPI(text)
		return []*differ.Schema{s}, err
	case head.Swagger == "2.0":
		s, err := differ.ParseOpenAPIV2(text)
		return []*differ.Schema{s}, err
	case head.APIVersion == "":
		return nil, errNoSchema
	}
	objects, err := readDocument(text, yamlfile.Position{})
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, schemaSources)
	}
	var out []*differ.Schema
	for _, o := range objects {
		u := unstructured.Unstructured{Object: o.content}
		if !differ.IsCRD(differ.ID{Group: u.GroupVersionKind().Group, Kind: u.GetKind()}) {
			continue
		}
		s, err := differ.ParseCRD(o.content)
		if err != nil {
			return nil, fmt.Errorf("%w; a cluster that has it gives it in the right version: kubectl get crd %s -o yaml", err, u.GetName())
		}
		out = append(out, s)
	}
	return out, nil
}
