package registry

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/window"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// decodeFile decodes a file of the given kind into the struct that into points to, and reports
// every mistake. After a mistake it decodes the rest, so that the caller knows what the mistake
// affects. Values of a file with mistakes must not be used otherwise.
func decodeFile(data []byte, kind string, into any) *yamlfile.Document {
	doc, _ := decodeEncrypted(data, kind, into)
	return doc
}

// decodeEncrypted is decodeFile for a file whose values may be encrypted. encrypted is the file
// itself if some are.
func decodeEncrypted(data []byte, kind string, into any) (doc *yamlfile.Document, encrypted *encryptedDocument) {
	doc = yamlfile.Parse(data)
	if doc.Broken {
		return doc, nil
	}
	if encrypted = readEncrypted(doc, data, kind); doc.Broken {
		return doc, nil
	}
	if checkHeader(doc, kind) {
		doc.Broken = true
		return doc, encrypted
	}
	doc.Decode(into)
	return doc, encrypted
}

// checkHeader reports a file of another kind, for which further problems make no sense.
func checkHeader(doc *yamlfile.Document, kind string) (wrong bool) {
	header, _ := doc.Value.(map[string]any)
	for key, want := range map[string]string{
		"apiVersion": v1alpha1.GroupVersion.String(),
		"kind":       kind,
	} {
		got, ok := header[key]
		if ok && got != want {
			wrong = true
			doc.Add(doc.ValuePoint(key), []string{key}, fmt.Sprintf("%s is %s, want %s here", key, yamlfile.Describe(got), want), "")
		}
	}
	return wrong
}

// The types below hold the decoded content of files. They hold no path, because several paths may
// have the same content.

type fleetFile struct {
	spec       v1alpha1.Fleet
	pipelineAt yamlfile.Point
	yamlfile.Mistakes
	broken bool
}

func decodeFleet(data []byte) *fleetFile {
	f := &fleetFile{}
	doc := decodeFile(data, v1alpha1.KindFleet, &f.spec)
	if !doc.Broken {
		c := checker{doc}
		c.drift(f.spec.Drift)
		ruleChecker{c}.danger(f.spec.Danger, true)
		c.dangerProfile(f.spec.DangerProfile)
		c.oneOf([]string{"verify"}, string(f.spec.Verify), string(v1alpha1.VerifySigned), string(v1alpha1.VerifySignedTags))
		c.oneOf([]string{"promotableTags"}, string(f.spec.PromotableTags), string(v1alpha1.PromotableMerged), string(v1alpha1.PromotableAll))
		c.oneOf([]string{"projects"}, string(f.spec.Projects), string(v1alpha1.ProjectsOptional), string(v1alpha1.ProjectsRequired))
		c.pipeline(f.spec.Pipeline)
		f.pipelineAt = doc.ValuePoint("pipeline")
	}
	f.Mistakes, f.broken = doc.Mistakes, doc.Broken
	return f
}

type clusterFile struct {
	spec v1alpha1.Cluster
	// connectionAt is the position of the connection, and labelsAt the position of each label.
	connectionAt yamlfile.Point
	labelsAt     map[string]yamlfile.Point
	// connected: the file sets connection.
	connected bool
	yamlfile.Mistakes
	broken bool
}

func decodeCluster(data []byte) *clusterFile {
	f := &clusterFile{}
	doc := decodeFile(data, v1alpha1.KindCluster, &f.spec)
	if !doc.Broken {
		c := checker{doc}
		c.labels([]string{"labels"}, f.spec.Labels)
		_, said := doc.Lookup("connection")
		if f.connected = said != nil; f.connected {
			c.connection([]string{"connection"}, f.spec.Connection)
		}
		f.connectionAt, f.labelsAt = yamlfile.Point{Line: 1, Column: 1}, map[string]yamlfile.Point{}
		if f.connected {
			f.connectionAt = doc.KeyPoint("connection")
		}
		for label := range f.spec.Labels {
			f.labelsAt[label] = doc.KeyPoint("labels", label)
		}
		c.mirrors(f.spec.ImageMirrors)
	}
	f.Mistakes, f.broken = doc.Mistakes, doc.Broken
	return f
}

type metaFile struct {
	spec      v1alpha1.MetaConfig
	versionAt yamlfile.Point
	absentAt  yamlfile.Point
	places    *places
	encrypted *encryptedDocument
	yamlfile.Mistakes
	broken bool
}

func decodeMeta(data []byte) *metaFile {
	f := &metaFile{}
	doc, encrypted := decodeEncrypted(data, v1alpha1.KindMetaConfig, &f.spec)
	if !doc.Broken {
		c := checker{doc}
		c.version([]string{"version"}, f.spec.Version)
		c.noImages([]string{"values"}, f.spec.Values)
		f.versionAt, f.absentAt = doc.ValuePoint("version"), doc.ValuePoint("absent")
		f.places = valuePlaces(doc, "values")
		f.encrypted = encrypted
	}
	f.Mistakes, f.broken = doc.Mistakes, doc.Broken
	return f
}

type layerFile struct {
	spec v1alpha1.Layer
	// selector is nil if the clusters of the layer can't be known.
	selector  labels.Selector
	entries   map[string]layerEntry
	encrypted *encryptedDocument
	yamlfile.Mistakes
	// broken: nothing in the layer can be known.
	broken bool
	// vague: the components of the layer can't be known.
	vague bool
}

// layerEntry is the entry of a layer for one component.
type layerEntry struct {
	spec      v1alpha1.LayerEntry
	at        yamlfile.Point // of the component's name
	versionAt yamlfile.Point
	absentAt  yamlfile.Point
	places    *places
}

func decodeLayer(data []byte) *layerFile {
	f := &layerFile{entries: map[string]layerEntry{}}
	doc, encrypted := decodeEncrypted(data, v1alpha1.KindLayer, &f.spec)
	if doc.Broken {
		f.Mistakes, f.broken = doc.Mistakes, true
		return f
	}
	c := checker{doc}
	selector := c.selector([]string{"clusterSelector"}, f.spec.ClusterSelector)
	for _, name := range slices.Sorted(maps.Keys(f.spec.Components)) {
		path := []string{"components", name}
		entry := f.spec.Components[name]
		if wrong := naming.Check(name); wrong != "" {
			c.key(path, wrong, "")
		}
		c.version(yamlfile.Below(path, "version"), entry.Version)
		c.noImages(yamlfile.Below(path, "values"), entry.Values)
		f.entries[name] = layerEntry{
			spec:      entry,
			at:        doc.KeyPoint(path...),
			versionAt: doc.ValuePoint("components", name, "version"),
			absentAt:  doc.ValuePoint("components", name, "absent"),
			places:    valuePlaces(doc, "components", name, "values"),
		}
	}
	f.Mistakes, f.encrypted = doc.Mistakes, encrypted
	if !slices.ContainsFunc(f.Mistakes, func(m yamlfile.Mistake) bool { return within(m.Path, "clusterSelector") }) {
		f.selector = selector
	}
	f.vague = slices.ContainsFunc(f.Mistakes, func(m yamlfile.Mistake) bool {
		return len(m.Path) == 1 && within(m.Path, "components")
	})
	return f
}

// touches returns the component that a mistake in a layer affects; "" for all components of the
// layer.
func touches(m yamlfile.Mistake) string {
	if len(m.Path) >= 2 && within(m.Path, "components") {
		return m.Path[1]
	}
	return ""
}

func within(path []string, top string) bool { return len(path) > 0 && path[0] == top }

// valuePlaces records the positions of the values at path.
func valuePlaces(doc *yamlfile.Document, path ...string) *places {
	_, node := doc.Lookup(path...)
	return placesOf(node, doc.KeyPoint(path...))
}

// approvalsFile is approvals/NAME.yaml.
type approvalsFile struct {
	approvals []approvalEntry
	yamlfile.Mistakes
}

// approvalEntry is one approval without mistakes.
type approvalEntry struct {
	spec     v1alpha1.Approval
	selector labels.Selector // nil: the approval names a cluster or a stage
	at       yamlfile.Point  // of the name of the cluster or stage
}

func decodeApprovals(data []byte) *approvalsFile {
	f := &approvalsFile{}
	var spec v1alpha1.Approvals
	doc := decodeFile(data, v1alpha1.KindApprovals, &spec)
	if !doc.Broken {
		c := checker{doc}
		for i, a := range spec.Approvals {
			path := []string{"approvals", strconv.Itoa(i)}
			selector := c.approval(path, a)
			if !doc.Wrong(path...) { // an invalid approval approves nothing
				key := "cluster"
				if a.Stage != "" {
					key = "stage"
				}
				f.approvals = append(f.approvals, approvalEntry{a, selector, doc.ValuePoint(yamlfile.Below(path, key)...)})
			}
		}
		if slices.ContainsFunc(doc.Mistakes, func(m yamlfile.Mistake) bool { return len(m.Path) < 2 }) {
			f.approvals = nil
		}
	}
	f.Mistakes = doc.Mistakes
	return f
}

// componentFile is component.yaml.
type componentFile struct {
	spec v1alpha1.Component
	// dependsAt are the positions of DependsOn's items.
	dependsAt []yamlfile.Point
	// healthAt are the positions of the conditions of health rules.
	healthAt   []map[string]yamlfile.Point
	pipelineAt yamlfile.Point
	keysAt     map[string]yamlfile.Point // of some top-level keys
	yamlfile.Mistakes
	// vague: the pipeline can't be known, or whether there is one.
	vague bool
}

func decodeComponent(data []byte) *componentFile {
	f := &componentFile{}
	doc := decodeFile(data, v1alpha1.KindComponent, &f.spec)
	if !doc.Broken {
		c := checker{doc}
		if f.spec.Namespace != "" {
			if wrong := naming.Check(f.spec.Namespace); wrong != "" {
				c.value([]string{"namespace"}, wrong, "")
			}
		}
		if f.spec.Timeout != nil && f.spec.Timeout.Duration == 0 && !doc.Wrong("timeout") {
			c.value([]string{"timeout"}, "timeout must be longer than nothing", "leave it out for 5m")
		}
		c.serviceAccount(f.spec.ServiceAccount)
		c.drift(f.spec.Drift)
		c.pipeline(f.spec.Pipeline)
		f.pipelineAt = doc.ValuePoint("pipeline")
		f.keysAt = map[string]yamlfile.Point{}
		for _, key := range []string{"namespace", "serviceAccount", "adopt"} {
			if _, set := doc.Lookup(key); set != nil {
				f.keysAt[key] = doc.KeyPoint(key)
			}
		}
		c.oneOf([]string{"determinism"}, string(f.spec.Determinism),
			string(v1alpha1.DeterminismRequire), string(v1alpha1.DeterminismReport))
		c.dependsOn(f.spec.DependsOn)
		ruleChecker{c}.danger(f.spec.Danger, false)
		c.dangerProfile(f.spec.DangerProfile)
		f.healthAt = ruleChecker{c}.health(f.spec.Health)
		for i := range f.spec.DependsOn {
			f.dependsAt = append(f.dependsAt, doc.ValuePoint("dependsOn", strconv.Itoa(i)))
		}
	}
	f.Mistakes = doc.Mistakes
	f.vague = doc.Broken || slices.ContainsFunc(doc.Mistakes, func(m yamlfile.Mistake) bool {
		return len(m.Path) < 2 || within(m.Path, "pipeline") // a top-level key may be a misspelled "pipeline"
	})
	return f
}

// imagesFile is images.yaml.
type imagesFile struct {
	spec   v1alpha1.Images
	places *places // of the images by name
	yamlfile.Mistakes
}

func decodeImages(data []byte) *imagesFile {
	f := &imagesFile{}
	doc := decodeFile(data, v1alpha1.KindImages, &f.spec)
	if !doc.Broken {
		c := imageChecker{checker{doc}}
		for _, name := range slices.Sorted(maps.Keys(f.spec.Images)) {
			c.image(name, f.spec.Images[name])
		}
		f.places = valuePlaces(doc, "images")
	}
	f.Mistakes = doc.Mistakes
	return f
}

// chartSourceFile is chart.yaml.
type chartSourceFile struct {
	spec v1alpha1.ChartSource
	yamlfile.Mistakes
}

func decodeChartSource(data []byte) *chartSourceFile {
	f := &chartSourceFile{}
	doc := decodeFile(data, v1alpha1.KindChartSource, &f.spec)
	if !doc.Broken {
		chartChecker{checker{doc}}.source(f.spec)
	}
	f.Mistakes = doc.Mistakes
	return f
}

// pipelineFile is pipelines/NAME.yaml.
type pipelineFile struct {
	spec   v1alpha1.Pipeline
	stages []*Stage
	// templates are the files that the pipeline names, and probes its probes.
	templates []templateRef
	probes    []probeRef
	yamlfile.Mistakes
}

type templateRef struct {
	path string
	at   yamlfile.Point
}

func decodePipeline(data []byte) *pipelineFile {
	f := &pipelineFile{}
	doc := decodeFile(data, v1alpha1.KindPipeline, &f.spec)
	if !doc.Broken {
		c := pipelineChecker{checker{doc}}
		f.stages, f.templates = c.stages(f.spec.Stages)
		f.probes = c.probes(f.spec.Stages)
	}
	f.Mistakes = doc.Mistakes
	return f
}

// freezeFile is freezes/NAME.yaml.
type freezeFile struct {
	spec     v1alpha1.Freeze
	windows  window.Windows
	selector labels.Selector // nil: the clusters can't be known
	// componentsAt are the positions of the components' names.
	componentsAt []yamlfile.Point
	yamlfile.Mistakes
	// vague: the components can't be known.
	vague bool
}

func decodeFreeze(data []byte) *freezeFile {
	f := &freezeFile{}
	doc := decodeFile(data, v1alpha1.KindFreeze, &f.spec)
	if !doc.Broken {
		c := checker{doc}
		selector := c.selector([]string{"clusterSelector"}, f.spec.ClusterSelector)
		if !doc.Wrong("clusterSelector") {
			f.selector = selector
		}
		f.windows = c.windows([]string{"windows"}, f.spec.Windows)
		c.span(f.spec)
		f.componentsAt = c.names("components", f.spec.Components)
	}
	f.Mistakes = doc.Mistakes
	f.vague = doc.Broken || slices.ContainsFunc(doc.Mistakes, func(m yamlfile.Mistake) bool {
		return within(m.Path, "components") || len(m.Path) == 1 && !slices.Contains([]string{"from", "until", "reason", "windows", "clusterSelector"}, m.Path[0])
	})
	return f
}
