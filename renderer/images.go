package renderer

import (
	"maps"
	"slices"
	"strings"
)

// imagesKey is the key under which templates find the images of their version.
const imagesKey = "images"

// injectImages merges the version's images into the values. They are the same on every cluster, so
// another value in their place is an error. The registry reports most such errors before a render.
func injectImages(r Request, values map[string]any) *Error {
	if _, set := values[imagesKey]; set && len(r.Version.Images) > 0 {
		return setByImages(r, []string{imagesKey})
	}
	return overlay(r, values, r.Version.ImageValues(r.ImageMirrors), nil)
}

// overlay merges from into values. A different value in the same place is an error.
func overlay(r Request, values, from map[string]any, path []string) *Error {
	for _, key := range slices.Sorted(maps.Keys(from)) {
		at := append(slices.Clone(path), key)
		below, isMap := from[key].(map[string]any)
		old, set := values[key]
		existing, mergeable := old.(map[string]any)
		switch {
		case !set:
			values[key] = from[key]
		case !isMap && old == from[key]:
		case !isMap || !mergeable:
			return setByImages(r, at)
		default:
			if err := overlay(r, existing, below, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func setByImages(r Request, path []string) *Error {
	at, ok := origin(r.Values, path)
	if !ok {
		at = componentPosition(r.Version, "images.yaml", 0)
	}
	return newError(r.Version, at, strings.Join(path, ".")+
		" is set by the component's images.yaml and is the same on every cluster", nil)
}
