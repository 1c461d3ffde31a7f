package redact

import (
	"fmt"
	"io"
)

// Mask returns a JSON value with *** in place of the hidden values. Use it before encoding: a
// number that is hidden in the text of a JSON document would break the document. It does not modify
// the value.
func (r *Redactor) Mask(value any) any {
	if r == nil {
		return value
	}
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, child := range v {
			out[r.Text(key)] = r.Mask(child)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, child := range v {
			out[i] = r.Mask(child)
		}
		return out
	}
	if text := Leaf(value); text != "" {
		if hidden := r.Text(text); hidden != text {
			return hidden
		}
	}
	return value
}

// Writer returns a writer that passes redacted text to another one. Each write is searched as a
// whole, so a value must not be split over writes. Logs and Keelson's commands write lines and
// whole texts.
func (r *Redactor) Writer(to io.Writer) io.Writer { return &Writer{To: to, redactor: r} }

// Writer is what [Redactor.Writer] returns.
type Writer struct {
	To       io.Writer
	redactor *Redactor
}

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.To, w.redactor.Text(string(p))); err != nil {
		return 0, fmt.Errorf("write: %w", err)
	}
	return len(p), nil
}
