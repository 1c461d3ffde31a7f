package registry

import "go.yaml.in/yaml/v4"

// What the tests of decoding need and users don't.

// DecodeMeta decodes a meta-config file as Load does.
func DecodeMeta(data []byte) (values map[string]any, problems Problems) {
	f := decodeMeta(data)
	return f.spec.Values, inFile("x.yaml", f.mistakes)
}

// DecodeAny decodes a file as every kind that there is.
func DecodeAny(data []byte) Problems {
	return append(append(append(append(append(
		inFile("fleet.yaml", decodeFleet(data).mistakes),
		inFile("cluster.yaml", decodeCluster(data).mistakes)...),
		inFile("layer.yaml", decodeLayer(data).mistakes)...),
		inFile("component.yaml", decodeComponent(data).mistakes)...),
		inFile("images.yaml", decodeImages(data).mistakes)...),
		inFile("meta.yaml", decodeMeta(data).mistakes)...)
}

// SplitTag, CheckRef, CheckVersion and Suggest are the checks of names.
var (
	SplitTag     = splitTag
	CheckRef     = checkRef
	CheckVersion = checkVersion
)

// IsYAML says whether data is one YAML document.
func IsYAML(data []byte) bool {
	var n yaml.Node
	return yaml.Load(data, &n) == nil
}
