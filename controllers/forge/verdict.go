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
	// marker finds the comment again. It is not seen.
	marker = "<!-- keelson: preview -->"
	// commentSize is what a comment may have: GitHub's limit, in characters, taken for
	// bytes.
	commentSize = 64 << 10
)

// Verdict is what is said of a change.
type Verdict struct {
	Status Status
	Text   string // of the comment
	// Changes: something does, or is wrong. Else a comment would say nothing that the
	// status does not.
	Changes bool
	// Final says of an [Error] that the same commits would end in it again, whenever they
	// are tried.
	Final bool
	// Log is for the log of the controller: what went wrong is not the change's fault.
	Log string
}

// Judge says what merging head into base would mean. The preview that compare makes comes
// with a redactor of the values of the Secrets that the two fleets render, and no other
// secrets: the author of a pull request could guess one, and the comment would confirm
// the guess. The error is one that may pass.
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

// tooMuch reports whether an error is a bound that the change oversteps, whenever it is tried.
func tooMuch(err error) bool {
	return errors.Is(err, ErrTooManySecrets) || errors.Is(err, preview.ErrTooMuch) || errors.Is(err, differ.ErrTooMuch) ||
		errors.Is(err, renderer.ErrTaskMemory)
}

// judge says what a preview means for the merge. What is held does not stand in its
// way: nothing of it is applied before somebody approves it in git. What is denied
// would make deliveries fail.
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

// failed is the verdict where there is no preview.
func failed(state State, what, why string) Verdict {
	return Verdict{
		Status: Status{state, oneLine(what)}, Changes: true,
		Text: "**" + what + "**\n\n- " + differ.MarkdownCode(cut(why, 2000)) + "\n",
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
func body(v Verdict, about string) string {
	text := marker + "\n" + about + "\n\n" + v.Text
	if len(text) > commentSize { // it promises to fit; a forge would refuse it
		text = marker + "\n" + about + "\n\n**" + v.Status.Description + "**\n\nThe preview is too long for a comment: see it with `keelson preview`.\n"
	}
	return text
}

// same reports whether a forge has a comment as it was written: some change the ends of
// lines, or of the whole.
func same(has, want string) bool {
	plain := func(s string) string { return strings.TrimSpace(strings.ReplaceAll(s, "\r\n", "\n")) }
	return plain(has) == plain(want)
}
