package cmd

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

// placed is a container of a component's version, regardless of the cluster.
type placed struct{ component, version, object, container string }

// ran is an image of a container, with the clusters that run it, and the place in meta-config that
// sets it.
type ran struct {
	clusters []string
	at       yamlfile.Position
}

// images records which images a cluster runs. It undoes the mirrors of the cluster, so that they
// cause no differences.
func (v *validation) images(c *registry.Cluster, r rendered) {
	found := renderedImages(r.target)
	v.mu.Lock()
	defer v.mu.Unlock()
	for at, image := range found {
		at.component, at.version = r.delivery.Component, r.delivery.VersionName
		image = unmirrored(image, c.Spec.ImageMirrors)
		if v.ran[at] == nil {
			v.ran[at] = map[string]*ran{}
		}
		one := v.ran[at][image]
		if one == nil {
			one = &ran{at: saidAt(r.delivery.Values, image)}
			v.ran[at][image] = one
		}
		one.clusters = append(one.clusters, c.Name)
	}
}

// differing warns about a version whose images differ between clusters: an image tested on one
// cluster is not the image of another. Images that come from images.yaml alone never differ.
func (v *validation) differing() {
	compare := func(a, b placed) int {
		return cmp.Or(strings.Compare(a.component, b.component), strings.Compare(a.version, b.version), strings.Compare(a.object, b.object), strings.Compare(a.container, b.container))
	}
	for _, at := range slices.SortedFunc(maps.Keys(v.ran), compare) {
		all := v.ran[at]
		if len(all) < 2 {
			continue
		}
		var texts []string
		where := ""
		for _, image := range slices.Sorted(maps.Keys(all)) {
			one := all[image]
			slices.Sort(one.clusters)
			texts = append(texts, fmt.Sprintf("%s on %s", image, cli.Few(one.clusters)))
			if where == "" && one.at.File != "" {
				where = one.at.String() + ": "
			}
		}
		v.warn([]string{fmt.Sprintf(
			"%s%s %s: container %s of %s runs %s: the image of a version is to be the same everywhere, so map it in components/%s/images.yaml (into:)",
			where, at.component, at.version, at.container, at.object, strings.Join(texts, ", "), at.component,
		)})
	}
}

// renderedImages returns the images of a target's pods.
func renderedImages(t *renderer.Target) map[placed]string {
	out := map[placed]string{}
	for _, o := range t.Objects {
		id, _ := differ.Identify(o.Content)
		for _, spec := range [][]string{{"spec"}, {"spec", "template", "spec"}, {"spec", "jobTemplate", "spec", "template", "spec"}} {
			for _, kind := range []string{"containers", "initContainers"} {
				list, _, _ := unstructured.NestedFieldNoCopy(o.Content, slices.Concat(spec, []string{kind})...)
				containers, _ := list.([]any)
				for _, c := range containers {
					m, _ := c.(map[string]any)
					name, _ := m["name"].(string)
					if image, ok := m["image"].(string); ok {
						out[placed{object: id.String(), container: name}] = image
					}
				}
			}
		}
	}
	return out
}

// unmirrored returns an image with its host in git. If several mirrors match, the longest one
// applies.
func unmirrored(image string, mirrors map[string]string) string {
	longest, out := -1, image
	for _, host := range slices.Sorted(maps.Keys(mirrors)) {
		if rest, ok := strings.CutPrefix(image, mirrors[host]+"/"); ok && len(mirrors[host]) > longest {
			longest, out = len(mirrors[host]), host+"/"+rest
		}
	}
	return out
}

// saidAt returns the place in meta-config where an image, or its tag or name, is the only such
// value.
func saidAt(values *registry.Values, image string) yamlfile.Position {
	parts := []string{image}
	if i := strings.LastIndexAny(image, ":@"); i >= 0 {
		parts = append(parts, image[i+1:], image[:i])
	}
	for _, part := range parts {
		if path, ok := values.Only(part); ok {
			at, _ := values.Origin(path...)
			return at
		}
	}
	return yamlfile.Position{}
}
