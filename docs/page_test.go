package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"
)

// page is what a reader of a page does, in its order.
type page struct {
	name string
	// cluster is the name of the cluster that the page talks to; "" if it talks to none.
	cluster string
	// inClone is true for a page whose reader is in a clone of this repository, and not of a
	// fleet.
	inClone bool
	// needs is a program that a machine may lack; "" if the page needs none.
	needs  string
	blocks []block
}

// block is a fenced code block.
type block struct {
	line  int    // of the page, where the block begins
	kind  string // the word behind the fence
	lines []string
}

// These are the kinds of blocks:
//
//   - console has commands behind "$ ", each with the lines that it prints. The test runs
//     the commands, and looks for these lines in this order. "…" stands for any text, and
//     a line "…" for any lines. A command that ends with "# exit code 2" has to fail so.
//   - yaml is a file. Its first line is a comment with its path. "# in PATH" is a part of
//     the file: maps are merged, and what else the part has replaces what the file has.
//   - sh has commands that the test can't run, as they need a forge, or hours. The test
//     looks at their syntax, and at the arguments of keelson.
//   - text and json show something.
var kinds = map[string]bool{"console": true, "yaml": true, "sh": true, "text": true, "json": true}

// maxCommand is how many characters of a command a forge shows without scrolling. A reader
// who copies a command should see all of it.
const maxCommand = 105

// hasCommand returns true for a line of the block that a reader types.
func (b block) hasCommand(line string) bool {
	return b.kind == "sh" || b.kind == "console" && strings.HasPrefix(strings.TrimLeft(line, " "), "$ ")
}

// marker is a comment of a page to this test.
var marker = regexp.MustCompile(`^<!-- test: (.*) -->$`)

func readPage(name string) (page, error) {
	content, err := os.ReadFile(name) //nolint:gosec // a page of this repository
	if err != nil {
		return page{}, err
	}
	return parsePage(name, string(content))
}

func parsePage(name, content string) (page, error) {
	p := page{name: name}
	var open *block
	indent := ""
	for i, line := range strings.Split(content, "\n") {
		if open != nil && open.hasCommand(line) && utf8.RuneCountInString(line) > maxCommand {
			return page{}, fmt.Errorf("%s:%d: a command of more than %d characters: break it with \\", name, i+1, maxCommand)
		}
		fence, fenced := strings.CutPrefix(strings.TrimLeft(line, " "), "```")
		switch {
		case open != nil && fenced:
			p.blocks = append(p.blocks, *open)
			open = nil
		case open != nil:
			open.lines = append(open.lines, strings.TrimPrefix(line, indent))
		case fenced:
			indent = line[:strings.Index(line, "```")]
			open = &block{line: i + 1, kind: fence}
			if !kinds[fence] {
				return page{}, fmt.Errorf("%s:%d: unknown kind of block %q", name, i+1, fence)
			}
		default:
			m := marker.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			cluster, hasCluster := strings.CutPrefix(m[1], "cluster ")
			switch {
			case hasCluster:
				p.cluster = cluster
			case m[1] == "clone":
				p.inClone = true
			case strings.HasPrefix(m[1], "needs "):
				p.needs = strings.TrimPrefix(m[1], "needs ")
			default:
				return page{}, fmt.Errorf("%s:%d: unknown marker %q", name, i+1, m[1])
			}
		}
	}
	if open != nil {
		return page{}, fmt.Errorf("%s:%d: this block never ends", name, open.line)
	}
	return p, nil
}

// command is a command of a console block.
type command struct {
	line     int
	text     string
	exitCode string
	prints   []string
}

// wanted is the comment of a command that has to fail.
var wanted = regexp.MustCompile(`# exit code (\d+)$`)

// commands returns those of a console block.
func (b block) commands() ([]command, error) {
	var all []command
	for i := 0; i < len(b.lines); i++ {
		text, isCommand := strings.CutPrefix(b.lines[i], "$ ")
		if !isCommand {
			if len(all) == 0 {
				return nil, fmt.Errorf("line %d: the block begins without a command", b.line+1+i)
			}
			last := &all[len(all)-1]
			last.prints = append(last.prints, b.lines[i])
			continue
		}
		c := command{line: b.line + 1 + i, exitCode: "0"}
		for strings.HasSuffix(text, `\`) && i+1 < len(b.lines) {
			i++
			text += "\n" + b.lines[i]
		}
		c.text = text
		if m := wanted.FindStringSubmatch(text); m != nil {
			c.exitCode = m[1]
		}
		all = append(all, c)
	}
	return all, nil
}

// missing returns the first line that a command should have printed and did not.
func (c command) missing(output string) (line string, isMissing bool) {
	rest := strings.Split(output, "\n")
	for _, want := range c.prints {
		want = strings.TrimSpace(want)
		if want == "" || want == "…" {
			continue
		}
		parts := strings.Split(want, "…")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
		found := false
		for i, line := range rest {
			if pattern.MatchString(strings.TrimSpace(line)) {
				rest, found = rest[i+1:], true
				break
			}
		}
		if !found {
			return want, true
		}
	}
	return "", false
}
