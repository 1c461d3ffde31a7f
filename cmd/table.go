package cmd

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// table is text in columns that fits a terminal.
type table struct {
	columns []column
	rows    []row
	paint   painter
	// width is that of the terminal; 0: no limit.
	width int
}

type column struct {
	title string
	// least is the width that the column keeps when the table is too wide; 0: it does not shrink.
	// The last column shrinks first. Columns with a tail shrink after all others.
	least int
	// tail means that a cut keeps the end of the text.
	tail bool
}

type row struct {
	cells []cell
	// notes stand below the row, each on separate lines.
	notes []cell
}

type cell struct {
	text  string
	style style
}

const (
	gap  = "  "
	more = "…"
)

// tableOf returns a table whose last column shrinks.
func (a *app) tableOf(titles ...string) *table {
	t := &table{paint: a.colored(a.env.Out), width: a.env.Columns(a.env.Out)}
	for _, title := range titles {
		t.columns = append(t.columns, column{title: title})
	}
	t.columns[len(titles)-1].least = 16
	return t
}

// or returns the table, or the text none if the table has no rows.
func (t *table) or(none string) string {
	if len(t.rows) == 0 {
		return none
	}
	return t.String()
}

// String returns the table with a line break at its end.
func (t *table) String() string {
	var b strings.Builder
	widths := t.widths()
	head := make([]cell, len(t.columns))
	for i, c := range t.columns {
		head[i] = cell{text: c.title, style: bold}
	}
	t.line(&b, widths, head)
	for _, r := range t.rows {
		t.line(&b, widths, r.cells)
		for _, n := range r.notes {
			for i, l := range wrap(n.text, t.width-4) {
				mark := "  "
				if i > 0 {
					mark = "    "
				}
				b.WriteString(mark + t.paint.paint(n.style, l) + "\n")
			}
		}
	}
	return b.String()
}

func (t *table) widths() []int {
	widths := make([]int, len(t.columns))
	total := len(gap) * (len(widths) - 1)
	for i, c := range t.columns {
		widths[i] = columnsOf(c.title)
		for _, r := range t.rows {
			widths[i] = max(widths[i], columnsOf(r.cells[i].text))
		}
		total += widths[i]
	}
	if t.width <= 0 {
		return widths
	}
	for _, tail := range []bool{false, true} {
		for i, c := range slices.Backward(t.columns) {
			if over := total - t.width; c.tail == tail && over > 0 && c.least > 0 && widths[i] > c.least {
				narrower := max(c.least, widths[i]-over)
				total -= widths[i] - narrower
				widths[i] = narrower
			}
		}
	}
	return widths
}

// fits reports whether the table fits without cuts.
func (t *table) fits() bool {
	wide := *t
	wide.width = 0
	total := len(gap) * (len(t.columns) - 1)
	for _, n := range wide.widths() {
		total += n
	}
	return t.width <= 0 || total <= t.width
}

func (t *table) line(b *strings.Builder, widths []int, cells []cell) {
	// No spaces follow the last cell with text.
	last := len(cells) - 1
	for last > 0 && cells[last].text == "" {
		last--
	}
	for i, c := range cells[:last+1] {
		text := cut(c.text, widths[i])
		if t.columns[i].tail {
			text = cutFront(c.text, widths[i])
		}
		b.WriteString(t.paint.paint(c.style, text))
		if i < last {
			b.WriteString(strings.Repeat(" ", widths[i]-columnsOf(text)) + gap)
		}
	}
	b.WriteString("\n")
}

// cut shortens text to the given number of columns.
func cut(s string, columns int) string {
	if columnsOf(s) <= columns {
		return s
	}
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n += runeColumns(r); n > columns-1 {
			break
		}
		b.WriteRune(r)
	}
	return strings.TrimRight(b.String(), " ") + more
}

// cutFront shortens text to the given number of columns, and keeps its end.
func cutFront(s string, columns int) string {
	over := columnsOf(s) - columns
	if over <= 0 {
		return s
	}
	for i, r := range s {
		if over < 0 {
			return more + s[i:]
		}
		over -= runeColumns(r)
	}
	return more
}

// wrap breaks text into lines of at most the given number of columns, if possible. It does not
// break the text if the number is not positive.
func wrap(s string, columns int) []string {
	if columns <= 0 {
		return []string{s}
	}
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		for columnsOf(word) > columns { // for example a path
			head := strings.TrimSuffix(cut(word, columns), more)
			if head == "" {
				break
			}
			if line != "" {
				lines = append(lines, line)
			}
			lines, line, word = append(lines, head), "", word[len(head):]
		}
		switch {
		case line == "":
			line = word
		case columnsOf(line)+1+columnsOf(word) <= columns:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

// columnsOf returns the number of terminal columns that text takes.
func columnsOf(s string) int {
	n := 0
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	if r < 0x300 {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}
