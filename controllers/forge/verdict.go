package forge

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/keelson-io/keelson/controllers/preview"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer/redact"
)

const (
	// marker finds the comment again. It is not seen.
	marker = "<!-- keelson: preview -->"
	// commentSize is what a comment may have: GitHub's limit, in characters, taken for
	// bytes.
	commentSize = 64 << 10
)

// verdict is what is said of a change.
type verdict struct {
	status Status
	text   string // of the comment
	// changes: something does, or is wrong. Else a comment would say nothing that the
	// status does not.
	changes bool
	// redactor hides the values of the change's own Secrets; nil: there are none.
	redactor *redact.Redactor
}

// judge says what a preview means for the merge. What is held does not stand in its
// way: nothing of it is applied before somebody approves it in git. What is denied
// would make deliveries fail.
func judge(p *preview.Preview) verdict {
	held, denied, unknown := 0, 0, 0
	for i := range p.Groups {
		g := &p.Groups[i]
		for j := range g.Plan.Changes {
			switch g.Plan.Changes[j].State {
			case differ.StateHeld:
				held += len(g.Clusters)
			case differ.StateDenied:
				denied += len(g.Clusters)
			case differ.StateSynced, differ.StateChanged:
			}
		}
		if g.Unknown != "" {
			unknown++
		}
	}
	mistakes := 0
	for _, one := range p.Problems {
		if !one.Before {
			mistakes++
		}
	}
	v := verdict{text: p.Markdown(), changes: p.Changes() || len(p.Problems)+len(p.Left)+len(p.Joined)+len(p.Gone) > 0}
	var parts []string
	for _, c := range []struct {
		n         int
		one, many string
	}{
		{mistakes, "mistake", "mistakes"},
		{denied, "object denied", "objects denied"},
		{held, "object held", "objects held"},
		{unknown, "group not known", "groups not known"},
	} {
		switch c.n {
		case 0:
		case 1:
			parts = append(parts, "1 "+c.one)
		default:
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.many))
		}
	}
	v.status.State = Success
	if mistakes+denied > 0 {
		v.status.State = Failure
	}
	v.status.Description = oneLine(strings.Join(append(parts, p.Summary()), "; "))
	return v
}

// failed is the verdict where there is no preview.
func failed(state State, what, why string) verdict {
	return verdict{
		status: Status{state, oneLine(what)}, changes: true,
		text: "**" + what + "**\n\n- " + differ.MarkdownCode(cut(why, 2000)) + "\n",
	}
}

// oneLine makes a text fit for a description.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return cut(s, descriptionSize)
}

// cut shortens a text to some characters.
func cut(s string, size int) string {
	if utf8.RuneCountInString(s) <= size {
		return s
	}
	return string([]rune(s)[:size-1]) + "…"
}

// between marks a comment with what it is about, so that a process that begins knows
// what is done.
func between(base, head, version string) string {
	return fmt.Sprintf("<!-- %s..%s by %s -->", base, head, strings.ReplaceAll(version, "--", "-"))
}

// body of a comment.
func body(v verdict, about string) string {
	text := marker + "\n" + about + "\n\n" + v.text
	if len(text) > commentSize { // it promises to fit; a forge would refuse it
		text = marker + "\n" + about + "\n\n**" + v.status.Description + "**\n\nThe preview is too long for a comment: see it with `keelson preview`.\n"
	}
	return text
}

// same reports whether a forge has a comment as it was written: some change the ends of
// lines, or of the whole.
func same(has, want string) bool {
	plain := func(s string) string { return strings.TrimSpace(strings.ReplaceAll(s, "\r\n", "\n")) }
	return plain(has) == plain(want)
}
