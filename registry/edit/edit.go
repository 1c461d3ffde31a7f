// Package edit changes single lines of a fleet repository's files, and keeps every other byte:
// comments, order, quotes, line ends.
//
// It takes and returns the content of files. Each edit is read back and compared with the intended
// change. An edit that fails this check is an error.
package edit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// file is a YAML file that is one block mapping.
type file struct {
	data  []byte
	lines []string // with their line ends
	root  *yaml.Node
}

func parse(data []byte) (*file, error) {
	if err := lineEnds(data); err != nil {
		return nil, err
	}
	var doc yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("it is not YAML: %w", err)
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("it holds more than one document: change it by hand")
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, errors.New("it is empty")
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode || root.Style&yaml.FlowStyle != 0 || root.Column != 1 {
		return nil, errors.New("it is not written as one key a line: change it by hand")
	}
	f := &file{data: data, lines: strings.SplitAfter(string(data), "\n"), root: root}
	if last := len(f.lines) - 1; f.lines[last] == "" {
		f.lines = f.lines[:last]
	}
	if key, _ := f.find("sops"); key != nil {
		return nil, errors.New("it is encrypted by SOPS, which vouches for every value in it: change it with sops")
	}
	return f, nil
}

// lineEnds refuses line ends of YAML other than LF and CRLF, because [file] splits lines at LF
// only. The lines of the nodes would not match the lines of the file (YAML 1.1, section 5.4).
func lineEnds(data []byte) error {
	if !utf8.Valid(data) {
		return errors.New("it is not UTF-8: change it by hand")
	}
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	if at := strings.IndexAny(text, "\r\u0085\u2028\u2029"); at >= 0 {
		return fmt.Errorf("line %d: it has a line end that is neither LF nor CRLF: change it by hand", 1+strings.Count(text[:at], "\n"))
	}
	return nil
}

// find returns the nodes of a top-level key, or nil if the key is missing.
func (f *file) find(name string) (key, value *yaml.Node) {
	for i := 0; i+1 < len(f.root.Content); i += 2 {
		if f.root.Content[i].Value == name {
			return f.root.Content[i], f.root.Content[i+1]
		}
	}
	return nil, nil
}

// end returns the line, from 0, after the value of a top-level key: the line of the next key or of
// the comments before it, or the end of the file.
func (f *file) end(name string) int {
	for i := 0; i+2 < len(f.root.Content); i += 2 {
		if f.root.Content[i].Value != name {
			continue
		}
		at := f.root.Content[i+2].Line - 1
		for at > f.root.Content[i].Line {
			before := f.lines[at-1]
			if text := strings.TrimSpace(before); text != "" && !strings.HasPrefix(before, "#") {
				break
			}
			at--
		}
		return at
	}
	at := len(f.lines)
	for at > 1 && strings.TrimSpace(f.lines[at-1]) == "" {
		at--
	}
	return at
}

// insert returns the content with lines inserted before line at.
func (f *file) insert(at int, lines ...string) []byte {
	newline := "\n"
	if len(f.lines) > 0 && strings.HasSuffix(f.lines[0], "\r\n") {
		newline = "\r\n"
	}
	text := strings.Join(lines, newline)
	if at == len(f.lines) && !strings.HasSuffix(f.lines[at-1], "\n") {
		text = newline + text // keep the missing line end
	} else {
		text += newline
	}
	return []byte(strings.Join(f.lines[:at], "") + text + strings.Join(f.lines[at:], ""))
}

// remove returns the content without line at.
func (f *file) remove(at int) []byte {
	before, after := strings.Join(f.lines[:at], ""), strings.Join(f.lines[at+1:], "")
	if after == "" && !strings.HasSuffix(f.lines[at], "\n") {
		before = strings.TrimSuffix(strings.TrimSuffix(before, "\n"), "\r")
	}
	return []byte(before + after)
}

// check reads an edit back. The key must have the value want, and all other keys must be unchanged.
func (f *file) check(edited []byte, key string, want any) error {
	before, after := map[string]any{}, map[string]any{}
	if err := f.root.Decode(&before); err != nil {
		return fmt.Errorf("it can't be read: %w", err)
	}
	if err := yaml.Unmarshal(edited, &after); err != nil {
		return fmt.Errorf("it would not be YAML any more; change it by hand: %w", err)
	}
	got := after[key]
	delete(before, key)
	delete(after, key)
	if !reflect.DeepEqual(before, after) || !reflect.DeepEqual(got, want) {
		return errors.New("more than that would change: change it by hand")
	}
	return nil
}

// Paused sets or removes "paused: true" in a cluster.yaml or meta-config file. The reason becomes a
// comment on the line; it may be empty. If nothing has to change, the same content is returned.
func Paused(data []byte, paused bool, because string) ([]byte, error) {
	f, err := parse(data)
	if err != nil {
		return nil, err
	}
	kind, _ := f.find("kind")
	if kind == nil {
		return nil, errors.New("it has no kind")
	}
	key, value := f.find("paused")
	is := false
	if value != nil {
		if err := value.Decode(&is); err != nil || value.Line != key.Line {
			return nil, fmt.Errorf("line %d: paused is not true or false: change it by hand", key.Line)
		}
	}
	if is == paused {
		return data, nil
	}
	var edited []byte
	var want any
	switch {
	case !paused:
		edited = f.remove(key.Line - 1)
	case key != nil: // paused: false
		f.lines[key.Line-1] = pausedLine(because) + lineEnd(f.lines[key.Line-1])
		edited, want = []byte(strings.Join(f.lines, "")), true
	default:
		edited, want = f.insert(kind.Line, pausedLine(because)), true
	}
	return edited, f.check(edited, "paused", want)
}

func pausedLine(because string) string {
	if because = comment(because); because != "" {
		return "paused: true # " + because
	}
	return "paused: true"
}

func lineEnd(line string) string { return line[len(strings.TrimRight(line, "\r\n")):] }

// comment replaces characters that would end or damage a YAML comment on one line.
func comment(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) || r == '\uFEFF' || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

// Approve adds approvals to an approvals file; nil data stands for a new file. Approvals that the
// file has already are skipped. If none is left to add, the same content is returned.
func Approve(data []byte, add []v1alpha1.Approval) ([]byte, error) {
	if data == nil {
		data = []byte("apiVersion: " + v1alpha1.GroupVersion.String() + "\nkind: " + v1alpha1.KindApprovals + "\napprovals:\n")
	}
	f, err := parse(data)
	if err != nil {
		return nil, err
	}
	var before []v1alpha1.Approval
	key, list := f.find("approvals")
	if key == nil {
		return nil, errors.New("it has no list of approvals")
	}
	if before, err = approvals(data); err != nil {
		return nil, err
	}
	want := before
	indent := ""
	if list.Kind == yaml.SequenceNode && len(list.Content) > 0 {
		if list.Style&yaml.FlowStyle != 0 {
			return nil, fmt.Errorf("line %d: the approvals are not written one a line: change it by hand", list.Line)
		}
		indent = strings.Repeat(" ", list.Column-1)
	}
	var lines []string
	for _, a := range add {
		if !contains(want, a) {
			want = append(slices.Clip(want), a)
			lines = append(lines, indent+approvalLine(a))
		}
	}
	if len(lines) == 0 {
		return data, nil
	}
	if list.Kind == yaml.SequenceNode && len(list.Content) == 0 { // approvals: []
		line := f.lines[key.Line-1]
		f.lines[key.Line-1] = "approvals:" + lineEnd(line)
	}
	edited := f.insert(f.end("approvals"), lines...)
	after, err := approvals(edited)
	if err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(after, want) {
		return nil, errors.New("more than that would change: change it by hand")
	}
	return edited, f.check(edited, "approvals", valueOf(edited, "approvals"))
}

func valueOf(data []byte, key string) any {
	all := map[string]any{}
	if err := yaml.Unmarshal(data, &all); err != nil {
		return nil // check reports it
	}
	return all[key]
}

func contains(list []v1alpha1.Approval, a v1alpha1.Approval) bool {
	for _, b := range list {
		if b.Cluster == a.Cluster && b.ClusterSelector == nil && b.Component == a.Component && b.Object == a.Object && b.Hash == a.Hash {
			return true
		}
	}
	return false
}
