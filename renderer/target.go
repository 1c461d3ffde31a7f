package renderer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/registry/yamlfile"
)

// maxObjects bounds the objects of one component. The largest public charts
// have a few hundred.
const maxObjects = 10_000

func tooMany() string { return fmt.Sprintf("the chart gives more than %d objects", maxObjects) }

// document is one rendered YAML document with content.
type document struct {
	file    string // under template/
	content map[string]any
	at      yamlfile.Position
}

// target makes objects from the chart's crds/ and the rendered templates.
func (c *loadedChart) target(files map[string]string, scoped map[schema.GroupKind]bool) (*Target, *Error) {
	t := &Target{}
	crds, err := c.crdDocuments(t)
	if err != nil {
		return nil, err
	}
	var docs []document
	for _, name := range slices.Sorted(maps.Keys(files)) {
		src, ok := c.templates[name]
		if !ok {
			src.file = name
		}
		d, err := c.documents(src, files[name], t)
		if err != nil {
			return nil, err
		}
		docs = append(docs, d...)
	}
	objects, hooks, err := c.sortDocuments(docs, t)
	if err != nil {
		return nil, err
	}
	f := finisher{chart: c, scopes: newScopes(scoped, crds, objects), seen: map[objectID]yamlfile.Position{}}
	if t.Objects, err = f.finish(append(crds, objects...)); err != nil {
		return nil, err
	}
	f.seen = nil // two hooks may be the same object at different times
	if t.Hooks, err = f.finish(hooks); err != nil {
		return nil, err
	}
	if err := c.versionConfiguration(t); err != nil {
		return nil, err
	}
	t.Scopes = f.scopes.list()
	if t.Hash, err = c.hash(t); err != nil {
		return nil, err
	}
	if len(t.Objects) == 0 {
		t.Warnings = append(t.Warnings, chartPosition(c.version, "Chart.yaml", 0).String()+": the chart gives no object")
	}
	return t, nil
}

// crdDocuments returns the objects of crds/, which Helm does not treat as templates.
func (c *loadedChart) crdDocuments(t *Target) ([]document, *Error) {
	var docs []document
	seen := map[*chart.File]bool{}
	for _, crd := range c.chart.CRDObjects() {
		if seen[crd.File] { // of a subchart under two aliases: Helm installs it once
			continue
		}
		seen[crd.File] = true
		src := templateSource{file: c.fileName(crd.File, crd.Filename), text: string(crd.File.Data)}
		d, err := c.documents(src, src.text, t)
		if err != nil {
			return nil, err
		}
		docs = append(docs, d...)
	}
	return docs, nil
}

// documents splits and decodes the rendered text of one template.
func (c *loadedChart) documents(src templateSource, text string, t *Target) ([]document, *Error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	if n := strings.Count(text, "\n---"); n > maxObjects { // before any of them is read
		return nil, c.fail(src.file, 0, tooMany(), nil)
	}
	split := releaseutil.SplitManifests(text)
	keys := slices.Collect(maps.Keys(split))
	slices.SortFunc(keys, func(a, b string) int {
		if releaseutil.BySplitManifestsOrder([]string{a, b}).Less(0, 1) {
			return -1
		}
		return 1
	})
	var docs []document
	lines := newSourceLines(src.text)
	for i, k := range keys {
		// Splitting trims the line end, which a block scalar at the end needs. Helm adds it, too.
		content, warnings, failed := decodeDocument(split[k] + "\n")
		m, isMap := content.(map[string]any)
		switch {
		case failed != nil:
			line := lines.failedLine(split[k], failed.line, rendered{index: i, count: len(keys)})
			return nil, c.fail(src.file, line, failed.message, nil)
		case content == nil:
			continue
		case !isMap:
			line := lines.failedLine(split[k], 1, rendered{index: i, count: len(keys)})
			return nil, c.fail(src.file, line, "a document is not a map, so it is no Kubernetes object", nil)
		case deep(m, maxDepth):
			line := lines.failedLine(split[k], 1, rendered{index: i, count: len(keys)})
			return nil, c.fail(src.file, line, fmt.Sprintf("a document is nested deeper than %d levels", maxDepth), nil)
		}
		docs = append(docs, document{file: src.file, content: m, at: chartPosition(c.version, src.file, 0)})
		for _, w := range warnings {
			line := lines.failedLine(split[k], w.line, rendered{index: i, count: len(keys)})
			t.Warnings = append(t.Warnings, chartPosition(c.version, src.file, line).String()+": "+w.message+"; the last one counts")
		}
	}
	locate(docs, lines)
	return docs, nil
}

// failedLine returns the source line of a line in a document that can't be decoded: the equal line
// in the source, or else the document's start.
func (s *sourceLines) failedLine(doc string, line int, r rendered) int {
	text := strings.Split(doc, "\n")
	if line > 0 && line <= len(text) {
		if at := s.lineLike(text[line-1]); at > 0 {
			return at
		}
	}
	return s.line(r)
}

// locate fills in the documents' lines.
func locate(docs []document, lines *sourceLines) {
	kinds := map[string]int{}
	for _, d := range docs {
		kinds[stringAt(d.content, "kind")]++
	}
	seen := map[string]int{}
	for i := range docs {
		k := stringAt(docs[i].content, "kind")
		docs[i].at.Line = lines.line(rendered{
			index: i, count: len(docs),
			kind: k, kindIndex: seen[k], kindCount: kinds[k],
		})
		seen[k]++
	}
}

// sortDocuments puts documents into Helm's install order, and separates the hooks.
func (c *loadedChart) sortDocuments(docs []document, t *Target) (objects, hooks []document, err *Error) {
	// Helm sorts by the head of each document. It gets heads made from the decoded documents, named
	// by their index.
	heads := map[string]string{}
	for i, d := range docs {
		annotations := map[string]string{}
		if hasAnnotation(d.content, release.HookAnnotation) { // Helm does not know an empty one
			annotations[release.HookAnnotation] = annotation(d.content, release.HookAnnotation)
		}
		head, cause := json.Marshal(map[string]any{
			"apiVersion": "v1",
			"kind":       stringAt(d.content, "kind"),
			"metadata":   map[string]any{"name": strconv.Itoa(i), "annotations": annotations},
		})
		if cause != nil {
			return nil, nil, newError(c.version, d.at, cause.Error(), cause)
		}
		heads[fmt.Sprintf("%09d", i)] = string(head) // Helm sorts by file name
	}
	sortedHooks, manifests, cause := releaseutil.SortManifests(heads, nil, releaseutil.InstallOrder)
	if cause != nil {
		return nil, nil, c.fail("Chart.yaml", 0, "objects can't be put in order: "+cause.Error(), cause)
	}
	used := make([]bool, len(docs))
	take := func(name string) document {
		i, _ := strconv.Atoi(name)
		used[i] = true
		return docs[i]
	}
	for _, m := range manifests {
		objects = append(objects, take(m.Name))
	}
	for _, h := range sortedHooks {
		d := take(h.Path)
		if slices.ContainsFunc(h.Events, func(e release.HookEvent) bool { return e != release.HookTest }) {
			hooks = append(hooks, d)
		}
	}
	for i, d := range docs {
		if !used[i] {
			t.Warnings = append(t.Warnings, fmt.Sprintf("%s: the hook %q is unknown to Helm 3, which leaves the object out",
				d.at, annotation(d.content, release.HookAnnotation)))
		}
	}
	return objects, hooks, nil
}

// hash returns the hash of the canonical JSON of the objects in their order, followed by the hooks.
func (c *loadedChart) hash(t *Target) (string, *Error) {
	h := sha256.New()
	enc := json.NewEncoder(h) // sorts keys
	for i, list := range [][]*Object{t.Objects, t.Hooks} {
		if i > 0 && len(list) > 0 {
			h.Write([]byte("hooks\n"))
		}
		for _, o := range list {
			if err := enc.Encode(o.Content); err != nil {
				return "", newError(c.version, o.Source, "the object can't be written as JSON: "+err.Error(), err)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
