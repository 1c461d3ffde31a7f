package renderer

import (
	"maps"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// imagesKey is where templates find the images of their version.
const imagesKey = "images"

// resolvedImage is an image as one cluster pulls it.
type resolvedImage struct {
	Ref        string `json:"ref"`        // repository[:tag][@digest]
	Repository string `json:"repository"` // with the registry host
	Registry   string `json:"registry"`   // the host alone
	Tag        string `json:"tag"`
	Digest     string `json:"digest"`
	path       string // the repository without its host
}

// resolve applies a cluster's mirrors to an image. A repository that no mirror
// rewrites stays as written.
func resolve(img v1alpha1.Image, mirrors map[string]string) resolvedImage {
	host, path := splitRepository(img.Repository)
	out := resolvedImage{
		Repository: img.Repository,
		Registry:   host,
		Tag:        img.Tag,
		Digest:     img.Digest,
		path:       path,
	}
	if mirror := strings.TrimSuffix(mirrors[host], "/"); mirror != "" {
		out.Registry = mirror
		out.Repository = mirror + "/" + path
	}
	out.Ref = out.Repository
	if out.Tag != "" {
		out.Ref += ":" + out.Tag
	}
	if out.Digest != "" {
		out.Ref += "@" + out.Digest
	}
	return out
}

// splitRepository splits off the registry host as container engines do: what
// stands before the first slash is a host when it has a dot or a port or is
// localhost. Without a host it is docker.io, and a single name lies in library/.
func splitRepository(repository string) (host, path string) {
	first, rest, found := strings.Cut(repository, "/")
	if found && (strings.ContainsAny(first, ".:") || first == "localhost" || strings.ToLower(first) != first) {
		if first == "index.docker.io" {
			first = "docker.io"
		}
		if first == "docker.io" && !strings.Contains(rest, "/") {
			rest = "library/" + rest
		}
		return first, rest
	}
	if !found {
		return "docker.io", "library/" + repository
	}
	return "docker.io", repository
}

// injectImages sets .Values.images and the paths that images.yaml names. The
// images of a version are the same everywhere, so meta-config that sets them
// is an error.
func injectImages(r Request, values map[string]any) *Error {
	if len(r.Version.Images) == 0 {
		return nil
	}
	if _, ok := values[imagesKey]; ok {
		return setByImages(r, []string{imagesKey}, "images come from the component's images.yaml and are the same on every cluster")
	}
	all := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(r.Version.Images)) {
		img := r.Version.Images[name]
		res := resolve(img, r.ImageMirrors)
		all[name] = map[string]any{
			"ref":        res.Ref,
			"repository": res.Repository,
			"registry":   res.Registry,
			"tag":        res.Tag,
			"digest":     res.Digest,
		}
		for _, p := range imageParts(img.Into, res) {
			if err := injectImage(r, values, p); err != nil {
				return err
			}
		}
	}
	values[imagesKey] = all
	return nil
}

// imagePart is one value that an image puts at a path of the chart's own.
type imagePart struct{ path, value string }

func imageParts(into *v1alpha1.ImagePaths, res resolvedImage) []imagePart {
	if into == nil {
		return nil
	}
	repository := res.Repository
	if into.Registry != "" {
		repository = res.path
	}
	// Empty tags and digests are set too: the chart's default would be
	// another image's.
	parts := []imagePart{
		{into.Ref, res.Ref},
		{into.Registry, res.Registry},
		{into.Repository, repository},
		{into.Tag, res.Tag},
		{into.Digest, res.Digest},
	}
	return slices.DeleteFunc(parts, func(p imagePart) bool { return p.path == "" })
}

func injectImage(r Request, values map[string]any, p imagePart) *Error {
	keys := strings.Split(p.path, ".")
	at := values
	for i, k := range keys[:len(keys)-1] {
		next, ok := at[k]
		if !ok {
			m := map[string]any{}
			at[k], at = m, m
			continue
		}
		m, ok := next.(map[string]any)
		if !ok {
			return setByImages(r, keys[:i+1], "the component's images.yaml sets "+p.path+", so this must stay a map")
		}
		at = m
	}
	last := keys[len(keys)-1]
	if old, ok := at[last]; ok && old != any(p.value) {
		return setByImages(r, keys, p.path+" is set by the component's images.yaml and is the same on every cluster")
	}
	at[last] = p.value
	return nil
}

func setByImages(r Request, path []string, message string) *Error {
	at, ok := origin(r.Values, path)
	if !ok {
		at = componentPosition(r.Version, "images.yaml", 0)
	}
	return newError(r.Version, at, message, nil)
}
