package forge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/keelson-io/keelson/controllers/preview"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

const (
	// marker identifies the comment. It is hidden.
	marker = "<!-- keelson: preview -->"
	// commentSize bounds a comment, in bytes. It is GitHub's limit, which counts characters.
	commentSize = 64 << 10
)

// Verdict is the result for a change.
type Verdict struct {
	Status Status
	Text   string // of the comment
	// Changes means that something changes, or is wrong. Otherwise a comment would add nothing to
	// the status.
	Changes bool
	// Final means that every retry with the same commits would end in the same [Error].
	Final bool
	// Log is a message for the log of the controller: the change is not at fault.
	Log string
}

// Judge returns the verdict on a merge of head into base. compare returns the preview, and a
// redactor of the values of the Secrets that the two fleets render. The redactor must have no other
// secrets: an author could guess one, and the comment would confirm the guess. An error may be
// temporary.
func Judge(
	ctx context.Context, repo *registry.Repo, base, head string,
	compare func(ctx context.Context, base, head *registry.Fleet) (*preview.Preview, *redact.Redactor, error),
) (Verdict, error) {
	before, err := repo.LoadCommit(ctx, base)
	switch {
	case ctx.Err() != nil:
		return Verdict{}, context.Cause(ctx)
	case err != nil:
		v := failed(Error, "The branch to merge into can't be read, so what changes is not known", "the reason is in the log of the controller, and in its status")
		v.Log = fmt.Sprintf("the branch that a pull request is for can't be read at %s: %v", base, err)
		return v, nil
	}
	after, err := repo.LoadCommit(ctx, head)
	switch {
	case ctx.Err() != nil:
		return Verdict{}, context.Cause(ctx)
	case err != nil:
		return failed(Failure, "The fleet can't be read with this change", err.Error()), nil
	}
	p, redactor, err := compare(ctx, before, after)
	var v Verdict
	switch {
	case err == nil:
		v = judge(p)
	case tooMuch(err):
		v = failed(Error, "The change is too much to preview", err.Error())
		v.Final = true
	default:
		return Verdict{}, err
	}
	v.Text, v.Status.Description = redactor.Text(v.Text), redactor.Text(v.Status.Description)
	return v, nil
}

// tooMuch reports whether a change exceeds a bound, so that every retry fails.
func tooMuch(err error) bool {
	return errors.Is(err, ErrTooManySecrets) || errors.Is(err, preview.ErrTooMuch) || errors.Is(err, differ.ErrTooMuch) ||
		errors.Is(err, renderer.ErrTaskMemory)
}

// judge returns the verdict on a preview. Held changes don't block a merge: they wait for an
// approval in git. Denied changes block it: their deliveries would fail.
func judge(p *preview.Preview) Verdict {
	held, denied, warnings, unknown := p.CountState(differ.StateHeld), p.CountState(differ.StateDenied), p.Warnings(), 0
	for i := range p.Groups {
		if p.Groups[i].Unknown != "" {
			unknown++
		}
	}
	mistakes := 0
	for _, one := range p.Problems {
		if !one.Before {
			mistakes++
		}
	}
	v := Verdict{Text: p.Markdown(), Changes: p.Changes() || len(p.Problems)+len(p.Left)+len(p.Joined)+len(p.Gone) > 0}
	var parts []string
	for _, c := range []struct {
		n         int
		one, many string
	}{
		{mistakes, "mistake", "mistakes"},
		{denied, "object denied", "objects denied"},
		{held, "object held", "objects held"},
		{unknown, "group not known", "groups not known"},
		{warnings, "warning", "warnings"},
	} {
		switch c.n {
		case 0:
		case 1:
			parts = append(parts, "1 "+c.one)
		default:
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.many))
		}
	}
	v.Status.State = Success
	if mistakes+denied > 0 {
		v.Status.State = Failure
	}
	v.Status.Description = oneLine(strings.Join(append(parts, p.Summary()), "; "))
	return v
}

// failed returns the verdict if there is no preview.
func failed(state State, what, why string) Verdict {
	return Verdict{
		Status: Status{state, oneLine(what)}, Changes: true,
		Text: "**" + what + "**\n\n- " + differ.MarkdownCode(cut(why, 2000)) + "\n",
	}
}

// oneLine makes a text fit for a status description.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return cut(s, descriptionSize)
}

// cut shortens a text to size characters.
func cut(s string, size int) string {
	if utf8.RuneCountInString(s) <= size {
		return s
	}
	return string([]rune(s)[:size-1]) + "…"
}

// between returns a hidden line with the commits and the version. A new process reads from it which
// previews exist.
func between(base, head, version string) string {
	return fmt.Sprintf("<!-- %s..%s by %s -->", base, head, strings.ReplaceAll(version, "--", "-"))
}

// body returns the text of a comment.
func body(v Verdict, about string) string {
	text := marker + "\n" + about + "\n\n" + v.Text
	if len(text) > commentSize { // unexpected: Markdown fits; a forge would refuse the text
		text = marker + "\n" + about + "\n\n**" + v.Status.Description + "**\n\nThe preview is too long for a comment: see it with `keelson preview`.\n"
	}
	return text
}

// same reports whether a forge has a comment as it was written. Some forges change line ends, or
// the end of the text.
func same(has, want string) bool {
	plain := func(s string) string { return strings.TrimSpace(strings.ReplaceAll(s, "\r\n", "\n")) }
	return plain(has) == plain(want)
}
