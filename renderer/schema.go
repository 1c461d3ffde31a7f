package renderer

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"helm.sh/helm/v3/pkg/chart"

	"github.com/keelson-io/keelson/registry"
)

const (
	schemaFile = "values.schema.json"
	valuesFile = "values.yaml"
	// schemaURL is the base of a schema's references. Nothing is loaded from it.
	schemaURL = "file:///" + schemaFile
)

// errRemoteSchema answers every reference that leaves the schema's own file:
// a render reads no network and no file.
var errRemoteSchema = errors.New("only references inside the schema's own file are allowed")

// localOnly is a loader that loads nothing. The drafts of JSON Schema are
// built into the library and don't come here.
type localOnly struct{}

// Load implements [jsonschema.URLLoader].
func (localOnly) Load(string) (any, error) { return nil, errRemoteSchema }

// violation is one value that a schema refuses.
type violation struct {
	path    []string // below .Values
	message string
}

// validate checks the merged values against the schemas of the chart and its
// subcharts, and reports all violations at once.
func (c *loadedChart) validate(merged map[string]any, values *registry.Values) *Error {
	found, err := c.violations(c.chart, merged, nil)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return nil
	}
	// The library goes through maps in their random order.
	slices.SortFunc(found, func(a, b violation) int {
		return cmp.Or(slices.Compare(a.path, b.path), strings.Compare(a.message, b.message))
	})
	lines := make([]string, len(found))
	var first registry.Position
	for i, v := range found {
		at := c.valuePosition(v.path, values)
		if i == 0 {
			first = at
		}
		lines[i] = v.String()
		if len(found) > 1 {
			lines[i] = "\n  " + at.String() + ": " + lines[i]
		}
	}
	text := lines[0]
	if len(found) > 1 {
		text = strconv.Itoa(len(found)) + " values are not as the chart's schema wants them:" + strings.Join(lines, "")
	}
	return newError(c.version, first, text, nil)
}

// String is "PATH: message".
func (v violation) String() string {
	if len(v.path) == 0 {
		return "values: " + v.message
	}
	return strings.Join(v.path, ".") + ": " + v.message
}

// violations walks the charts as Helm does: a subchart's values lie under its
// name.
func (c *loadedChart) violations(ch *chart.Chart, values map[string]any, path []string) ([]violation, *Error) {
	var found []violation
	if ch.Schema != nil {
		v, err := c.chartViolations(ch, values, path)
		if err != nil {
			return nil, err
		}
		found = v
	}
	for _, sub := range ch.Dependencies() {
		below := append(slices.Clone(path), sub.Name())
		switch raw := values[sub.Name()].(type) {
		case nil:
		case map[string]any:
			v, err := c.violations(sub, raw, below)
			if err != nil {
				return nil, err
			}
			found = append(found, v...)
		default:
			found = append(found, violation{below, "the values of a subchart must be a map"})
		}
	}
	return found, nil
}

func (c *loadedChart) chartViolations(ch *chart.Chart, values map[string]any, path []string) ([]violation, *Error) {
	schema, err := c.compile(ch)
	if err != nil {
		return nil, err
	}
	// Injected images are Keelson's, not the user's: a schema that doesn't
	// know them must not refuse them.
	if _, declared := schema.Properties[imagesKey]; len(path) == 0 && len(c.version.Images) > 0 && !declared {
		values = maps.Clone(values)
		delete(values, imagesKey)
	}
	var invalid *jsonschema.ValidationError
	if cause := schema.Validate(values); errors.As(cause, &invalid) {
		return leaves(invalid, path, message.NewPrinter(language.English)), nil
	} else if cause != nil {
		return nil, c.fail(c.chartFile(ch, schemaFile), 0, cause.Error(), cause)
	}
	return nil, nil
}

func (c *loadedChart) compile(ch *chart.Chart) (*jsonschema.Schema, *Error) {
	file := c.chartFile(ch, schemaFile)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(ch.Schema))
	if err != nil {
		return nil, c.fail(file, 0, "the schema is no JSON: "+err.Error(), err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(localOnly{})
	if err := compiler.AddResource(schemaURL, doc); err != nil {
		return nil, c.fail(file, 0, "the schema can't be used: "+err.Error(), err)
	}
	schema, err := compiler.Compile(schemaURL)
	var remote *jsonschema.LoadURLError
	switch {
	case err == nil:
		return schema, nil
	case errors.As(err, &remote):
		ref := strings.TrimPrefix(remote.URL, "file:///")
		return nil, c.fail(file, lineOf(ch.Schema, ref), "the schema refers to "+ref+": "+errRemoteSchema.Error(), err)
	}
	return nil, c.fail(file, 0, "the schema can't be used: "+err.Error(), err)
}

// lineOf is the first line that has the text, or 0.
func lineOf(data []byte, text string) int {
	before, _, found := bytes.Cut(data, []byte(text))
	if !found {
		return 0
	}
	return 1 + bytes.Count(before, []byte("\n"))
}

// leaves are the violations at the ends of a tree of them. Alternatives stay
// together: each leaf of an anyOf alone says what only one branch wants.
func leaves(e *jsonschema.ValidationError, path []string, p *message.Printer) []violation {
	at := append(slices.Clone(path), e.InstanceLocation...)
	switch k := e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		var ways []string
		for _, cause := range e.Causes {
			for _, v := range leaves(cause, path, p) {
				ways = append(ways, v.message)
			}
		}
		text := k.LocalizedString(p)
		if len(ways) > 0 {
			text += " (" + strings.Join(slices.Compact(ways), "; or ") + ")"
		}
		return []violation{{at, text}}
	case *kind.AdditionalProperties:
		var out []violation
		for _, name := range k.Properties {
			out = append(out, violation{append(slices.Clone(at), name), "unknown value: the chart's schema does not have it"})
		}
		return out
	case *kind.Pattern: // without the value: it may be a secret
		return []violation{{at, "does not match the pattern " + k.Want}}
	case *kind.Format:
		return []violation{{at, "is not a valid " + k.Want}}
	case *kind.Minimum:
		return []violation{{at, "must be at least " + number(k.Want) + ", not " + number(k.Got)}}
	case *kind.Maximum:
		return []violation{{at, "must be at most " + number(k.Want) + ", not " + number(k.Got)}}
	case *kind.Required:
		return []violation{{at, "needs " + strings.Join(k.Missing, ", ")}}
	}
	if len(e.Causes) == 0 {
		return []violation{{at, e.ErrorKind.LocalizedString(p)}}
	}
	var out []violation
	for _, cause := range e.Causes {
		out = append(out, leaves(cause, path, p)...)
	}
	return out
}

// number without the separators of a language.
func number(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	f, _ := r.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// chartFile is the name under template/ of a file in a chart's folder.
func (c *loadedChart) chartFile(ch *chart.Chart, name string) string {
	for _, f := range ch.Raw {
		if f.Name == name || strings.HasSuffix(f.Name, "/"+name) {
			return c.fileName(f, ch.ChartFullPath()+"/"+name)
		}
	}
	return name
}

// valuePosition is where a value was set: in meta-config, else in the chart's
// values.yaml. A value that is nowhere goes by the map that lacks it.
func (c *loadedChart) valuePosition(path []string, values *registry.Values) registry.Position {
	for p := path; len(p) > 0; p = p[:len(p)-1] {
		if has(values.Map(), p) {
			if at, ok := values.Origin(p...); ok {
				return at
			}
			break // set by the user, nobody knows where
		}
		if at, ok := c.defaultPosition(p); ok {
			return at
		}
	}
	return chartPosition(c.version, schemaFile, 0)
}

// defaultPosition finds a path in the values.yaml of the chart, then of the
// subchart that it leads into.
func (c *loadedChart) defaultPosition(path []string) (registry.Position, bool) {
	ch := c.chart
	for {
		for _, f := range ch.Raw {
			if f.Name != valuesFile && !strings.HasSuffix(f.Name, "/"+valuesFile) {
				continue
			}
			if line, ok := yamlLine(f.Data, path); ok {
				return chartPosition(c.version, c.chartFile(ch, valuesFile), line), true
			}
		}
		sub := subchart(ch, path[0])
		if sub == nil || len(path) == 1 {
			return registry.Position{}, false
		}
		ch, path = sub, path[1:]
	}
}

func subchart(ch *chart.Chart, name string) *chart.Chart {
	for _, d := range ch.Dependencies() {
		if d.Name() == name {
			return d
		}
	}
	return nil
}
