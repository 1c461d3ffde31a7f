// Package hotreload rewrites a pod template so that changes of a ConfigMap reach running containers, pod
// by pod.
//
// The volumes of a running pod can't change, and a ConfigMap that all pods mount changes for all of them at
// once. So the files are copied into annotations of the pod template, and a volume of the downward API
// shows them under the same paths. An update in place changes annotations without a restart, and the kubelet
// writes the files as soon as it sees the changed pod.
package hotreload

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/reload"
	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/renderer/configversion"
)

const (
	// maxAnnotations is how many bytes the annotations of a pod template can have. The API server allows
	// 256 KiB; the rest is for what controllers write to pods.
	maxAnnotations = 240 << 10
	// hashBytes is the length of a name that stands for one that is no name of an annotation.
	hashBytes = 20
)

// Copy copies ConfigMaps into the pod template of a workload, in place of the volumes that mount them.
// configs are the ConfigMaps by name; they are not modified. The error says what can't be copied, and why.
func Copy(workload map[string]any, configs map[string]map[string]any) error {
	if err := checkKind(workload); err != nil {
		return err
	}
	spec, _ := workload["spec"].(map[string]any)
	template, _ := spec["template"].(map[string]any)
	pod, _ := template["spec"].(map[string]any)
	c := copier{pod: pod, configs: configs, annotations: map[string]any{}, mounted: map[string]bool{}}
	for _, v := range configversion.MapsIn(pod["volumes"]) {
		if err := c.volume(v); err != nil {
			return err
		}
	}
	names := slices.Sorted(maps.Keys(configs))
	var all []map[string]any
	for _, name := range names {
		if !c.mounted[name] {
			return fmt.Errorf("no volume of its pods mounts ConfigMap %s", name)
		}
		c.annotations[annotation(configversion.AnnotationSource, name)] = name
		all = append(all, configs[name])
	}
	for _, r := range configversion.References(pod) {
		if r.Kind == configversion.KindConfigMap && configs[r.Name] != nil {
			return fmt.Errorf("a container reads ConfigMap %s in its environment, which only a restart changes: use another ConfigMap for that", r.Name)
		}
	}
	version, err := configversion.Hash(all...)
	if err != nil {
		return err
	}
	c.annotations[v1beta1.AnnotationConfigurationVersion] = version
	return annotate(template, c.annotations)
}

// checkKind returns an error for a workload whose pods are not updated in place.
func checkKind(workload map[string]any) error {
	version, _ := workload["apiVersion"].(string)
	group, _, _ := strings.Cut(version, "/")
	kinds := []string{"CloneSet", "StatefulSet", "DaemonSet"}
	if kind, _ := workload["kind"].(string); group != v1beta1.GroupVersion.Group || !slices.Contains(kinds, kind) {
		return fmt.Errorf("only a %s of %s can have the annotation %s: other workloads replace their pods", strings.Join(kinds, ", "), v1beta1.GroupVersion.Group, v1alpha1.AnnotationHotReload)
	}
	return nil
}

// InPlace reports whether a workload updates its pods in place.
func InPlace(workload map[string]any) bool {
	spec, _ := workload["spec"].(map[string]any)
	strategy, _ := spec["updateStrategy"].(map[string]any)
	rolling, _ := strategy["rollingUpdate"].(map[string]any)
	for _, policy := range []any{strategy["type"], rolling["podUpdatePolicy"], rolling["rollingUpdateType"]} {
		if policy == string(v1beta1.PodUpdateInPlaceIfPossible) || policy == string(v1beta1.PodUpdateInPlaceOnly) {
			return true
		}
	}
	return false
}

// copier copies the ConfigMaps of one pod template.
type copier struct {
	pod         map[string]any
	configs     map[string]map[string]any
	annotations map[string]any
	mounted     map[string]bool
}

// volume replaces a volume, or a source of a projected volume, if it is of one of the ConfigMaps.
func (c *copier) volume(v map[string]any) error {
	name, _ := v["name"].(string)
	if source, is := v["configMap"].(map[string]any); is && c.configs[nameIn(source)] != nil {
		items, err := c.items(source)
		if err != nil {
			return fmt.Errorf("volume %s: %w", name, err)
		}
		api := map[string]any{"items": append(items, versionItem())}
		if mode, has := source["defaultMode"]; has {
			api["defaultMode"] = mode
		}
		delete(v, "configMap")
		v["downwardAPI"] = api
		return c.checkMounts(name)
	}
	projected, _ := v["projected"].(map[string]any)
	changed := false
	for _, part := range configversion.MapsIn(projected["sources"]) {
		source, is := part["configMap"].(map[string]any)
		if !is || c.configs[nameIn(source)] == nil {
			continue
		}
		items, err := c.items(source)
		if err != nil {
			return fmt.Errorf("volume %s: %w", name, err)
		}
		if !changed {
			items = append(items, versionItem())
		}
		delete(part, "configMap")
		part["downwardAPI"], changed = map[string]any{"items": items}, true
	}
	if !changed {
		return nil
	}
	return c.checkMounts(name)
}

// items returns the files of a volume source, and copies them into annotations.
func (c *copier) items(source map[string]any) ([]any, error) {
	name := nameIn(source)
	config := c.configs[name]
	if binary, _ := config["binaryData"].(map[string]any); len(binary) > 0 {
		return nil, fmt.Errorf("ConfigMap %s has binaryData, which no annotation can hold", name)
	}
	c.mounted[name] = true
	data, _ := config["data"].(map[string]any)
	chosen := configversion.MapsIn(source["items"])
	if len(chosen) == 0 {
		for _, key := range slices.Sorted(maps.Keys(data)) {
			chosen = append(chosen, map[string]any{"key": key, "path": key})
		}
	}
	var out []any
	for _, item := range chosen {
		key, _ := item["key"].(string)
		file, _ := item["path"].(string)
		content, has := data[key].(string)
		switch {
		case path.Clean(file) == reload.VersionFile:
			return nil, fmt.Errorf("the file %s is Keelson's own", file)
		case !has && source["optional"] == true:
			continue
		case !has:
			return nil, fmt.Errorf("ConfigMap %s has no text with the key %q", name, key)
		}
		at := annotation(v1beta1.AnnotationConfigurationPrefix, name+"_"+key)
		c.annotations[at] = content
		shown := fileOf(file, at)
		if mode, has := item["mode"]; has {
			shown["mode"] = mode
		}
		out = append(out, shown)
	}
	return out, nil
}

func versionItem() map[string]any {
	return fileOf(reload.VersionFile, v1beta1.AnnotationConfigurationVersion)
}

// fileOf returns a file of a volume that shows an annotation.
func fileOf(path, annotation string) map[string]any {
	return map[string]any{"path": path, "fieldRef": map[string]any{"fieldPath": "metadata.annotations['" + annotation + "']"}}
}

// annotation returns the key of an annotation. The name of a ConfigMap has no underscore, so NAME_KEY is of
// one ConfigMap and key. A text that can't be part of a key is replaced by its hash. The name of a ConfigMap
// has no capitals, so none is like a hash.
func annotation(prefix, name string) string {
	if key := prefix + name; len(validation.IsQualifiedName(key)) == 0 {
		return key
	}
	sum := sha256.Sum256([]byte(name))
	return prefix + "SHA256_" + hex.EncodeToString(sum[:hashBytes])
}

// checkMounts returns an error if a container mounts a part of a volume: the kubelet never changes the files
// of such a mount.
func (c *copier) checkMounts(volume string) error {
	for _, list := range []string{"initContainers", "containers"} {
		for _, container := range configversion.MapsIn(c.pod[list]) {
			for _, mount := range configversion.MapsIn(container["volumeMounts"]) {
				for _, field := range []string{"subPath", "subPathExpr"} {
					if path, _ := mount[field].(string); mount["name"] == volume && path != "" {
						return fmt.Errorf("container %v mounts volume %s with %s %q, whose files never change: mount the whole volume", container["name"], volume, field, path)
					}
				}
			}
		}
	}
	return nil
}

// annotate adds annotations to a pod template.
func annotate(template, annotations map[string]any) error {
	meta, is := template["metadata"].(map[string]any)
	if !is {
		meta = map[string]any{}
		template["metadata"] = meta
	}
	has, is := meta["annotations"].(map[string]any)
	if !is {
		has = map[string]any{}
		meta["annotations"] = has
	}
	for key := range has {
		if key == v1beta1.AnnotationConfigurationVersion || key == v1beta1.AnnotationReloadState || strings.HasPrefix(key, v1beta1.AnnotationConfigurationPrefix) {
			return errors.New("the annotation " + key + " is Keelson's own: remove it from the pod template")
		}
	}
	maps.Copy(has, annotations)
	size := 0
	for key, value := range has {
		text, _ := value.(string)
		size += len(key) + len(text)
	}
	if size > maxAnnotations {
		return fmt.Errorf("the annotations of its pods would have %d KiB, and %d KiB can be copied: mount large files as a ConfigMap", size>>10, maxAnnotations>>10)
	}
	return nil
}

func nameIn(source map[string]any) string {
	name, _ := source["name"].(string)
	return name
}
