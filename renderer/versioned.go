package renderer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"helm.sh/helm/v3/pkg/release"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/renderer/configversion"
	"github.com/keelson-io/keelson/renderer/hotreload"
)

// configKey identifies a ConfigMap or Secret of a target by the name that the chart gives.
type configKey struct{ kind, namespace, name string }

func configKeyOf(content map[string]any, kind, name string) configKey {
	meta, _ := content["metadata"].(map[string]any)
	return configKey{kind: kind, namespace: stringAt(meta, "namespace"), name: name}
}

// configVersions makes the versioned ConfigMaps and Secrets of a target.
type configVersions struct {
	chart *loadedChart
	// objects are those that are marked as versioned. names are their new names.
	objects map[configKey]*Object
	names   map[configKey]string
	used    map[configKey]bool
}

// versionConfiguration replaces each ConfigMap and Secret that is marked as versioned by the object
// of its version. It renames the references in the pod templates of the target and its hooks.
func (c *loadedChart) versionConfiguration(t *Target) *Error {
	v := configVersions{chart: c, objects: map[configKey]*Object{}, names: map[configKey]string{}, used: map[configKey]bool{}}
	if err := v.checkReserved(t); err != nil {
		return err
	}
	if err := v.collect(t); err != nil || len(v.objects) == 0 {
		return err
	}
	if err := v.rename(t.Objects); err != nil {
		return err
	}
	for _, o := range t.Objects {
		v.refer(o)
	}
	for _, o := range t.Hooks {
		if to := v.refer(o); to != "" && runsBefore(o) {
			return v.fail(o, fmt.Sprintf("a hook that runs before the objects refers to %s, whose new version does not exist then: use post-install and post-upgrade, or another object", to))
		}
	}
	v.warn(t)
	return v.checkWaves(t.Objects)
}

// runsBefore reports whether a hook runs before the objects of its target are applied.
func runsBefore(hook *Object) bool {
	for event := range strings.SplitSeq(annotation(hook.Content, release.HookAnnotation), ",") {
		switch release.HookEvent(strings.ToLower(strings.TrimSpace(event))) {
		case release.HookPreInstall, release.HookPreUpgrade, release.HookPreRollback:
			return true
		case release.HookPostInstall, release.HookPostUpgrade, release.HookPostRollback, release.HookPreDelete, release.HookPostDelete, release.HookTest:
		}
	}
	return false
}

// checkReserved returns an error if the chart itself makes an object look like a version: danger rules
// would take it for another one.
func (v *configVersions) checkReserved(t *Target) *Error {
	for _, o := range slices.Concat(t.Objects, t.Hooks) {
		if configversion.HasCopies(o.Content) {
			return v.fail(o, "annotations with the prefix "+configversion.AnnotationSource+" are Keelson's own: use "+v1alpha1.AnnotationHotReload)
		}
		for _, name := range []string{
			v1alpha1.AnnotationConfigMapName, v1alpha1.AnnotationConfigMapVersion, v1alpha1.AnnotationSecretName, v1alpha1.AnnotationSecretVersion,
		} {
			if hasAnnotation(o.Content, name) {
				return v.fail(o, "the annotation "+name+" is Keelson's own: use "+v1alpha1.AnnotationVersioned)
			}
		}
	}
	return nil
}

// collect finds the objects that are marked, by themselves or by a workload.
func (v *configVersions) collect(t *Target) *Error {
	for _, o := range t.Hooks {
		if hasAnnotation(o.Content, v1alpha1.AnnotationVersioned) {
			return v.fail(o, v1alpha1.AnnotationVersioned+" has no effect on a hook: remove the annotation, or the hook")
		}
	}
	all := map[configKey]*Object{}
	for _, o := range t.Objects {
		meta, _ := o.Content["metadata"].(map[string]any)
		kind := stringAt(o.Content, "kind")
		config := stringAt(o.Content, "apiVersion") == "v1" && slices.Contains([]string{configversion.KindConfigMap, configversion.KindSecret}, kind)
		key := configKeyOf(o.Content, kind, stringAt(meta, "name"))
		if config {
			all[key] = o
		}
		if !hasAnnotation(o.Content, v1alpha1.AnnotationVersioned) {
			continue
		}
		switch value := annotation(o.Content, v1alpha1.AnnotationVersioned); {
		case value == "false":
		case value != "true":
			return v.fail(o, fmt.Sprintf("the annotation %s is %q, and can be \"true\" or \"false\"", v1alpha1.AnnotationVersioned, value))
		case !config:
			return v.fail(o, "only ConfigMaps and Secrets can have the annotation "+v1alpha1.AnnotationVersioned)
		default:
			v.objects[key] = o
		}
	}
	if err := v.collectNamed(t, all); err != nil {
		return err
	}
	return v.collectReloaded(t, all)
}

// collectReloaded finds the ConfigMaps whose changes reach running containers, and copies them into the
// pod templates.
func (v *configVersions) collectReloaded(t *Target, all map[configKey]*Object) *Error {
	for _, o := range t.Hooks {
		if len(annotationsNamed(o.Content, v1alpha1.AnnotationHotReload)) > 0 {
			return v.fail(o, v1alpha1.AnnotationHotReload+" has no effect on a hook: remove the annotation")
		}
	}
	for _, o := range t.Objects {
		configs, err := v.reloaded(o, all)
		if err != nil {
			return err
		}
		if len(configs) == 0 {
			continue
		}
		if err := hotreload.Copy(o.Content, configs); err != nil {
			return v.fail(o, v1alpha1.AnnotationHotReload+": "+err.Error())
		}
		if !hotreload.InPlace(o.Content) {
			t.Warnings = append(t.Warnings, fmt.Sprintf("%s: a change of configuration replaces its pods: its update policy is neither InPlaceIfPossible nor InPlaceOnly", o.Source))
		}
	}
	return nil
}

// reloaded returns the ConfigMaps that a workload reloads, by name.
func (v *configVersions) reloaded(o *Object, all map[configKey]*Object) (map[string]map[string]any, *Error) {
	configs := map[string]map[string]any{}
	for _, list := range annotationsNamed(o.Content, v1alpha1.AnnotationHotReload) {
		named, err := v.named(o, v1alpha1.AnnotationHotReload, list, all)
		if err != nil {
			return nil, err
		}
		for key, config := range named {
			if key.kind != configversion.KindConfigMap {
				return nil, v.fail(o, fmt.Sprintf("the annotation %s names %s %s: it would be readable in the annotations of pods, so only ConfigMaps can be reloaded", v1alpha1.AnnotationHotReload, key.kind, key.name))
			}
			v.objects[key], configs[key.name] = config, config.Content
		}
	}
	return configs, nil
}

// collectNamed finds the objects that workloads name.
func (v *configVersions) collectNamed(t *Target, all map[configKey]*Object) *Error {
	for _, o := range slices.Concat(t.Objects, t.Hooks) {
		for _, list := range annotationsNamed(o.Content, v1alpha1.AnnotationVersionedConfiguration) {
			named, err := v.named(o, v1alpha1.AnnotationVersionedConfiguration, list, all)
			if err != nil {
				return err
			}
			maps.Copy(v.objects, named)
		}
	}
	return nil
}

// named returns the objects that an annotation of a workload names.
func (v *configVersions) named(o *Object, annotated, list string, all map[configKey]*Object) (map[configKey]*Object, *Error) {
	named, err := configversion.Named(list)
	if err != nil {
		return nil, v.fail(o, "the annotation "+annotated+": "+err.Error())
	}
	out := map[configKey]*Object{}
	for _, one := range named {
		key := configKeyOf(o.Content, one.Kind, one.Name)
		config := all[key]
		switch {
		case config == nil:
			return nil, v.fail(o, fmt.Sprintf("the annotation %s names %s/%s, which this component does not have in namespace %s",
				annotated, one.Kind, one.Name, key.namespace))
		case annotation(config.Content, v1alpha1.AnnotationVersioned) == "false":
			return nil, v.fail(config, fmt.Sprintf("%s %s has %s: \"false\", and %s names it as versioned", one.Kind, one.Name,
				v1alpha1.AnnotationVersioned, o.Source))
		}
		out[key] = config
	}
	return out, nil
}

// annotationsNamed returns the values of an annotation of an object and of its pod template.
func annotationsNamed(content map[string]any, name string) []string {
	spec, _ := content["spec"].(map[string]any)
	template, _ := spec["template"].(map[string]any)
	var out []string
	for _, from := range []map[string]any{content, template} {
		if hasAnnotation(from, name) {
			out = append(out, annotation(from, name))
		}
	}
	return out
}

// rename gives the marked objects the names of their versions.
func (v *configVersions) rename(objects []*Object) *Error {
	taken := map[configKey]*Object{}
	for _, o := range objects {
		meta, _ := o.Content["metadata"].(map[string]any)
		taken[configKeyOf(o.Content, stringAt(o.Content, "kind"), stringAt(meta, "name"))] = o
	}
	for _, key := range v.keys() {
		o := v.objects[key]
		name, err := configversion.Make(o.Content)
		if err != nil {
			return v.fail(o, fmt.Sprintf("%s %s can't be versioned: %v", key.kind, key.name, err))
		}
		if other := taken[configKey{key.kind, key.namespace, name}]; other != nil {
			return v.fail(o, fmt.Sprintf("the version of %s %s is named %s, as the object at %s is", key.kind, key.name, name, other.Source))
		}
		v.names[key] = name
	}
	return nil
}

// keys returns the marked objects in a stable order.
func (v *configVersions) keys() []configKey {
	keys := make([]configKey, 0, len(v.objects))
	for key := range v.objects {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b configKey) int {
		return slices.Compare([]string{a.kind, a.namespace, a.name}, []string{b.kind, b.namespace, b.name})
	})
	return keys
}

// refer renames the references in the pod templates of an object, and returns one of them; empty: there
// is none.
func (v *configVersions) refer(o *Object) (to string) {
	for _, r := range configversion.References(o.Content) {
		key := configKeyOf(o.Content, r.Kind, r.Name)
		if name := v.names[key]; name != "" {
			r.Rename(name)
			v.used[key], to = true, key.kind+" "+key.name
		}
	}
	return to
}

// warn names the fields that still have the name of the chart, and the objects that no pod template
// refers to.
func (v *configVersions) warn(t *Target) {
	for _, o := range slices.Concat(t.Objects, t.Hooks) {
		meta, _ := o.Content["metadata"].(map[string]any)
		namespaces := []string{stringAt(meta, "namespace")}
		if namespaces[0] == "" { // an object of the cluster can name any
			namespaces = v.namespaces()
		}
		named := func(kind, name string) bool {
			return slices.ContainsFunc(namespaces, func(n string) bool { return v.names[configKey{kind, n, name}] != "" })
		}
		for _, m := range configversion.Mentions(o.Content, named) {
			t.Warnings = append(t.Warnings, fmt.Sprintf("%s: %s names %s %s, which is versioned: Keelson renames it in pod templates only", o.Source, m.Field, m.Kind, m.Name))
		}
	}
	for _, key := range v.keys() {
		if !v.used[key] {
			t.Warnings = append(t.Warnings, fmt.Sprintf("%s: %s %s is versioned, and no pod template of the component refers to it: a new version changes no workload",
				v.objects[key].Source, key.kind, key.name))
		}
	}
}

func (v *configVersions) namespaces() []string {
	var out []string
	for _, key := range v.keys() {
		out = append(out, key.namespace)
	}
	return slices.Compact(slices.Sorted(slices.Values(out)))
}

// checkWaves returns an error if an object refers to a version of a later wave, which would not exist
// yet.
func (v *configVersions) checkWaves(objects []*Object) *Error {
	versions := map[configKey]configKey{}
	for _, key := range v.keys() {
		versions[configKey{key.kind, key.namespace, v.names[key]}] = key
	}
	for _, o := range objects {
		for _, r := range configversion.References(o.Content) {
			key, is := versions[configKeyOf(o.Content, r.Kind, r.Name)]
			if !is {
				continue
			}
			if wave := waveOf(v.objects[key]); wave > waveOf(o) {
				return v.fail(o, fmt.Sprintf("it is in wave %d, and refers to the versioned %s %s, which is created in wave %d: give both the same %s",
					waveOf(o), key.kind, key.name, wave, v1alpha1.AnnotationWave))
			}
		}
	}
	return nil
}

// waveOf returns the wave of an object. A value that is no number is refused elsewhere.
func waveOf(o *Object) int {
	wave, _ := strconv.Atoi(annotation(o.Content, v1alpha1.AnnotationWave))
	return wave
}

func (v *configVersions) fail(o *Object, message string) *Error {
	return newError(v.chart.version, o.Source, message, nil)
}
