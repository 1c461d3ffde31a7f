package renderer

import (
	"regexp"
	"strings"
)

// sourceLines finds the lines of a template's source that rendered documents come from. It returns
// 0 if it can't tell, because templates may do anything.
type sourceLines struct {
	lines []string
	// kinds are the lines with `kind: X`, by X.
	kinds map[string][]int
	// documents are the first lines of the parts between `---` that contain more than template
	// actions.
	documents []int
}

func newSourceLines(text string) *sourceLines {
	s := &sourceLines{lines: strings.Split(text, "\n"), kinds: map[string][]int{}}
	kind := regexp.MustCompile(`^(\s*)kind:\s*["']?([A-Za-z][A-Za-z0-9]*)["']?\s*(?:#.*)?$`)
	indented := map[string][]int{}
	for i, l := range s.lines {
		m := kind.FindStringSubmatch(strings.TrimRight(l, "\r"))
		switch {
		case m == nil:
		case m[1] == "":
			s.kinds[m[2]] = append(s.kinds[m[2]], i+1)
		default:
			indented[m[2]] = append(indented[m[2]], i+1)
		}
	}
	for k, at := range indented {
		if len(s.kinds[k]) == 0 {
			s.kinds[k] = at
		}
	}
	s.findDocuments(text)
	return s
}

func (s *sourceLines) findDocuments(text string) {
	// Actions and comments do not make a document.
	quiet := regexp.MustCompile(`(?s)\{\{.*?\}\}`)
	start := 0 // the first line with content since the last separator
	for i, l := range strings.Split(quiet.ReplaceAllStringFunc(text, blank), "\n") {
		t := strings.TrimSpace(l)
		switch {
		case strings.HasPrefix(l, "---"):
			if start > 0 {
				s.documents = append(s.documents, start)
			}
			start = 0
		case start == 0 && t != "" && !strings.HasPrefix(t, "#"):
			start = i + 1
		}
	}
	if start > 0 {
		s.documents = append(s.documents, start)
	}
}

// rendered is a document's position among the documents of its file.
type rendered struct {
	index, count         int // among all documents with content
	kind                 string
	kindIndex, kindCount int // among the documents of its kind
}

// line returns the line of a document's `kind:`, or of its start.
func (s *sourceLines) line(r rendered) int {
	at := s.kinds[r.kind]
	switch {
	case r.kind != "" && len(at) == 1:
		return at[0]
	case r.kind != "" && len(at) > 0 && len(at) == r.kindCount:
		return at[r.kindIndex]
	case len(s.documents) == r.count:
		return s.documents[r.index]
	}
	return 0
}

// lineLike returns the only source line that equals a rendered line, or 0.
func (s *sourceLines) lineLike(rendered string) int {
	want, found := strings.TrimSpace(rendered), 0
	if want == "" {
		return 0
	}
	for i, l := range s.lines {
		if strings.TrimSpace(l) != want {
			continue
		}
		if found > 0 {
			return 0
		}
		found = i + 1
	}
	return found
}
