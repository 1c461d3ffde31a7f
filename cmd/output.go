package cmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"sigs.k8s.io/yaml"
)

// The formats of -o.
const (
	outputText  = "text"
	outputJSON  = "json"
	outputYAML  = "yaml"
	outputPatch = "patch"
	// outputMarkdown is for a comment on a pull request.
	outputMarkdown = "markdown"
)

// The values of --color.
const (
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

// encode writes a value to Out in the format of -o, which is not text.
func (a *app) encode(v any) error {
	var (
		data []byte
		err  error
	)
	if v, err = a.masked(v); err != nil {
		return err
	}
	if a.output == outputYAML {
		data, err = yaml.Marshal(v)
	} else {
		data, err = json.MarshalIndent(v, "", "  ")
		data = append(data, '\n')
	}
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	return a.write(data)
}

// show writes to Out: the text, or the value in another format of -o.
func (a *app) show(v any, text string) error {
	if a.output != outputText {
		return a.encode(v)
	}
	return a.write([]byte(text))
}

// masked returns the encoded form of v as a value, with *** for secrets.
func (a *app) masked(v any) (any, error) {
	if a.env.Redactor.Forms() == 0 {
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
	return a.env.Redactor.Mask(out), nil
}

func (a *app) write(data []byte) error {
	if _, err := a.env.Out.Write(data); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// warn prints a message on Err that does not stop the command.
func (a *app) warn(format string, args ...any) {
	fmt.Fprintln(a.env.Err, "keelson: "+clean(fmt.Sprintf(format, args...)))
}

// colored reports whether output to w is colored.
func (a *app) colored(w io.Writer) painter {
	switch a.color {
	case colorAlways:
		return true
	case colorNever:
		return false
	}
	return painter(os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && a.env.Columns(w) > 0)
}

// painter colors text if it is true.
type painter bool

type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	struck style = "2;9"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
)

func (p painter) paint(s style, text string) string {
	if !p || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// clean replaces control characters, except line breaks and tabs: text from a cluster or repository
// must not control the reader's terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// oneLine returns clean text without line breaks.
func oneLine(s string) string {
	return clean(strings.Join(strings.Fields(s), " "))
}

// plural returns, for example, "1 delivery" or "2 deliveries".
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
