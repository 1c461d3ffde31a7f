package cli

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// Table is text in columns that fits a terminal.
type Table struct {
	Columns []Column
	Rows    []Row
	Painter Painter
	// Width is that of the terminal; 0: no limit.
	Width int
}

// Column is the title and the width of a column.
type Column struct {
	Title string
	// MinWidth is the width that the column keeps when the table is too wide; 0: it does not shrink.
	// The last column shrinks first. Columns with KeepEnd shrink after all others.
	MinWidth int
	// KeepEnd means that a cut keeps the end of the text.
	KeepEnd bool
}

// Row is one line of a table, with as many cells as the table has columns.
type Row struct {
	Cells []Cell
	// Notes stand below the row, each on separate lines.
	Notes []Cell
}

// Cell is text in one style.
type Cell struct {
	Text  string
	Style Style
}

const (
	gap  = "  "
	more = "…"
)

// NewTable returns a table whose last column shrinks.
func (inv *Invocation) NewTable(titles ...string) *Table {
	t := &Table{Painter: inv.Painter(inv.Env.Out), Width: inv.Env.Columns(inv.Env.Out)}
	for _, title := range titles {
		t.Columns = append(t.Columns, Column{Title: title})
	}
	t.Columns[len(titles)-1].MinWidth = 16
	return t
}

// TextOr returns the table, or the text none if the table has no rows.
func (t *Table) TextOr(none string) string {
	if len(t.Rows) == 0 {
		return none
	}
	return t.String()
}

// String returns the table with a line break at its end.
func (t *Table) String() string {
	var b strings.Builder
	widths := t.widths()
	head := make([]Cell, len(t.Columns))
	for i, c := range t.Columns {
		head[i] = Cell{Text: c.Title, Style: Bold}
	}
	t.line(&b, widths, head)
	for _, r := range t.Rows {
		t.line(&b, widths, r.Cells)
		for _, n := range r.Notes {
			for i, l := range wrap(n.Text, t.Width-4) {
				mark := "  "
				if i > 0 {
					mark = "    "
				}
				b.WriteString(mark + t.Painter.Paint(n.Style, l) + "\n")
			}
		}
	}
	return b.String()
}

func (t *Table) widths() []int {
	widths := make([]int, len(t.Columns))
	total := len(gap) * (len(widths) - 1)
	for i, c := range t.Columns {
		widths[i] = columnsOf(c.Title)
		for _, r := range t.Rows {
			widths[i] = max(widths[i], columnsOf(r.Cells[i].Text))
		}
		total += widths[i]
	}
	if t.Width <= 0 {
		return widths
	}
	for _, tail := range []bool{false, true} {
		for i, c := range slices.Backward(t.Columns) {
			if over := total - t.Width; c.KeepEnd == tail && over > 0 && c.MinWidth > 0 && widths[i] > c.MinWidth {
				narrower := max(c.MinWidth, widths[i]-over)
				total -= widths[i] - narrower
				widths[i] = narrower
			}
		}
	}
	return widths
}

// Fits reports whether the table fits without cuts.
func (t *Table) Fits() bool {
	wide := *t
	wide.Width = 0
	total := len(gap) * (len(t.Columns) - 1)
	for _, n := range wide.widths() {
		total += n
	}
	return t.Width <= 0 || total <= t.Width
}

func (t *Table) line(b *strings.Builder, widths []int, cells []Cell) {
	// No spaces follow the last cell with text.
	last := len(cells) - 1
	for last > 0 && cells[last].Text == "" {
		last--
	}
	for i, c := range cells[:last+1] {
		text := cut(c.Text, widths[i])
		if t.Columns[i].KeepEnd {
			text = cutFront(c.Text, widths[i])
		}
		b.WriteString(t.Painter.Paint(c.Style, text))
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
