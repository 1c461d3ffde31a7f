package renderer

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The patterns of templates that may take all the time or memory, and of those that may render
// themselves. Helm can't say where a render was when it was ended.
const (
	enormous  = `\b(?:until|untilStep|seq|repeat)\b|\brange\s+(?:\$\w+\s*:=\s*)?\d{4,}|\bn?indent\s+\d{4,}|\btpl\b`
	recursive = `\btpl\b`
)

// suspects returns the lines of a job's templates that match a pattern, for the end of an error; ""
// when there are none, or too many to help.
func (j *job) suspects(pattern string) string {
	const few = 5
	action := regexp.MustCompile(`(?s)\{\{.*?\}\}`)
	looks := regexp.MustCompile(pattern)
	var found []string
	for _, f := range j.Chart {
		if !strings.Contains("/"+f.Name, "/templates/") {
			continue
		}
		text := string(f.Data)
		for _, a := range action.FindAllStringIndex(text, -1) {
			for _, m := range looks.FindAllStringIndex(text[a[0]:a[1]], -1) {
				line := 1 + strings.Count(text[:a[0]+m[0]], "\n")
				found = append(found, chartPosition(j.version(), f.Name, line).String())
			}
		}
	}
	found = slices.Compact(found)
	if len(found) == 0 || len(found) > few {
		return ""
	}
	return fmt.Sprintf(" (look at %s)", strings.Join(found, ", "))
}
