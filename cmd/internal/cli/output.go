package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"sigs.k8s.io/yaml"
)

// Formats of -o.
const (
	FormatText  = "text"
	FormatJSON  = "json"
	FormatYAML  = "yaml"
	FormatPatch = "patch"
	// FormatMarkdown is for a comment on a pull request.
	FormatMarkdown = "markdown"
)

// The values of --color.
const (
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

// CheckFormat checks -o of a command that prints text, JSON and YAML, and the given formats.
func (inv *Invocation) CheckFormat(more ...string) error {
	return OneOf("-o", inv.Output, append([]string{FormatText, FormatJSON, FormatYAML}, more...)...)
}

// Encode writes a value to Out in the format of -o, which is not text.
func (inv *Invocation) Encode(v any) error {
	var (
		data []byte
		err  error
	)
	if v, err = inv.Masked(v); err != nil {
		return err
	}
	if inv.Output == FormatYAML {
		data, err = yaml.Marshal(v)
	} else {
		data, err = json.MarshalIndent(v, "", "  ")
		data = append(data, '\n')
	}
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	return inv.Write(data)
}

// Show writes to Out: the text, or the value in another format of -o.
func (inv *Invocation) Show(v any, text string) error {
	if inv.Output != FormatText {
		return inv.Encode(v)
	}
	return inv.Write([]byte(text))
}

// Masked returns the encoded form of v as a value, with *** for secrets.
func (inv *Invocation) Masked(v any) (any, error) {
	if inv.Env.Redactor.Forms() == 0 {
		return v, nil
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the output: %w", err)
	}
	var out any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // keeps numbers as written
	if err := decoder.Decode(&out); err != nil {
		return nil, fmt.Errorf("encode the output: %w", err)
	}
	return inv.Env.Redactor.Mask(out), nil
}

// Write writes data to Out.
func (inv *Invocation) Write(data []byte) error {
	if _, err := inv.Env.Out.Write(data); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// Warn prints a message on Err that does not stop the command.
func (inv *Invocation) Warn(format string, args ...any) {
	fmt.Fprintln(inv.Env.Err, "keelson: "+Clean(fmt.Sprintf(format, args...)))
}

// Painter returns a painter for output to w: it colors if --color and the terminal say so.
func (inv *Invocation) Painter(w io.Writer) Painter {
	switch inv.color {
	case colorAlways:
		return true
	case colorNever:
		return false
	}
	return Painter(os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && inv.Env.Columns(w) > 0)
}

// Painter colors text if it is true.
type Painter bool

// Style is the look of text in a terminal: the parameters of an escape sequence.
type Style string

// Styles of text.
const (
	Plain  Style = ""
	Bold   Style = "1"
	Dim    Style = "2"
	Struck Style = "2;9"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
	Cyan   Style = "36"
)

// Paint returns text in a style, or unchanged without color.
func (p Painter) Paint(s Style, text string) string {
	if !p || s == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// Clean replaces control characters, except line breaks and tabs: text from a cluster or repository
// must not control the reader's terminal.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// OneLine returns clean text without line breaks.
func OneLine(s string) string {
	return Clean(strings.Join(strings.Fields(s), " "))
}

// Plural returns, for example, "1 delivery" or "2 deliveries".
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Few names up to 5 of the names.
func Few(names []string) string {
	const few = 5
	if len(names) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	}
	return strings.Join(names, ", ")
}

// OutcomeStyle returns green for a good outcome, otherwise red.
func OutcomeStyle(good bool) Style {
	if good {
		return Green
	}
	return Red
}

// WarnAll prints each warning once.
func (inv *Invocation) WarnAll(warnings map[string]bool) {
	list := make([]string, 0, len(warnings))
	for w := range warnings {
		list = append(list, w)
	}
	slices.Sort(list)
	for _, w := range list {
		inv.Warn("warning: %s", w)
	}
}
