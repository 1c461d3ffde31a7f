package differ

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/rogpeppe/go-internal/diff"
	"sigs.k8s.io/yaml"
)

// jsonObject is one object in the JSON contract of docs/architecture.md.
type jsonObject struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Namespace  string      `json:"namespace,omitempty"`
	Name       string      `json:"name"`
	Op         Op          `json:"op"`
	State      ObjectState `json:"state"`
	Warnings   []Warning   `json:"warnings,omitempty"`
	Fields     []Field     `json:"fields,omitempty"`
	Rule       string      `json:"rule,omitempty"`
	Because    string      `json:"because,omitempty"`
	Fix        string      `json:"fix,omitempty"`
	Retained   string      `json:"retained,omitempty"`
	// Follows is the version before, and DataChanges what changed since.
	Follows     string     `json:"follows,omitempty"`
	DataChanges []Field    `json:"dataChanges,omitempty"`
	Hash        string     `json:"hash,omitempty"`
	Approved    bool       `json:"approved,omitempty"`
	Missed      []string   `json:"missed,omitempty"`
	Admission   []Addition `json:"admission,omitempty"`
	// Unpredicted is why a dry run had no result.
	Unpredicted string `json:"unpredicted,omitempty"`
}

// MarshalJSON returns the JSON of keelson diff -o json, as docs/architecture.md defines it.
func (p Plan) MarshalJSON() ([]byte, error) {
	objects := make([]jsonObject, 0, len(p.Changes))
	for i := range p.Changes {
		c := &p.Changes[i]
		o := jsonObject{
			APIVersion: c.APIVersion, Kind: c.ID.Kind, Namespace: c.ID.Namespace, Name: c.ID.Name,
			Op: c.Op, State: c.State, Warnings: c.Warnings, Fields: c.Fields, Rule: c.Rule, Because: c.Because, Fix: c.Fix,
			Retained: c.Retained, Follows: c.Follows, DataChanges: c.DataChanges, Approved: c.Approved, Missed: c.Missed, Admission: c.Admission, Unpredicted: c.Unpredicted,
		}
		if c.State != StateSynced {
			o.Hash = c.Hash
		}
		objects = append(objects, o)
	}
	data, err := json.Marshal(map[string]any{"objects": objects})
	if err != nil {
		return nil, fmt.Errorf("encode plan: %w", err)
	}
	return data, nil
}

// WriteText writes the plan as a unified diff, one hunk a field. Held and denied changes are first,
// each with its rule and reason. Settled objects are omitted. The error is that of w.
func (p Plan) WriteText(w io.Writer, color bool) error {
	t := text{color: color, against: p.Against}
	for _, c := range p.shown() {
		t.change(c)
	}
	_, err := io.WriteString(w, t.b.String())
	if err != nil {
		return fmt.Errorf("write diff: %w", err)
	}
	return nil
}

// Shows reports whether WriteText has any object to show.
func (p Plan) Shows() bool { return len(p.shown()) > 0 }

// shown returns the changes to show, the worst first.
func (p Plan) shown() []*Change {
	order := make([]*Change, 0, len(p.Changes))
	for i := range p.Changes {
		if c := &p.Changes[i]; c.State != StateSynced || len(c.Fields) > 0 || c.Because != "" {
			order = append(order, c)
		}
	}
	slices.SortStableFunc(order, byUrgencyOf)
	return order
}

// Summary returns the plan's counts in one line: "2 to update, 1 held".
func (p Plan) Summary() string {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(p.Count(OpCreate), "to create")
	add(p.Count(OpUpdate), "to update")
	add(p.Count(OpReplace), "to replace")
	add(p.Count(OpDelete), "to delete")
	held, denied, kept := 0, 0, 0
	for i := range p.Changes {
		switch p.Changes[i].State {
		case StateHeld:
			held++
		case StateDenied:
			denied++
		case StateSynced, StateChanged:
		}
		for _, f := range p.Changes[i].Fields {
			if f.Action == ActionKeep {
				kept++
			}
		}
	}
	add(held, "held")
	add(denied, "denied")
	switch n := p.Warnings(); n {
	case 1:
		add(n, "warning")
	default:
		add(n, "warnings")
	}
	if kept == 1 {
		add(kept, "field kept")
	}
	if kept > 1 {
		add(kept, "fields kept")
	}
	if len(parts) == 0 {
		return "in sync"
	}
	return strings.Join(parts, ", ")
}

const (
	ansiRed    = "\x1b[31m"
	ansiGreen  = "\x1b[32m"
	ansiYellow = "\x1b[33m"
	ansiCyan   = "\x1b[36m"
	ansiBold   = "\x1b[1m"
	ansiReset  = "\x1b[0m"
)

type text struct {
	b       strings.Builder
	color   bool
	against string   // [Plan.Against]
	fixes   []string // of the object, shown so far
}

// header names what is compared, as the first two lines of a unified diff do.
func (t *text) header(before, after string) {
	t.line("", "--- "+before)
	t.line("", "+++ "+after)
}

func (t *text) line(color, s string) {
	s = printable(s)
	if t.color && color != "" {
		t.b.WriteString(color + s + ansiReset + "\n")
		return
	}
	t.b.WriteString(s + "\n")
}

// verb returns a word for the operation on the object.
func (c *Change) verb() string {
	switch {
	case c.State == StateHeld && c.Op == OpUpdate:
		return "HELD in part"
	case c.State == StateHeld && c.Op == OpCreate:
		return "RECREATED, HELD"
	case c.State == StateHeld:
		return "HELD"
	case c.State == StateDenied:
		return "DENIED"
	case c.Op == OpForget:
		return "forget"
	case c.Op == OpNone && c.State == StateSynced && slices.ContainsFunc(c.Fields, func(f Field) bool { return f.Action == ActionKeep }):
		return "keep"
	}
	return c.Op.String()
}

func (t *text) change(c *Change) {
	t.fixes = nil
	color := ansiBold
	switch c.State {
	case StateDenied:
		color += ansiRed
	case StateHeld:
		color += ansiYellow
	case StateSynced, StateChanged:
	}
	t.line(color, fmt.Sprintf("%s %s", c.verb(), c.ID))
	if c.Rule != "" || c.Because != "" {
		t.reason(c.Rule, c.Because, c.Fix)
	}
	if c.Unpredicted != "" {
		t.line(ansiYellow, "! no dry run: "+c.Unpredicted)
	}
	if c.Approvable() {
		t.line(ansiYellow, "! to approve: hash "+c.Hash)
		for _, missed := range c.Missed {
			t.line(ansiYellow, "! "+missed)
		}
	}
	for _, w := range c.Warnings {
		t.warning(w)
	}
	t.body(c)
	t.line("", "")
}

// warning writes one line, and one for the fix if there is one.
func (t *text) warning(w Warning) {
	t.line(ansiYellow, fmt.Sprintf("! warning: rule %s: %s%s", w.Rule, w.Because, pathsOf(w.Paths)))
	if w.Fix != "" {
		t.line(ansiYellow, "!   "+w.Fix)
	}
}

// pathsOf returns the first fields in parentheses, and how many more there are.
func pathsOf(paths []string) string {
	const most = 3
	if len(paths) == 0 {
		return ""
	}
	shown, more := paths[:min(len(paths), most)], ""
	if n := len(paths) - len(shown); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return " (" + strings.Join(shown, ", ") + more + ")"
}

// body writes a unified diff of the object, one hunk a field.
func (t *text) body(c *Change) {
	if c.awaited() {
		t.waits(c)
		return
	}
	switch c.Op {
	case OpCreate:
		t.created(c)
		if len(c.Admission) > 0 {
			t.line(ansiCyan, "@@ "+additionsOf(c.Admission)+" @@")
		}
	case OpDelete:
		t.header(cmp.Or(t.against, "live"), "absent")
	case OpNone, OpUpdate, OpReplace, OpForget:
		if len(c.Fields) > 0 {
			t.header(cmp.Or(t.against, "live"), c.Source.String())
		}
		for _, f := range inItems(byUrgency(c.Fields)) {
			t.field(f)
		}
		t.additions(c.Admission)
	}
}

// created shows a new object, or what a new version of a ConfigMap or Secret changes.
func (t *text) created(c *Change) {
	if c.Follows == "" {
		t.header("absent", c.Source.String())
		t.value(ansiGreen, "+", c.Record)
		return
	}
	t.header(c.before(), c.Source.String())
	for _, f := range c.DataChanges {
		t.field(f)
	}
}

// before names the version that a version of a ConfigMap or Secret follows; empty: there is none.
func (c *Change) before() string {
	if c.Follows == "" {
		return ""
	}
	id := c.ID
	id.Name = c.Follows
	return id.String()
}

// awaited reports whether the object was deleted in the cluster, and its change is held or denied.
func (c *Change) awaited() bool {
	known := slices.ContainsFunc(c.Fields, func(f Field) bool { return f.Recorded != nil })
	return c.Live == nil && (known || c.Op == OpCreate) && (c.State == StateHeld || c.State == StateDenied)
}

// waits shows the changes of git against the recorded object.
func (t *text) waits(c *Change) {
	t.header(cmp.Or(c.before(), t.against, "recorded"), c.Source.String())
	fields := slices.Clone(c.Fields)
	for i := range fields {
		fields[i].Live = fields[i].Recorded
	}
	for _, f := range inItems(byUrgency(fields)) {
		t.field(f)
	}
}

// byUrgency sorts fields: denied, held and kept fields first.
func byUrgency(fields []Field) []Field {
	rank := func(f Field) int {
		switch f.Action {
		case ActionDeny:
			return 0
		case ActionHold:
			return 1
		case ActionKeep:
			return 2
		default:
			return 3
		}
	}
	out := slices.Clone(fields)
	slices.SortStableFunc(out, func(a, b Field) int { return rank(a) - rank(b) })
	return out
}

// Approvable reports whether the change is held, and an approval in git would apply it.
func (c *Change) Approvable() bool {
	return c.State == StateHeld && c.Hash != "" && c.Rule != ruleRefused
}

// OtherComponent reports whether the object is left as it is because it has the label of another
// component.
func (c *Change) OtherComponent() bool { return c.State == StateHeld && c.Rule == ruleOtherComponent }

// additions shows the changes that the API server would make in addition to git's.
func (t *text) additions(list []Addition) {
	if len(list) == 0 {
		return
	}
	t.line(ansiCyan, "@@ "+additionsOf(list)+" @@")
	for _, a := range list {
		t.line("", "  "+a.Path)
		if a.Live != nil {
			t.value("", "  -", a.Live)
		}
		if a.Predicted != nil {
			t.value("", "  +", a.Predicted)
		}
	}
}

// reason writes one line, and one for the fix if the object has not shown it.
func (t *text) reason(rule, because, fix string) {
	if rule != "" {
		because = "rule " + rule + ": " + because
	}
	t.line(ansiYellow, "! "+because)
	if fix != "" && !slices.Contains(t.fixes, fix) {
		t.fixes = append(t.fixes, fix)
		t.line(ansiYellow, "!   "+fix)
	}
}

func (t *text) field(f Field) {
	hunk := "@@ " + f.Path + " @@ " + f.Action.String()
	t.line(ansiCyan, hunk)
	if f.Because != "" {
		t.reason(f.Rule, f.Because, f.Fix)
	}
	switch f.Action {
	case ActionKeep, ActionRelease, ActionAdopt:
		if f.Live != nil {
			t.value("", " ", f.Live)
		}
	case ActionSet, ActionRestore, ActionRemove, ActionHold, ActionDeny:
		t.difference(f.Live, f.Target)
	}
}

// difference shows an old and a new value, each nil if absent. If both have several lines, it shows
// only the lines that differ, with some context.
func (t *text) difference(before, after any) {
	a, b := linesOf(before, after), linesOf(after, before)
	oneLine := func(s string) bool { return !strings.Contains(strings.TrimSuffix(s, "\n"), "\n") }
	if a == b || oneLine(a) || oneLine(b) {
		t.lines(ansiRed, "-", a)
		t.lines(ansiGreen, "+", b)
		return
	}
	hunks := false
	for line := range strings.Lines(string(diff.Diff("", []byte(a), "", []byte(b)))) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "@@"):
			hunks = true
			if !strings.HasPrefix(line, "@@ -1,") { // a hunk at the first line needs no position
				t.line(ansiCyan, line)
			}
		case !hunks: // the header, which names files
		case line[0] == '-':
			t.line(ansiRed, line)
		case line[0] == '+':
			t.line(ansiGreen, line)
		default:
			t.line("", line)
		}
	}
}

// linesOf returns a value as YAML. A string is returned as it is if both values have several lines.
func linesOf(v, other any) string {
	if v == nil {
		return ""
	}
	s, isText := v.(string)
	o, isToo := other.(string)
	if isText && isToo && strings.Contains(s, "\n") && strings.Contains(o, "\n") {
		return s
	}
	data, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Sprintln(v)
	}
	return string(data)
}

// value writes a value as YAML, each line after a mark.
func (t *text) value(color, mark string, v any) { t.lines(color, mark, linesOf(v, nil)) }

func (t *text) lines(color, mark, text string) {
	for line := range strings.Lines(text) {
		t.line(color, mark+strings.TrimSuffix(line, "\n"))
	}
}

// printable replaces control characters and those that change the direction of text. Text from a
// cluster must not control the reader's terminal, and must not forge a line.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && !unicode.IsGraphic(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
