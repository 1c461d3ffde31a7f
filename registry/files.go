package registry

import (
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/window"
)

// The types below hold the decoded content of files. They hold no path, because several paths may
// have the same content.

type fleetFile struct {
	spec       v1alpha1.Fleet
	pipelineAt point
	mistakes
	broken bool
}

func decodeFleet(data []byte) *fleetFile {
	f := &fleetFile{}
	doc := decodeFile(data, v1alpha1.KindFleet, &f.spec)
	if !doc.broken {
		c := checker{doc}
		c.drift(f.spec.Drift)
		c.danger(f.spec.Danger, true)
		c.dangerProfile(f.spec.DangerProfile)
		c.verify(f.spec.Verify)
		c.promotableTags(f.spec.PromotableTags)
		c.projects(f.spec.Projects)
		c.pipeline(f.spec.Pipeline)
		f.pipelineAt = doc.valuePoint("pipeline")
	}
	f.mistakes, f.broken = doc.mistakes, doc.broken
	return f
}

type clusterFile struct {
	spec v1alpha1.Cluster
	// connectionAt is the position of the connection, and labelsAt the position of each label.
	connectionAt point
	labelsAt     map[string]point
	// connected: the file sets connection.
	connected bool
	mistakes
	broken bool
}

func decodeCluster(data []byte) *clusterFile {
	f := &clusterFile{}
	doc := decodeFile(data, v1alpha1.KindCluster, &f.spec)
	if !doc.broken {
		c := checker{doc}
		c.labels([]string{"labels"}, f.spec.Labels)
		_, said := doc.lookup("connection")
		if f.connected = said != nil; f.connected {
			c.connection([]string{"connection"}, f.spec.Connection)
		}
		f.connectionAt, f.labelsAt = point{1, 1}, map[string]point{}
		if f.connected {
			f.connectionAt = doc.keyPoint("connection")
		}
		for label := range f.spec.Labels {
			f.labelsAt[label] = doc.keyPoint("labels", label)
		}
		c.mirrors(f.spec.ImageMirrors)
	}
	f.mistakes, f.broken = doc.mistakes, doc.broken
	return f
}

type metaFile struct {
	spec      v1alpha1.MetaConfig
	versionAt point
	absentAt  point
	places    *places
	encrypted *encryptedDocument
	mistakes
	broken bool
}

func decodeMeta(data []byte) *metaFile {
	f := &metaFile{}
	doc := decodeFile(data, v1alpha1.KindMetaConfig, &f.spec)
	if !doc.broken {
		c := checker{doc}
		c.version([]string{"version"}, f.spec.Version)
		c.noImages([]string{"values"}, f.spec.Values)
		f.versionAt, f.absentAt = doc.valuePoint("version"), doc.valuePoint("absent")
		f.places = valuePlaces(doc, "values")
		f.encrypted = doc.encrypted
	}
	f.mistakes, f.broken = doc.mistakes, doc.broken
	return f
}

type layerFile struct {
	spec v1alpha1.Layer
	// selector is nil if the clusters of the layer can't be known.
	selector  labels.Selector
	entries   map[string]layerEntry
	encrypted *encryptedDocument
	mistakes
	// broken: nothing in the layer can be known.
	broken bool
	// vague: the components of the layer can't be known.
	vague bool
}

// layerEntry is the entry of a layer for one component.
type layerEntry struct {
	spec      v1alpha1.LayerEntry
	at        point // of the component's name
	versionAt point
	absentAt  point
	places    *places
}

func decodeLayer(data []byte) *layerFile {
	f := &layerFile{entries: map[string]layerEntry{}}
	doc := decodeFile(data, v1alpha1.KindLayer, &f.spec)
	if doc.broken {
		f.mistakes, f.broken = doc.mistakes, true
		return f
	}
	c := checker{doc}
	selector := c.selector([]string{"clusterSelector"}, f.spec.ClusterSelector)
	for _, name := range slices.Sorted(maps.Keys(f.spec.Components)) {
		path := []string{"components", name}
		entry := f.spec.Components[name]
		if wrong := checkName(name); wrong != "" {
			c.key(path, wrong, "")
		}
		c.version(below(path, "version"), entry.Version)
		c.noImages(below(path, "values"), entry.Values)
		f.entries[name] = layerEntry{
			spec:      entry,
			at:        doc.keyPoint(path...),
			versionAt: doc.valuePoint("components", name, "version"),
			absentAt:  doc.valuePoint("components", name, "absent"),
			places:    valuePlaces(doc, "components", name, "values"),
		}
	}
	f.mistakes, f.encrypted = doc.mistakes, doc.encrypted
	if !slices.ContainsFunc(f.mistakes, func(m mistake) bool { return within(m.path, "clusterSelector") }) {
		f.selector = selector
	}
	f.vague = slices.ContainsFunc(f.mistakes, func(m mistake) bool {
		return len(m.path) == 1 && within(m.path, "components")
	})
	return f
}

// touches returns the component that a mistake in a layer affects; "" for all components of the
// layer.
func touches(m mistake) string {
	if len(m.path) >= 2 && within(m.path, "components") {
		return m.path[1]
	}
	return ""
}

func within(path []string, top string) bool { return len(path) > 0 && path[0] == top }

// valuePlaces records the positions of the values at path.
func valuePlaces(doc *document, path ...string) *places {
	_, node := doc.lookup(path...)
	return placesOf(node, doc.keyPoint(path...))
}

// approvalsFile is approvals/NAME.yaml.
type approvalsFile struct {
	approvals []approvalEntry
	mistakes
}

// approvalEntry is one approval without mistakes.
type approvalEntry struct {
	spec     v1alpha1.Approval
	selector labels.Selector // nil: the approval names a cluster or a stage
	at       point           // of the name of the cluster or stage
}

func decodeApprovals(data []byte) *approvalsFile {
	f := &approvalsFile{}
	var spec v1alpha1.Approvals
	doc := decodeFile(data, v1alpha1.KindApprovals, &spec)
	if !doc.broken {
		c := checker{doc}
		for i, a := range spec.Approvals {
			path := []string{"approvals", strconv.Itoa(i)}
			selector := c.approval(path, a)
			if !doc.wrong(path...) { // an invalid approval approves nothing
				key := "cluster"
				if a.Stage != "" {
					key = "stage"
				}
				f.approvals = append(f.approvals, approvalEntry{a, selector, doc.valuePoint(below(path, key)...)})
			}
		}
		if slices.ContainsFunc(doc.mistakes, func(m mistake) bool { return len(m.path) < 2 }) {
			f.approvals = nil
		}
	}
	f.mistakes = doc.mistakes
	return f
}

// componentFile is component.yaml.
type componentFile struct {
	spec v1alpha1.Component
	// dependsAt are the positions of DependsOn's items.
	dependsAt []point
	// healthAt are the positions of the conditions of health rules.
	healthAt   []map[string]point
	pipelineAt point
	keysAt     map[string]point // of some top-level keys
	mistakes
	// vague: the pipeline can't be known, or whether there is one.
	vague bool
}

func decodeComponent(data []byte) *componentFile {
	f := &componentFile{}
	doc := decodeFile(data, v1alpha1.KindComponent, &f.spec)
	if !doc.broken {
		c := checker{doc}
		if f.spec.Namespace != "" {
			if wrong := checkName(f.spec.Namespace); wrong != "" {
				c.value([]string{"namespace"}, wrong, "")
			}
		}
		if f.spec.Timeout != nil && f.spec.Timeout.Duration == 0 && !doc.wrong("timeout") {
			c.value([]string{"timeout"}, "timeout must be longer than nothing", "leave it out for 5m")
		}
		c.serviceAccount(f.spec.ServiceAccount)
		c.drift(f.spec.Drift)
		c.pipeline(f.spec.Pipeline)
		f.pipelineAt = doc.valuePoint("pipeline")
		f.keysAt = map[string]point{}
		for _, key := range []string{"namespace", "serviceAccount", "adopt"} {
			if _, set := doc.lookup(key); set != nil {
				f.keysAt[key] = doc.keyPoint(key)
			}
		}
		c.oneOf([]string{"determinism"}, string(f.spec.Determinism),
			string(v1alpha1.DeterminismRequire), string(v1alpha1.DeterminismReport))
		c.dependsOn(f.spec.DependsOn)
		c.danger(f.spec.Danger, false)
		c.dangerProfile(f.spec.DangerProfile)
		f.healthAt = c.health(f.spec.Health)
		for i := range f.spec.DependsOn {
			f.dependsAt = append(f.dependsAt, doc.valuePoint("dependsOn", strconv.Itoa(i)))
		}
	}
	f.mistakes = doc.mistakes
	f.vague = doc.broken || slices.ContainsFunc(doc.mistakes, func(m mistake) bool {
		return len(m.path) < 2 || within(m.path, "pipeline") // a top-level key may be a misspelled "pipeline"
	})
	return f
}

// imagesFile is images.yaml.
type imagesFile struct {
	spec   v1alpha1.Images
	places *places // of the images by name
	mistakes
}

func decodeImages(data []byte) *imagesFile {
	f := &imagesFile{}
	doc := decodeFile(data, v1alpha1.KindImages, &f.spec)
	if !doc.broken {
		c := checker{doc}
		for _, name := range slices.Sorted(maps.Keys(f.spec.Images)) {
			c.image(name, f.spec.Images[name])
		}
		f.places = valuePlaces(doc, "images")
	}
	f.mistakes = doc.mistakes
	return f
}

// chartSourceFile is chart.yaml.
type chartSourceFile struct {
	spec v1alpha1.ChartSource
	mistakes
}

func decodeChartSource(data []byte) *chartSourceFile {
	f := &chartSourceFile{}
	doc := decodeFile(data, v1alpha1.KindChartSource, &f.spec)
	if !doc.broken {
		checker{doc}.chartSource(f.spec)
	}
	f.mistakes = doc.mistakes
	return f
}

// pipelineFile is pipelines/NAME.yaml.
type pipelineFile struct {
	spec   v1alpha1.Pipeline
	stages []*Stage
	// templates are the files that the pipeline names, and probes its probes.
	templates []templateRef
	probes    []probeRef
	mistakes
}

type templateRef struct {
	path string
	at   point
}

func decodePipeline(data []byte) *pipelineFile {
	f := &pipelineFile{}
	doc := decodeFile(data, v1alpha1.KindPipeline, &f.spec)
	if !doc.broken {
		f.stages, f.templates = checker{doc}.stages(f.spec.Stages)
		f.probes = checker{doc}.probes(f.spec.Stages)
	}
	f.mistakes = doc.mistakes
	return f
}

// freezeFile is freezes/NAME.yaml.
type freezeFile struct {
	spec     v1alpha1.Freeze
	windows  window.Windows
	selector labels.Selector // nil: the clusters can't be known
	// componentsAt are the positions of the components' names.
	componentsAt []point
	mistakes
	// vague: the components can't be known.
	vague bool
}

func decodeFreeze(data []byte) *freezeFile {
	f := &freezeFile{}
	doc := decodeFile(data, v1alpha1.KindFreeze, &f.spec)
	if !doc.broken {
		c := checker{doc}
		selector := c.selector([]string{"clusterSelector"}, f.spec.ClusterSelector)
		if !doc.wrong("clusterSelector") {
			f.selector = selector
		}
		f.windows = c.windows([]string{"windows"}, f.spec.Windows)
		c.span(f.spec)
		f.componentsAt = c.names("components", f.spec.Components)
	}
	f.mistakes = doc.mistakes
	f.vague = doc.broken || slices.ContainsFunc(doc.mistakes, func(m mistake) bool {
		return within(m.path, "components") || len(m.path) == 1 && !slices.Contains([]string{"from", "until", "reason", "windows", "clusterSelector"}, m.path[0])
	})
	return f
}
