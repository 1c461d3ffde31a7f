// Package components holds the component definitions that ship with Keelson.
package components

import (
	"embed"
	"fmt"
	"io/fs"
)

//go:embed keelson/template/crds
var files embed.FS

// CRDs returns the manifests of Keelson's own custom resources, one a file.
func CRDs() ([][]byte, error) {
	const folder = "keelson/template/crds"
	entries, err := fs.ReadDir(files, folder)
	if err != nil {
		return nil, fmt.Errorf("read the shipped CRDs: %w", err)
	}
	var out [][]byte
	for _, e := range entries {
		data, err := files.ReadFile(folder + "/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("read the shipped CRD %s: %w", e.Name(), err)
		}
		out = append(out, data)
	}
	return out, nil
}

// CRD returns the manifest of one of Keelson's own custom resources, by its plural.
func CRD(plural string) ([]byte, error) {
	data, err := files.ReadFile("keelson/template/crds/keelson.io_" + plural + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("read the shipped CRD of %s: %w", plural, err)
	}
	return data, nil
}
