package renderer

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/naming"
)

// maxUnusedTries bounds the executions that search for unused values.
const maxUnusedTries = 8

// Unused is a value of meta-config that has no effect on the render, and that the chart does not
// know: most likely a typing error.
type Unused struct {
	Path []string // below .Values
	Hint string   // may be empty
}

// WarningsFor returns the target's warnings, with the positions of their values in the given
// meta-config. Clusters with the same values in different files share a target.
func (t *Target) WarningsFor(v *registry.Values) []string {
	out := slices.Clone(t.Warnings)
	for _, u := range t.Unused {
		text := "the chart has no use for the value " + strings.Join(u.Path, ".")
		if at, ok := v.Origin(u.Path...); ok {
			text = at.String() + ": " + text
		}
		if u.Hint != "" {
			text += " (" + u.Hint + ")"
		}
		out = append(out, text)
	}
	for _, e := range t.Exposed {
		text := registry.FormatPath(e.Path) + " is encrypted, and the chart puts it in clear text into " + e.Where +
			": only the data of a Secret is kept from view"
		if at, ok := v.Origin(e.Path...); ok {
			text = at.String() + ": " + text
		}
		out = append(out, text)
	}
	return out
}

// unused finds the values that the chart knows neither from its values.yaml nor by name in a
// template. It executes the templates without them: values that change nothing are unused. Most
// meta-config has no such values, and costs nothing here.
func (j *job) unused(e *execution) []Unused {
	s := unknownValues{job: j}
	s.collect(e.chart, e.chart.Values, j.Values, nil)
	s.found = slices.DeleteFunc(s.found, func(u Unused) bool { return e.mentions(u.Path[len(u.Path)-1]) })
	if len(s.found) == 0 || j.same(e, s.found...) {
		return s.found
	}
	if len(s.found) == 1 || len(s.found) > maxUnusedTries {
		return nil
	}
	return slices.DeleteFunc(s.found, func(u Unused) bool { return !j.same(e, u) })
}

// mentions reports whether a template has a key: .key, or "key" for index and get.
func (c *loadedChart) mentions(key string) bool {
	name := regexp.MustCompile("[.\"`]" + regexp.QuoteMeta(key) + `(?:[^\w]|$)`)
	for _, src := range c.templates {
		if name.MatchString(src.text) {
			return true
		}
	}
	return false
}

// same reports whether the templates render to the same without some values.
func (j *job) same(e *execution, without ...Unused) bool {
	values := copyMap(j.Values)
	for _, u := range without {
		m := values
		for _, step := range u.Path[:len(u.Path)-1] {
			m, _ = m[step].(map[string]any)
		}
		delete(m, u.Path[len(u.Path)-1])
	}
	other, err := j.templates(values)
	return err == nil && maps.Equal(e.files, other.files)
}

// unknownValues are the values that a chart's values.yaml lacks.
type unknownValues struct {
	job   *job
	found []Unused
}

func (s *unknownValues) collect(ch *chart.Chart, defaults, values map[string]any, path []string) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		below := append(slices.Clone(path), key)
		if ch != nil && (key == "global" || key == "tags") || has(s.job.Images, below) {
			continue // of all charts, or Keelson's own
		}
		value, isMap := values[key].(map[string]any)
		known, inDefaults := defaults[key]
		defaultMap, _ := known.(map[string]any)
		sub := subchart(ch, key)
		switch {
		case sub != nil && isMap:
			s.collect(sub, sub.Values, value, below)
		case sub != nil || ch != nil && dependency(ch, key):
		case !inDefaults:
			s.found = append(s.found, Unused{Path: below, Hint: naming.Suggest(key, slices.Sorted(maps.Keys(defaults)))})
		case isMap && len(defaultMap) > 0:
			s.collect(nil, defaultMap, value, below)
		}
	}
}

// dependency reports whether a name is of a subchart that a condition may have left out.
func dependency(ch *chart.Chart, name string) bool {
	return slices.ContainsFunc(ch.Metadata.Dependencies, func(d *chart.Dependency) bool {
		return d != nil && (d.Name == name || d.Alias == name)
	})
}
