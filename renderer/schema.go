package renderer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
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

	"github.com/keelson-io/keelson/registry/yamlfile"
)

const (
	schemaFile = "values.schema.json"
	valuesFile = "values.yaml"
	// schemaURL is the base of a schema's references. Nothing is loaded from it.
	schemaURL = "file:///" + schemaFile
)

// maxViolations bounds the violations that one error lists.
const maxViolations = 20

// errRemoteSchema is the error of every reference that leaves the schema's own file: a render reads
// no network and no file.
var errRemoteSchema = errors.New("only references inside the schema's own file are allowed")

// localOnly is a loader that loads nothing. The library has the drafts of JSON Schema built in, and
// does not load them.
type localOnly struct{}

// Load implements [jsonschema.URLLoader].
func (localOnly) Load(string) (any, error) { return nil, errRemoteSchema }

// violation is a value that a schema refuses.
type violation struct {
	Path    []string // below .Values
	Message string
	// Default is where the chart sets the value, or the first Depth steps of its path; otherwise
	// the position of the schema.
	Default yamlfile.Position
	Depth   int
}

// validate checks the merged values against the schemas of the chart and its
// subcharts, and reports all violations at once.
func (c *loadedChart) validate(merged map[string]any) *Error {
	found, err := c.violations(c.chart, merged, nil)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return nil
	}
	// The library iterates over maps in random order.
	slices.SortFunc(found, func(a, b violation) int {
		return cmp.Or(slices.Compare(a.Path, b.Path), strings.Compare(a.Message, b.Message))
	})
	for i := range found {
		found[i].Default, found[i].Depth = c.defaultPosition(found[i].Path)
	}
	e := newError(c.version, found[0].Default, "", nil)
	e.violations = found
	return e
}

// located fills in where meta-config sets the values that a schema refuses.
func (e *Error) located(r Request) *Error {
	if len(e.violations) == 0 {
		return e
	}
	out := *e
	lines := make([]string, len(e.violations))
	for i, v := range e.violations {
		at := v.position(r)
		if i == 0 {
			out.At = at
		}
		lines[i] = v.String()
		if len(lines) > 1 {
			lines[i] = "\n  " + at.String() + ": " + lines[i]
		}
	}
	out.Message = lines[0]
	if n := len(lines); n > 1 {
		if n > maxViolations {
			lines = append(lines[:maxViolations], "\n  and "+strconv.Itoa(n-maxViolations)+" more")
		}
		out.Message = strconv.Itoa(n) + " values are not as the chart's schema wants them:" + strings.Join(lines, "")
	}
	return &out
}

// String is "PATH: message".
func (v violation) String() string {
	if len(v.Path) == 0 {
		return "values: " + v.Message
	}
	return strings.Join(v.Path, ".") + ": " + v.Message
}

// position returns where the value is set: in meta-config, or else by the chart. A missing value
// has the position of the map that lacks it.
func (v violation) position(r Request) yamlfile.Position {
	for n := len(v.Path); n > 0 && n >= v.Depth; n-- {
		if has(r.Values.Map(), v.Path[:n]) {
			if at, ok := r.Values.Origin(v.Path[:n]...); ok {
				return at
			}
			return chartPosition(r.Version, schemaFile, 0) // set by the user, at an unknown position
		}
	}
	return v.Default
}

// violations walks the charts as Helm does: a subchart's values are under its name.
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
			found = append(found, violation{Path: below, Message: "the values of a subchart must be a map"})
		}
	}
	return found, nil
}

func (c *loadedChart) chartViolations(ch *chart.Chart, values map[string]any, path []string) ([]violation, *Error) {
	schema, err := c.compile(ch)
	if err != nil {
		return nil, err
	}
	// Keelson injects the images, not the user, so a schema that does not define them must not
	// refuse them.
	if _, declared := schema.Properties[imagesKey]; len(path) == 0 && c.job.Images != nil && !declared {
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
	if deep(doc, maxDepth) {
		return nil, c.fail(file, 0, fmt.Sprintf("the schema is nested deeper than %d levels", maxDepth), nil)
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

// lineOf returns the first line that has the text, or 0.
func lineOf(data []byte, text string) int {
	before, _, found := bytes.Cut(data, []byte(text))
	if !found {
		return 0
	}
	return 1 + bytes.Count(before, []byte("\n"))
}

// leaves returns the violations at the ends of a tree. Alternatives stay together: one leaf of an
// anyOf describes only one branch.
func leaves(e *jsonschema.ValidationError, path []string, p *message.Printer) []violation {
	at := append(slices.Clone(path), e.InstanceLocation...)
	switch k := e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		var ways []string
		for _, cause := range e.Causes {
			for _, v := range leaves(cause, path, p) {
				ways = append(ways, v.Message)
			}
		}
		text := k.LocalizedString(p)
		if len(ways) > 0 {
			text += " (" + strings.Join(slices.Compact(ways), "; or ") + ")"
		}
		return []violation{{Path: at, Message: text}}
	case *kind.AdditionalProperties:
		var out []violation
		for _, name := range k.Properties {
			out = append(out, violation{Path: append(slices.Clone(at), name), Message: "unknown value: the chart's schema does not have it"})
		}
		return out
	case *kind.Pattern: // without the value: it may be a secret
		return []violation{{Path: at, Message: "does not match the pattern " + k.Want}}
	case *kind.Format:
		return []violation{{Path: at, Message: "is not a valid " + k.Want}}
	case *kind.Minimum:
		return []violation{{Path: at, Message: "must be at least " + number(k.Want) + ", not " + number(k.Got)}}
	case *kind.Maximum:
		return []violation{{Path: at, Message: "must be at most " + number(k.Want) + ", not " + number(k.Got)}}
	case *kind.Required:
		return []violation{{Path: at, Message: "needs " + strings.Join(k.Missing, ", ")}}
	}
	if len(e.Causes) == 0 {
		return []violation{{Path: at, Message: e.ErrorKind.LocalizedString(p)}}
	}
	var out []violation
	for _, cause := range e.Causes {
		out = append(out, leaves(cause, path, p)...)
	}
	return out
}

// number formats r without the separators of a language.
func number(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	f, _ := r.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// chartFile returns the name under template/ of a file in a chart's folder.
func (c *loadedChart) chartFile(ch *chart.Chart, name string) string {
	for _, f := range ch.Raw {
		if f.Name == name || strings.HasSuffix(f.Name, "/"+name) {
			return c.fileName(f, ch.ChartFullPath()+"/"+name)
		}
	}
	return name
}

// defaultPosition returns where the chart sets a value, or the nearest map above it, and how many
// steps of the path lead there. A value that the chart does not know has the position of the
// schema.
func (c *loadedChart) defaultPosition(path []string) (yamlfile.Position, int) {
	for n := len(path); n > 0; n-- {
		if at, ok := c.defaultAt(path[:n]); ok {
			return at, n
		}
	}
	return chartPosition(c.version, schemaFile, 0), 0
}

// defaultAt finds a path in the values.yaml of the chart, and then of the subchart to which the
// path leads.
func (c *loadedChart) defaultAt(path []string) (yamlfile.Position, bool) {
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
			return yamlfile.Position{}, false
		}
		ch, path = sub, path[1:]
	}
}

func subchart(ch *chart.Chart, name string) *chart.Chart {
	if ch == nil {
		return nil
	}
	for _, d := range ch.Dependencies() {
		if d.Name() == name {
			return d
		}
	}
	return nil
}
