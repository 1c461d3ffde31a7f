package renderer

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// variableFunctions returns Helm's template functions whose results may differ between calls: by
// the clock, by chance, or by the order of a map. TestVariableFunctions compares the list with
// Helm's own.
func variableFunctions() []string {
	return []string{
		"now", "ago", "date", "dateInZone", "date_in_zone", "date_modify", "dateModify", "htmlDate", "htmlDateInZone",
		"randAlphaNum", "randAlpha", "randAscii", "randNumeric", "randBytes", "randInt", "shuffle", "uuidv4",
		"genPrivateKey", "genCA", "genCAWithKey", "genSelfSignedCert", "genSelfSignedCertWithKey",
		"genSignedCert", "genSignedCertWithKey", "htpasswd", "bcrypt", "encryptAES",
		"keys", "values",
	}
}

// determinism executes the templates once more and compares. A chart that renders differently each
// time would change its clusters each time that Keelson starts, so it is refused. If the component
// chooses to report it instead, the warnings name the lines.
func (e *execution) determinism() (warnings []string, _ *Error) {
	again, err := e.execute(e.top)
	if err != nil {
		return nil, err
	}
	if maps.Equal(e.files, again.files) {
		return nil, nil
	}
	calls := e.variableCalls(again)
	at := chartPosition(e.version, "Chart.yaml", 0)
	if len(calls) > 0 {
		at = calls[0].at
	}
	const message = "the chart renders to something else each time"
	if e.job.Determinism == v1alpha1.DeterminismReport {
		for _, c := range calls {
			warnings = append(warnings, c.at.String()+": "+message+", by "+c.function)
		}
		if len(calls) == 0 {
			warnings = []string{at.String() + ": " + message}
		}
		return warnings, nil
	}
	text := message
	switch {
	case len(calls) == 1:
		text += ", by " + calls[0].function
	case len(calls) > 1:
		lines := make([]string, min(len(calls), maxViolations))
		for i := range lines {
			lines[i] = "\n  " + calls[i].at.String() + ": " + calls[i].function
		}
		text += ", by" + strings.Join(lines, "") + "\n "
	}
	text += " and would change the cluster each time: give the value in meta-config, or set determinism: report in component.yaml"
	return nil, newError(e.version, at, text, nil)
}

// call is a line on which a template calls a function.
type call struct {
	at       yamlfile.Position
	function string
}

// variableCalls returns the lines that may explain the difference of two executions: those in
// templates with different output, or else those in all, since a helper has no output.
func (e *execution) variableCalls(again *execution) []call {
	var in, elsewhere []call
	for name, src := range e.templates {
		differs := e.files[name] != again.files[name]
		for _, f := range variableFunctions() {
			for _, line := range callLines(src.text, f) {
				c := call{at: chartPosition(e.version, src.file, line), function: f}
				if differs {
					in = append(in, c)
				} else {
					elsewhere = append(elsewhere, c)
				}
			}
		}
	}
	if len(in) == 0 {
		in = elsewhere
	}
	slices.SortFunc(in, func(a, b call) int {
		return cmp.Or(strings.Compare(a.at.File, b.at.File), a.at.Line-b.at.Line, strings.Compare(a.function, b.function))
	})
	return in
}
