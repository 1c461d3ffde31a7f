package registry

import (
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// What the tests need and users don't.

// MaxRecalled is the number of commits that are searched for a readable cluster.yaml.
const MaxRecalled = maxRecalled

// DecodeMeta decodes a meta-config file as Load does.
func DecodeMeta(data []byte) (values map[string]any, problems yamlfile.Problems) {
	f := decodeMeta(data)
	return f.spec.Values, f.In("x.yaml")
}

// DecodeAny decodes a file as every kind that there is.
func DecodeAny(data []byte) yamlfile.Problems {
	var out yamlfile.Problems
	for file, found := range map[string]yamlfile.Mistakes{
		"fleet.yaml": decodeFleet(data).Mistakes, "cluster.yaml": decodeCluster(data).Mistakes, "layer.yaml": decodeLayer(data).Mistakes,
		"component.yaml": decodeComponent(data).Mistakes, "images.yaml": decodeImages(data).Mistakes, "meta.yaml": decodeMeta(data).Mistakes,
		"approvals.yaml": decodeApprovals(data).Mistakes, "pipeline.yaml": decodePipeline(data).Mistakes,
		"freeze.yaml": decodeFreeze(data).Mistakes, "notification.yaml": decodeNotification(data).Mistakes, "job.yaml": decodeTemplate(data).Mistakes,
	} {
		out = append(out, found.In(file)...)
	}
	return out
}

// Shown is all that Values say, to compare them by.
type Shown struct {
	Map     map[string]any
	Sources []ShownSource
}

// ShownSource is one source, the strongest first.
type ShownSource struct {
	File, Revision string
	Values         map[string]any
	Places         *places
	Sealed         *encryptedDocument
	SealedAt       []string
}

// Show returns all that Values say.
func Show(v *Values) Shown {
	out := Shown{Map: v.Map()}
	for ; v != nil; v = v.base {
		s := v.source
		out.Sources = append(out.Sources, ShownSource{s.file, s.revision, s.values, s.places, s.encrypted, s.encryptedAt})
	}
	return out
}

// Produced counts what was read and decoded since the Repo was opened, by what it is.
func (r *Repo) Produced() map[string]int { return r.cache.Produced() }
