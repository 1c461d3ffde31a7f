package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// intoPart is one set path of [v1alpha1.ImagePaths].
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

// ResolvedImage is an image with the mirrors of a cluster applied.
type ResolvedImage struct {
	// Ref is the whole reference: REPOSITORY[:TAG][@DIGEST].
	Ref string
	// Repository includes the registry, as written or with the mirror.
	Repository string
	// Registry is the host alone, or the mirror; Path is the rest.
	Registry, Path string
	Tag, Digest    string
}

// ResolveImage applies a cluster's mirrors to an image.
func ResolveImage(image v1alpha1.Image, mirrors map[string]string) ResolvedImage {
	host, path := splitHost(image.Repository)
	out := ResolvedImage{
		Repository: image.Repository, Registry: host, Path: path, Tag: image.Tag, Digest: image.Digest,
	}
	if mirror := strings.TrimSuffix(mirrors[host], "/"); mirror != "" {
		out.Registry, out.Repository = mirror, mirror+"/"+path
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

// splitHost splits the registry host from a repository, like container engines: the first part is a
// host if it has a dot, a port or a capital letter, or is localhost. Without a host, the host is
// docker.io, and a single name belongs to library/.
func splitHost(repository string) (host, path string) {
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
		repository = "library/" + repository
	}
	return "docker.io", repository
}

// intoKeys returns the keys of a path that receives a part of an image.
func intoKeys(path string) []string { return strings.Split(path, ".") }

// ImageValues returns the values that the version's images set, above all meta-config:
// .images.NAME.{ref,registry,repository,tag,digest} for each image, and the paths of into in
// images.yaml. If into has a path for the registry, the repository there has no host. The caller
// may change the map.
func (v *Version) ImageValues(mirrors map[string]string) map[string]any {
	images := map[string]any{}
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(v.Images)) {
		image := v.Images[name]
		res := ResolveImage(image, mirrors)
		parts := map[string]any{
			"ref": res.Ref, "registry": res.Registry, "repository": res.Repository,
			"tag": res.Tag, "digest": res.Digest,
		}
		images[name] = parts
		if image.Into == nil {
			continue
		}
		for _, part := range intoParts(*image.Into) {
			value := parts[part.name]
			if part.name == "repository" && image.Into.Registry != "" {
				value = res.Path
			}
			setPath(out, intoKeys(part.path), value)
		}
	}
	if len(images) > 0 {
		out["images"] = images
	}
	return out
}

// setPath sets a value in nested maps, and creates missing maps.
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

// imagePlaces returns the positions of ImageValues' values, all in images.yaml.
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
				return &places{Point: p.Point}
			}
			return &places{Point: from.Point}
		}
		entry := &places{Point: from.Point, keys: map[string]*places{}}
		for _, key := range []string{"ref", "registry", "repository"} {
			entry.keys[key] = part("repository")
		}
		entry.keys["tag"], entry.keys["digest"] = part("tag"), part("digest")
		all.keys[name] = entry
		if image.Into == nil {
			continue
		}
		for _, into := range intoParts(*image.Into) {
			root.set(intoKeys(into.path), from.key("into").key(into.name))
		}
	}
	if v.imagesAt != nil {
		all.Point = v.imagesAt.Point
		root.keys["images"] = all
	}
	return root
}

// set sets the position of the value at path.
func (p *places) set(path []string, at *places) {
	for len(path) > 0 && at != nil {
		next := p.keys[path[0]]
		if next == nil {
			next = &places{Point: at.Point, keys: map[string]*places{}}
			p.keys[path[0]] = next
		}
		p, path = next, path[1:]
	}
}

// imageOverrides reports where meta-config sets a value that an image of the version sets: the
// value itself, a value below it, or a value above it that is no map.
func imageOverrides(src *source, v *Version) yamlfile.Problems {
	var out yamlfile.Problems
	for _, name := range slices.Sorted(maps.Keys(v.Images)) {
		into := v.Images[name].Into
		if into == nil {
			continue
		}
		for _, part := range intoParts(*into) {
			keys := intoKeys(part.path)
			if p, hit := overridden(src, keys); hit {
				out = append(out, yamlfile.Problem{
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

// overridden returns the position where a source sets the value at path.
func overridden(src *source, path []string) (yamlfile.Position, bool) {
	at := view{source: src, value: src.values, place: src.places}
	for _, step := range path {
		if _, isMap := at.value.(map[string]any); !isMap {
			break
		}
		child, ok := at.child(step)
		if !ok {
			return yamlfile.Position{}, false
		}
		at = child
	}
	p, ok := at.position()
	if !ok {
		p = yamlfile.Position{File: src.file}
	}
	return p, true
}

// imageChecker checks the images of a component or of a probe.
type imageChecker struct{ checker }

// image checks one entry of images.yaml.
func (c imageChecker) image(name string, image v1alpha1.Image) {
	path := []string{"images", name}
	if !isImageName(name) {
		c.key(path, fmt.Sprintf("image name %q must start with a letter and hold letters, digits, dashes and underscores", name), "")
	}
	if image.Repository != "" {
		if wrong := checkRepository(image.Repository); wrong != "" {
			c.value(yamlfile.Below(path, "repository"), wrong, "the tag and digest have keys of their own")
		}
	}
	if image.Tag == "" && image.Digest == "" && !c.doc.Wrong(path...) {
		c.key(path, fmt.Sprintf("image %s has neither tag nor digest", name), "")
	}
	if wrong := checkTag(image.Tag); wrong != "" {
		c.value(yamlfile.Below(path, "tag"), wrong, "")
	}
	if image.Digest != "" {
		if wrong := naming.CheckDigest(image.Digest); wrong != "" {
			c.value(yamlfile.Below(path, "digest"), wrong, "")
		}
	}
	if image.Into != nil {
		c.into(yamlfile.Below(path, "into"), *image.Into)
	}
}

func (c imageChecker) into(path []string, into v1alpha1.ImagePaths) {
	for _, part := range intoParts(into) {
		keys := intoKeys(part.path)
		switch {
		case slices.ContainsFunc(keys, func(key string) bool { return !isImageName(key) }):
			c.value(yamlfile.Below(path, part.name), fmt.Sprintf("path %q must be keys with dots between them", part.path),
				"for example controller.image.tag")
		case keys[0] == "images":
			c.value(yamlfile.Below(path, part.name), "the value images is set for every chart already", "")
		}
	}
}

func isImageName(name string) bool {
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || (r < '0' || r > '9') && r != '-' && r != '_') {
			return false
		}
	}
	return name != ""
}

// checkRepository returns what is wrong with the name of an image without tag and digest.
func checkRepository(repository string) string {
	last := repository[strings.LastIndex(repository, "/")+1:]
	switch {
	case last == "":
		return fmt.Sprintf("repository %q has no name behind the last slash", repository)
	case strings.Contains(repository, "@"):
		return fmt.Sprintf("repository %q holds a digest", repository)
	case strings.Contains(last, ":") && strings.Contains(repository, "/"):
		return fmt.Sprintf("repository %q holds a tag", repository)
	case strings.ContainsFunc(repository, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r > unicode.MaxASCII }):
		return fmt.Sprintf("repository %q holds characters that no repository has", repository)
	}
	return ""
}

func checkTag(tag string) string {
	bad := strings.ContainsFunc(tag, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
	if bad || len(tag) > 128 || strings.HasPrefix(tag, ".") || strings.HasPrefix(tag, "-") {
		return fmt.Sprintf("tag %q is not the tag of an image", tag)
	}
	return ""
}
