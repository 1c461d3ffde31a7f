// Package configversion names the versions of ConfigMaps and Secrets, and finds the references of
// pod templates to them.
//
// A versioned ConfigMap app-cm becomes the immutable ConfigMap app-cm-HASH. The hash depends only
// on the data, so the same data has the same name on every cluster. A change of data is a new object
// and a changed reference: a change of the workload.
package configversion

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const (
	// KindConfigMap is one of the kinds that can be versioned, of the core group.
	KindConfigMap = "ConfigMap"
	// KindSecret is the other one.
	KindSecret = "Secret"

	// hashBytes is the length of a version in bytes: 40 bits keep the versions of one name apart,
	// and ten characters keep the name readable.
	hashBytes = 5
	// maxName is the longest name of a ConfigMap or Secret (a DNS subdomain, RFC 1123).
	maxName = 253
	// maxDepth bounds how deep references are searched. A CronJob's pod template is at depth 5, and
	// custom resources nest little more.
	maxDepth = 64
)

// Version is one version of a ConfigMap or Secret.
type Version struct {
	Kind, Namespace string
	// Name is the name in the chart, and Hash the version: the object's name is NAME-HASH.
	Name, Hash string
}

// Of returns the version that an object is; false: it is none. Only an object that has the name of
// its version counts, so copied annotations do not make a version.
func Of(object map[string]any) (Version, bool) {
	kind, _ := object["kind"].(string)
	if object["apiVersion"] != "v1" || kind != KindConfigMap && kind != KindSecret {
		return Version{}, false
	}
	meta, _ := object["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	nameKey, hashKey := annotationsOf(kind)
	v := Version{Kind: kind}
	v.Namespace, _ = meta["namespace"].(string)
	v.Name, _ = annotations[nameKey].(string)
	v.Hash, _ = annotations[hashKey].(string)
	return v, v.Name != "" && v.Hash != "" && meta["name"] == v.objectName()
}

// Any returns the version that an object is, or a version without a hash for any other ConfigMap or
// Secret; false: the object is none of these kinds.
func Any(object map[string]any) (Version, bool) {
	if v, is := Of(object); is {
		return v, true
	}
	kind, _ := object["kind"].(string)
	meta, _ := object["metadata"].(map[string]any)
	v := Version{Kind: kind}
	v.Namespace, _ = meta["namespace"].(string)
	v.Name, _ = meta["name"].(string)
	return v, object["apiVersion"] == "v1" && (kind == KindConfigMap || kind == KindSecret)
}

// Follows reports whether two versions are of the same ConfigMap or Secret.
func (v Version) Follows(other Version) bool {
	return v.Kind == other.Kind && v.Namespace == other.Namespace && v.Name == other.Name
}

func (v Version) objectName() string { return v.Name + "-" + v.Hash }

func annotationsOf(kind string) (name, hash string) {
	if kind == KindSecret {
		return v1alpha1.AnnotationSecretName, v1alpha1.AnnotationSecretVersion
	}
	return v1alpha1.AnnotationConfigMapName, v1alpha1.AnnotationConfigMapVersion
}

// Plain returns the ConfigMap or Secret of a version as the chart has it: with its name there, and
// without what makes it a version. Another object is returned itself. Nothing is modified.
func Plain(object map[string]any) map[string]any {
	v, is := Of(object)
	if !is {
		return object
	}
	out := maps.Clone(object)
	delete(out, "immutable")
	meta, _ := object["metadata"].(map[string]any)
	meta = maps.Clone(meta)
	annotations, _ := meta["annotations"].(map[string]any)
	annotations = maps.Clone(annotations)
	nameKey, hashKey := annotationsOf(v.Kind)
	delete(annotations, nameKey)
	delete(annotations, hashKey)
	meta["name"], meta["annotations"], out["metadata"] = v.Name, annotations, meta
	if len(annotations) == 0 {
		delete(meta, "annotations")
	}
	return out
}

// Make turns a ConfigMap or Secret into the immutable object of its version, in place, and returns
// the new name. The error says why the object can't be versioned.
func Make(object map[string]any) (string, error) {
	kind, _ := object["kind"].(string)
	meta, _ := object["metadata"].(map[string]any)
	if immutable, ok := object["immutable"]; ok && immutable != true {
		return "", fmt.Errorf("immutable is %v, and a version never changes: remove the field", immutable)
	}
	hash, err := Hash(object)
	if err != nil {
		return "", err
	}
	name, _ := meta["name"].(string)
	v := Version{Kind: kind, Name: name, Hash: hash}
	if len(v.objectName()) > maxName {
		return "", fmt.Errorf("its name is too long: with the version it has %d characters, and %d are allowed", len(v.objectName()), maxName)
	}
	annotations, ok := meta["annotations"].(map[string]any)
	if !ok {
		annotations = map[string]any{}
		meta["annotations"] = annotations
	}
	nameKey, hashKey := annotationsOf(kind)
	annotations[nameKey], annotations[hashKey] = v.Name, v.Hash
	meta["name"], object["immutable"] = v.objectName(), true
	return v.objectName(), nil
}

// Hash returns the version of the data of ConfigMaps or Secrets. The order of several counts.
func Hash(objects ...map[string]any) (string, error) {
	sum := sha256.New()
	for _, o := range objects {
		data, err := json.Marshal(contentOf(o)) // sorts keys
		if err != nil {
			return "", fmt.Errorf("data can't be written as JSON: %w", err)
		}
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil)[:hashBytes]), nil
}

// contentOf returns what makes a version: the data as the API server stores them, however the chart
// writes them.
func contentOf(object map[string]any) map[string]any {
	if object["kind"] == KindSecret {
		kind, _ := object["type"].(string)
		return map[string]any{"kind": KindSecret, "type": cmp.Or(kind, "Opaque"), "data": secretData(object)}
	}
	out := map[string]any{"kind": object["kind"]}
	for _, part := range []string{"data", "binaryData"} {
		if m, is := object[part].(map[string]any); !is && object[part] != nil || len(m) > 0 {
			out[part] = object[part]
		}
	}
	return out
}

// secretData returns the data of a Secret, decoded, with its stringData. A value that can't be decoded
// is kept as it is: the API server will refuse it.
func secretData(object map[string]any) map[string]any {
	data := map[string]any{}
	stored, _ := object["data"].(map[string]any)
	for key, value := range stored {
		data[key] = value
		text, is := value.(string)
		if plain, err := base64.StdEncoding.DecodeString(text); is && err == nil {
			data[key] = plain
		}
	}
	plain, _ := object["stringData"].(map[string]any)
	for key, value := range plain {
		data[key] = value
		if text, is := value.(string); is {
			data[key] = []byte(text)
		}
	}
	return data
}

// UserResources returns the kinds of a namespace whose objects keep an earlier version in use: pods,
// and the revisions from which controllers make pods again.
func UserResources() []schema.GroupVersionResource {
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	return []schema.GroupVersionResource{
		{Version: "v1", Resource: "pods"},
		apps.WithResource("replicasets"),
		apps.WithResource("controllerrevisions"),
		{Group: "batch", Version: "v1", Resource: "jobs"},
	}
}

// AnnotationSource is the prefix of annotations of a pod template that hold files of a ConfigMap: the value
// is the name of the ConfigMap. Keelson writes them: see package hotreload.
const AnnotationSource = "source.configuration.keelson.io/"

// Reference is a place in a pod template that names a ConfigMap or Secret of the pod's namespace.
type Reference struct {
	Kind, Name string
	in         map[string]any
	key        string
}

// Rename changes the place, in the object that was searched.
func (r Reference) Rename(name string) { r.in[r.key] = name }

// References returns the references in the pod specs of an object. A map with a list of containers
// is a pod spec, wherever it is. So pods, workloads of any kind, ReplicaSets and
// ControllerRevisions are searched alike.
func References(object map[string]any) []Reference {
	s := search{}
	s.walk(object, maxDepth)
	return s.found
}

// HasCopies reports whether an object says somewhere that annotations hold copies of ConfigMaps.
func HasCopies(object map[string]any) bool { return hasCopies(object, maxDepth) }

func hasCopies(value any, depth int) bool {
	if depth == 0 {
		return false
	}
	switch value := value.(type) {
	case map[string]any:
		annotations, _ := value["annotations"].(map[string]any)
		for key := range annotations {
			if strings.HasPrefix(key, AnnotationSource) {
				return true
			}
		}
		for _, child := range value {
			if hasCopies(child, depth-1) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(value, func(child any) bool { return hasCopies(child, depth-1) })
	}
	return false
}

// search finds references.
type search struct{ found []Reference }

func (s *search) walk(value any, depth int) {
	if depth == 0 {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		if _, is := value["containers"].([]any); is {
			s.podSpec(value)
		}
		if annotations, is := value["annotations"].(map[string]any); is {
			s.sources(annotations)
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			s.walk(value[key], depth-1)
		}
	case []any:
		for _, child := range value {
			s.walk(child, depth-1)
		}
	}
}

// add adds a reference if the field is there. in is the map that has the name, or nil.
func (s *search) add(kind string, in any, key string) {
	m, _ := in.(map[string]any)
	if name, ok := m[key].(string); ok && name != "" {
		s.found = append(s.found, Reference{Kind: kind, Name: name, in: m, key: key})
	}
}

// sources adds the ConfigMaps of which annotations hold copies.
func (s *search) sources(annotations map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if name, is := annotations[key].(string); is && name != "" && strings.HasPrefix(key, AnnotationSource) {
			s.found = append(s.found, Reference{Kind: KindConfigMap, Name: name, in: annotations, key: key})
		}
	}
}

// podSpec adds the references of a pod spec (Kubernetes API, PodSpec: every field that names a
// ConfigMap or Secret of the pod's namespace).
func (s *search) podSpec(spec map[string]any) {
	for _, v := range MapsIn(spec["volumes"]) {
		s.volume(v)
	}
	for _, list := range []string{"initContainers", "containers", "ephemeralContainers"} {
		for _, c := range MapsIn(spec[list]) {
			for _, from := range MapsIn(c["envFrom"]) {
				s.add(KindConfigMap, from["configMapRef"], "name")
				s.add(KindSecret, from["secretRef"], "name")
			}
			for _, env := range MapsIn(c["env"]) {
				from, _ := env["valueFrom"].(map[string]any)
				s.add(KindConfigMap, from["configMapKeyRef"], "name")
				s.add(KindSecret, from["secretKeyRef"], "name")
			}
		}
	}
	for _, pull := range MapsIn(spec["imagePullSecrets"]) {
		s.add(KindSecret, pull, "name")
	}
}

func (s *search) volume(v map[string]any) {
	s.add(KindConfigMap, v["configMap"], "name")
	s.add(KindSecret, v["secret"], "secretName")
	s.add(KindSecret, v["azureFile"], "secretName")
	projected, _ := v["projected"].(map[string]any)
	for _, source := range MapsIn(projected["sources"]) {
		s.add(KindConfigMap, source["configMap"], "name")
		s.add(KindSecret, source["secret"], "name")
	}
	csi, _ := v["csi"].(map[string]any)
	s.add(KindSecret, csi["nodePublishSecretRef"], "name")
	for _, kind := range []string{"cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"} {
		source, _ := v[kind].(map[string]any)
		s.add(KindSecret, source["secretRef"], "name")
	}
}

// MapsIn returns the maps of a list; none if the value is no list.
func MapsIn(list any) []map[string]any {
	items, _ := list.([]any)
	out := make([]map[string]any, 0, len(items))
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// Named returns the ConfigMaps and Secrets that a workload names as versioned: a list of KIND/NAME,
// separated by commas. The error says which entry is wrong.
func Named(list string) ([]Version, error) {
	var out []Version
	for entry := range strings.SplitSeq(list, ",") {
		kind, name, ok := strings.Cut(strings.TrimSpace(entry), "/")
		if !ok || name == "" || !slices.Contains([]string{KindConfigMap, KindSecret}, kind) {
			return nil, fmt.Errorf("%q is neither ConfigMap/NAME nor Secret/NAME", strings.TrimSpace(entry))
		}
		out = append(out, Version{Kind: kind, Name: name})
	}
	return out, nil
}

// Mention is a field outside of pod specs that seems to name a ConfigMap or Secret.
type Mention struct{ Field, Kind, Name string }

// Mentions returns the fields outside pod specs that seem to name one of the given ConfigMaps and
// Secrets: the name of the field, of the field around it, or a kind beside it says so. Keelson does not
// know such fields, so it does not rename them. named reports whether a name is one of those.
func Mentions(object map[string]any, named func(kind, name string) bool) []Mention {
	m := mentions{named: named}
	m.walk(object, "", "", maxDepth)
	m.rights(object)
	slices.SortFunc(m.found, func(a, b Mention) int {
		return cmp.Or(strings.Compare(a.Field, b.Field), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return slices.Compact(m.found)
}

type mentions struct {
	named func(kind, name string) bool
	found []Mention
}

func (m *mentions) add(field, kind, name string) {
	if kind != "" && m.named(kind, name) {
		m.found = append(m.found, Mention{field, kind, name})
	}
}

// rights adds the rules of a Role that grant access to an object by its name.
func (m *mentions) rights(object map[string]any) {
	for i, rule := range MapsIn(object["rules"]) {
		resources, _ := rule["resources"].([]any)
		names, _ := rule["resourceNames"].([]any)
		for _, kind := range []string{KindConfigMap, KindSecret} {
			if !slices.Contains(resources, any(strings.ToLower(kind)+"s")) && !slices.Contains(resources, any("*")) {
				continue
			}
			for _, name := range names {
				text, _ := name.(string)
				m.add(fmt.Sprintf(".rules[%d].resourceNames", i), kind, text)
			}
		}
	}
}

// kindIn returns the kind that the name of a field says; empty: none.
func kindIn(field string) string {
	field = strings.ToLower(field)
	for _, kind := range []string{KindConfigMap, KindSecret} {
		if strings.Contains(field, strings.ToLower(kind)) {
			return kind
		}
	}
	return ""
}

// namesNothing reports whether a field names no other object: the kind and the metadata of the object,
// without its annotations, and what Keelson itself writes.
func namesNothing(path, key string) bool {
	return path == ".metadata" && key != "annotations" || path == "" && key == "kind" || strings.HasPrefix(key, "keelson.io/")
}

// walk searches a value below a field that says a kind; empty: it says none.
func (m *mentions) walk(value any, path, kind string, depth int) {
	if depth == 0 {
		return
	}
	switch value := value.(type) {
	case string:
		m.add(path, kind, value)
	case []any:
		for i, child := range value {
			m.walk(child, fmt.Sprintf("%s[%d]", path, i), kind, depth-1)
		}
	case map[string]any:
		beside, _ := value["kind"].(string) // as in {kind: ConfigMap, name: app}
		if beside != KindConfigMap && beside != KindSecret {
			beside = kind
		}
		for key, child := range value {
			if namesNothing(path, key) {
				continue
			}
			below := kindIn(key)
			if key == "name" || key == "names" {
				below = beside
			}
			m.walk(child, path+"."+key, below, depth-1)
		}
	}
}
