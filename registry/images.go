package registry

import (
	"maps"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// intoPart is one path of [v1alpha1.ImagePaths] that is set.
type intoPart struct{ name, path string }

// intoParts lists the paths that are set.
func intoParts(into v1alpha1.ImagePaths) []intoPart {
	all := []intoPart{
		{"ref", into.Ref},
		{"registry", into.Registry},
		{"repository", into.Repository},
		{"tag", into.Tag},
		{"digest", into.Digest},
	}
	return slices.DeleteFunc(all, func(p intoPart) bool { return p.path == "" })
}

// defaultHost is where images without a registry host come from.
const defaultHost = "docker.io"

// splitHost takes the registry host off a repository, as container runtimes
// do: the first part is a host when it holds a dot or colon, or is localhost.
func splitHost(repository string) (host, rest string) {
	first, rest, ok := strings.Cut(repository, "/")
	if ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		return first, rest
	}
	if !ok {
		return defaultHost, "library/" + repository
	}
	return defaultHost, repository
}

// imageParts are the parts of an image as a cluster pulls it.
func imageParts(image v1alpha1.Image, mirrors map[string]string) (ref, registry, path, repository string) {
	host, path := splitHost(image.Repository)
	repository = image.Repository
	if mirror, ok := mirrors[host]; ok {
		// A mirror may be a host and a path: the path goes before the image's.
		var prefix string
		host, prefix, _ = strings.Cut(mirror, "/")
		if prefix != "" {
			path = strings.TrimSuffix(prefix, "/") + "/" + path
		}
		repository = host + "/" + path
	}
	ref = repository
	if image.Tag != "" {
		ref += ":" + image.Tag
	}
	if image.Digest != "" {
		ref += "@" + image.Digest
	}
	return ref, host, path, repository
}

// ImageValues returns the values that the version's images set, above all
// meta-config: .images.NAME.{ref,registry,path,repository,tag,digest} for each
// image, and the paths that images.yaml names in into. repository holds the
// host, path does not. Mirrors rewrite registry hosts. The map is the caller's.
func (v *Version) ImageValues(mirrors map[string]string) map[string]any {
	images := map[string]any{}
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(v.Images)) {
		image := v.Images[name]
		ref, registry, path, repository := imageParts(image, mirrors)
		images[name] = map[string]any{
			"ref": ref, "registry": registry, "path": path, "repository": repository,
			"tag": image.Tag, "digest": image.Digest,
		}
		if image.Into == nil {
			continue
		}
		parts := map[string]string{
			"ref": ref, "registry": registry, "repository": repository, "tag": image.Tag, "digest": image.Digest,
		}
		if image.Into.Registry != "" {
			parts["repository"] = path
		}
		for _, part := range intoParts(*image.Into) {
			if keys, err := ParsePath(part.path); err == nil {
				setPath(out, keys, parts[part.name])
			}
		}
	}
	if len(images) > 0 {
		out["images"] = images
	}
	return out
}

// setPath sets a value in nested maps, which it makes where they are missing.
func setPath(m map[string]any, path []string, value any) {
	for len(path) > 1 {
		next, ok := m[path[0]].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[path[0]] = next
		}
		m, path = next, path[1:]
	}
	if len(path) == 1 {
		m[path[0]] = value
	}
}

// imagePlaces returns the places of ImageValues' values, all in images.yaml.
func (v *Version) imagePlaces() *places {
	root := &places{keys: map[string]*places{}}
	all := &places{keys: map[string]*places{}}
	for name, image := range v.Images {
		from := v.imagesAt.key(name)
		if from == nil {
			continue
		}
		part := func(name string) *places {
			if p := from.key(name); p != nil {
				return &places{point: p.point}
			}
			return &places{point: from.point}
		}
		entry := &places{point: from.point, keys: map[string]*places{}}
		for _, key := range []string{"ref", "registry", "path", "repository"} {
			entry.keys[key] = part("repository")
		}
		entry.keys["tag"], entry.keys["digest"] = part("tag"), part("digest")
		all.keys[name] = entry
		if image.Into == nil {
			continue
		}
		for _, into := range intoParts(*image.Into) {
			if keys, err := ParsePath(into.path); err == nil {
				root.set(keys, from.key("into").key(into.name))
			}
		}
	}
	if v.imagesAt != nil {
		all.point = v.imagesAt.point
		root.keys["images"] = all
	}
	return root
}

// set puts the place of a value at path.
func (p *places) set(path []string, at *places) {
	for len(path) > 0 && at != nil {
		next := p.keys[path[0]]
		if next == nil {
			next = &places{point: at.point, keys: map[string]*places{}}
			p.keys[path[0]] = next
		}
		p, path = next, path[1:]
	}
}

// imageOverrides reports where meta-config sets a value that an image of the
// version sets: the value itself, something below it, or, other than by a map,
// something above it.
func imageOverrides(src *source, v *Version) Problems {
	var out Problems
	for _, name := range slices.Sorted(maps.Keys(v.Images)) {
		into := v.Images[name].Into
		if into == nil {
			continue
		}
		for _, part := range intoParts(*into) {
			keys, err := ParsePath(part.path)
			if err != nil {
				continue
			}
			if p, hit := overridden(src, keys); hit {
				out = append(out, Problem{
					At: p,
					Message: "meta-config must not set " + FormatPath(keys) + ": the image " + name + " of " +
						v.Component + " " + v.Name + " goes there, and is the same on every cluster",
					Hint: "set it in the component's images.yaml and publish a version",
				})
			}
		}
	}
	return out
}

// overridden returns the place where a source sets the value at path.
func overridden(src *source, path []string) (Position, bool) {
	at := view{source: src, value: src.values, place: src.places}
	for _, step := range path {
		if _, isMap := at.value.(map[string]any); !isMap {
			break
		}
		child, ok := at.child(step)
		if !ok {
			return Position{}, false
		}
		at = child
	}
	p, ok := at.position()
	if !ok {
		p = Position{File: src.file}
	}
	return p, true
}
