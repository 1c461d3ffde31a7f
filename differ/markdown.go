package differ

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Bounds of a Markdown report. Forges accept comments of 64 KiB.
const (
	markdownSize  = 60_000 // bytes; beyond this size objects are listed without their diffs
	markdownLines = 120    // of one object's diff
	markdownLine  = 500    // bytes of one code span or diff line
	markdownItems = 30     // entries of each list: warnings, their objects, held objects, their fields, objects without diffs
)

// WriteMarkdown writes the plan for a comment on a pull request. It begins with a line of counts
// and with the warnings. Held, denied and kept changes follow with rule, reason and hash to
// approve. Each object follows with a unified diff. Cut text says how much is missing. The error is
// that of w.
//
// Text from a cluster, a chart or a rule stands only in code spans and fenced blocks, and can't end
// them. So such text makes no link, mention, image, heading or HTML.
func (p Plan) WriteMarkdown(w io.Writer) error {
	text := p.Summary() + "\n"
	if warnings := p.MarkdownWarnings(); warnings != "" {
		text += "\n### Warnings\n\n" + warnings
	}
	if attention := p.MarkdownAttention(); attention != "" {
		text += "\n### Held, denied or kept\n\n" + attention
	}
	text += p.MarkdownObjects(markdownSize-len(text), 3)
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write diff: %w", err)
	}
	return nil
}

// MarkdownAttention returns the part of [Plan.WriteMarkdown] that lists changes that are held,
// denied, kept or approved; empty without such changes.
func (p Plan) MarkdownAttention() string {
	m := markdown{}
	m.attention(p.shown())
	return m.b.String()
}

// MarkdownWarnings returns the part of [Plan.WriteMarkdown] that lists the warnings of danger
// rules: one entry a rule, with the objects and fields; empty without warnings.
func (p Plan) MarkdownWarnings() string {
	m := markdown{}
	m.warnings(p.shown())
	return m.b.String()
}

// MarkdownObjects returns the part of [Plan.WriteMarkdown] that shows the objects, in about room
// bytes, below headings of the given level.
func (p Plan) MarkdownObjects(room, level int) string {
	m := markdown{heading: strings.Repeat("#", level), against: p.Against}
	m.objects(p.shown(), room)
	return m.b.String()
}

// MarkdownCode returns a code span that shows a text on one line. Control characters are replaced.
func MarkdownCode(s string) string {
	s = strings.ReplaceAll(printable(s), "\t", " ")
	if s == "" {
		return ""
	}
	fence := strings.Repeat("`", longestRun(s)+1)
	// Markdown removes a space at both ends, if the span has any other character. Without the
	// spaces, a backtick at an end would lengthen the fence.
	if strings.HasPrefix(s, "`") || strings.HasSuffix(s, "`") || strings.HasPrefix(s, " ") && strings.HasSuffix(s, " ") && strings.Trim(s, " ") != "" {
		s = " " + s + " "
	}
	return fence + s + fence
}

// longestRun returns the length of the longest run of backticks.
func longestRun(s string) int {
	longest, run := 0, 0
	for _, r := range s {
		if r != '`' {
			run = 0
			continue
		}
		run++
		longest = max(longest, run)
	}
	return longest
}

type markdown struct {
	b       strings.Builder
	heading string // of an object
	against string // [Plan.Against]
}

// printf writes Keelson's own words; all other text must go through code.
func (m *markdown) printf(format string, args ...any) { fmt.Fprintf(&m.b, format, args...) }

// code returns a code span of bounded length.
func code(s string) string { return MarkdownCode(cut(s)) }

// cut shortens a line, and appends how many bytes are missing.
func cut(s string) string {
	if len(s) <= markdownLine {
		return s
	}
	end := markdownLine
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s… (%d bytes more)", s[:end], len(s)-end)
}

// attention lists what is held, denied, kept or approved.
func (m *markdown) attention(order []*Change) {
	listed := 0
	for _, c := range order {
		fields := attentive(c)
		if len(fields) == 0 && c.Rule == "" && c.State < StateHeld {
			continue
		}
		if listed++; listed <= markdownItems {
			m.attentionTo(c, fields)
		}
	}
	if more := listed - markdownItems; more > 0 {
		m.printf("- and %d more\n", more)
	}
}

// warnings lists the rules that warn, in the order of the objects, each with its objects and
// fields.
func (m *markdown) warnings(order []*Change) {
	type place struct {
		verb, object string
		paths        []string
	}
	var rules []Warning
	places := map[string][]place{}
	for _, c := range order {
		for _, w := range c.Warnings {
			if places[w.Rule] == nil {
				rules = append(rules, w)
			}
			places[w.Rule] = append(places[w.Rule], place{c.verb(), c.ID.String(), w.Paths})
		}
	}
	for i, w := range rules {
		if i == markdownItems {
			m.printf("- and %d more rules\n", len(rules)-i)
			return
		}
		m.printf("- **warning**")
		m.reason(w.Rule, w.Because)
		m.fix(w.Fix)
		m.printf("\n")
		for j, at := range places[w.Rule] {
			if j == markdownItems {
				m.printf("  - and %d more objects\n", len(places[w.Rule])-j)
				break
			}
			m.printf("  - %s %s", at.verb, code(at.object))
			if len(at.paths) > 0 {
				m.printf(" %s", code(strings.TrimSpace(pathsOf(at.paths))))
			}
			m.printf("\n")
		}
	}
}

func attentive(c *Change) []Field {
	var out []Field
	for _, f := range byUrgency(c.Fields) {
		switch f.Action {
		case ActionDeny, ActionHold, ActionKeep:
			out = append(out, f)
		case ActionSet, ActionRestore, ActionRemove, ActionRelease, ActionAdopt:
			if f.Rule != "" { // approved
				out = append(out, f)
			}
		}
	}
	return out
}

func (m *markdown) attentionTo(c *Change, fields []Field) {
	m.printf("- **%s** %s", c.verb(), code(c.ID.String()))
	m.reason(c.Rule, c.Because)
	m.fix(c.Fix)
	if c.Approvable() {
		m.printf("; to approve: hash %s", code(c.Hash))
		for _, missed := range c.Missed {
			m.printf("; %s", code(missed))
		}
	}
	m.printf("\n")
	for i, f := range fields {
		if i == markdownItems {
			m.printf("  - and %d more\n", len(fields)-i)
			return
		}
		m.printf("  - %s %s", f.Action, code(f.Path))
		m.reason(f.Rule, f.Because)
		if i == 0 || f.Fix != fields[i-1].Fix {
			m.fix(f.Fix)
		}
		m.printf("\n")
	}
}

// fix says what to do instead of what a rule stops or warns of.
func (m *markdown) fix(fix string) {
	if fix != "" {
		m.printf("; instead: %s", code(fix))
	}
}

func (m *markdown) reason(rule, because string) {
	if rule != "" {
		m.printf(", rule %s", code(rule))
	}
	if because != "" {
		m.printf(": %s", code(because))
	}
}

// objects shows the diff of each object until room is used up, and then only lists objects.
func (m *markdown) objects(order []*Change, room int) {
	named := 0
	for _, c := range order {
		one := markdown{heading: m.heading, against: m.against}
		one.object(c)
		if m.b.Len()+one.b.Len() <= room && named == 0 {
			m.b.WriteString(one.b.String())
			continue
		}
		named++
		if named == 1 {
			m.printf("\n%s Without their diffs, for want of room\n\n", m.heading)
		}
		if named <= markdownItems {
			m.printf("- %s %s\n", c.verb(), code(c.ID.String()))
		}
	}
	if more := named - markdownItems; more > 0 {
		m.printf("- and %d more\n", more)
	}
}

func (m *markdown) object(c *Change) {
	m.printf("\n%s %s %s\n", m.heading, c.verb(), code(c.ID.String()))
	if c.Because != "" && c.Rule == "" {
		m.printf("\n%s\n", code(c.Because))
	}
	if c.Unpredicted != "" {
		m.printf("\nno dry run: %s\n", code(c.Unpredicted))
	}
	t := text{against: m.against}
	t.body(c)
	if t.b.Len() == 0 {
		return
	}
	var body strings.Builder
	n := 0
	for line := range strings.Lines(t.b.String()) {
		if n++; n <= markdownLines {
			body.WriteString(cut(strings.TrimSuffix(line, "\n")) + "\n")
		}
	}
	if more := n - markdownLines; more > 0 {
		fmt.Fprintf(&body, "… %d lines more\n", more)
	}
	fence := strings.Repeat("`", max(3, longestRun(body.String())+1))
	m.printf("\n%sdiff\n%s%s\n", fence, body.String(), fence)
}
