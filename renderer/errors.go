package renderer

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

func newError(v *registry.Version, at yamlfile.Position, message string, cause error) *Error {
	return &Error{Component: v.Component, Version: v.Name, At: at, Message: message, Err: cause}
}

// chartPosition returns a position in one of the chart's files.
func chartPosition(v *registry.Version, file string, line int) yamlfile.Position {
	return position(v, v.ChartFile(file), line)
}

// componentPosition returns a position in one of the version's files.
func componentPosition(v *registry.Version, file string, line int) yamlfile.Position {
	return position(v, "components/"+v.Component+"/"+file, line)
}

func position(v *registry.Version, file string, line int) yamlfile.Position {
	p := yamlfile.Position{File: file, Line: line}
	if v.Name != v1alpha1.VersionHead {
		p.Revision = v.Component + "/" + v.Name
	}
	return p
}

func (c *loadedChart) fail(file string, line int, message string, cause error) *Error {
	return newError(c.version, chartPosition(c.version, file, line), message, cause)
}

// templateError makes a position and a short message from an error of Helm's engine. Helm wraps
// template errors as text, without types. The text is one of
//
//	execution error at (CHART/templates/x.yaml:3:5): MESSAGE of required or fail
//	parse error at (CHART/templates/x.yaml:3): MESSAGE
//	template: CHART/templates/x.yaml:7:20: executing "NAME" at <EXPR>: error calling include: template: …: MESSAGE
func (c *loadedChart) templateError(cause error) *Error {
	text := cause.Error()
	if m := regexp.MustCompile(`(?s)^(?:execution|parse) error (?:at|in) \(([^():]+)(?::(\d+))?(?::(\d+))?\): (.*)$`).FindStringSubmatch(text); m != nil {
		return c.errorAt(m[1], m[2], m[3], c.innermost(m[4]).message, cause)
	}
	in := c.innermost(text)
	if in.message == "" {
		return c.fail("Chart.yaml", 0, text, cause)
	}
	message := in.message
	if in.outer != "" {
		message += " (while rendering " + in.outer + ")"
	}
	return c.errorAt(in.template, in.line, in.column, message, cause)
}

// nested is the innermost useful part of a chain of template errors.
type nested struct {
	template, line, column string // of the innermost position that is in a file
	message                string
	outer                  string // FILE:LINE of the outermost position, if different
}

func (c *loadedChart) innermost(text string) nested {
	place := regexp.MustCompile(`(?s)template: ([^\s:]+):(\d+)(?::(\d+))?: (?:executing ".*?" at <(.*?)>: )?`)
	matches := place.FindAllStringSubmatchIndex(text, -1)
	group := func(m []int, i int) string {
		if m[2*i] < 0 {
			return ""
		}
		return text[m[2*i]:m[2*i+1]]
	}
	var in nested
	in.message = text
	for _, m := range matches {
		in.message = text[m[1]:]
		if expr := group(m, 4); expr != "" {
			in.message += " at <" + expr + ">"
		}
		src, ok := c.templates[group(m, 1)]
		if !ok {
			continue // the text of a tpl call has a name, but no file
		}
		if in.template == "" {
			in.outer = src.file + ":" + group(m, 2)
		}
		in.template, in.line, in.column = group(m, 1), group(m, 2), group(m, 3)
	}
	if src := c.templates[in.template]; in.outer == src.file+":"+in.line {
		in.outer = ""
	}
	in.message = strings.TrimSpace(in.message)
	return in
}

func (c *loadedChart) errorAt(template, line, column, message string, cause error) *Error {
	file := template
	if src, ok := c.templates[template]; ok {
		file = src.file
	} else if _, rest, ok := strings.Cut(template, "/"); ok {
		file = rest
	}
	if file == "" {
		file = "Chart.yaml"
	}
	e := c.fail(file, 0, message, cause)
	// Without a number Atoi returns 0, and 0 means unknown.
	e.At.Line, _ = strconv.Atoi(line)
	if col, err := strconv.Atoi(column); err == nil {
		e.At.Column = col + 1 // text/template counts columns from 0
	}
	return e
}
