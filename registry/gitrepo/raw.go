package gitrepo

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
)

// The signature covers the bytes of a commit or tag as git stored them. The functions below read
// the used fields from the same bytes. If another parser read them differently from the signer's
// git, a signature would cover other content.

// commitObject holds the fields of a commit that Keelson uses.
type commitObject struct {
	tree      plumbing.Hash
	parents   []plumbing.Hash
	committed time.Time
}

// tagObject holds the fields of an annotated tag that Keelson uses.
type tagObject struct {
	target plumbing.Hash
	name   string
	tagged time.Time // zero: the tag has no tagger, which git allows
}

// header splits "KEY VALUE\n" from the front of raw.
func header(raw []byte, key string) (value string, rest []byte, ok bool) {
	line, rest, found := bytes.Cut(raw, []byte("\n"))
	value, ok = strings.CutPrefix(string(line), key+" ")
	if !found || !ok {
		return "", raw, false
	}
	return value, rest, true
}

// hashHeader splits "KEY HASH\n" from the front of raw.
func hashHeader(raw []byte, key string) (h plumbing.Hash, rest []byte, ok bool) {
	value, rest, ok := header(raw, key)
	if !ok || !isHash(value) {
		return plumbing.ZeroHash, raw, false
	}
	return plumbing.NewHash(value), rest, true
}

// isHash reports whether s is a SHA-1 as git writes it.
func isHash(s string) bool {
	return len(s) == 40 && strings.Trim(s, "0123456789abcdef") == ""
}

// parseCommit parses a commit like git: tree, parents, author and committer, only in this order.
func parseCommit(raw []byte) (commitObject, error) {
	var c commitObject
	tree, rest, ok := hashHeader(raw, "tree")
	if !ok {
		return c, errors.New("it does not start with its tree")
	}
	c.tree = tree
	for {
		parent, after, ok := hashHeader(rest, "parent")
		if !ok {
			break
		}
		c.parents, rest = append(c.parents, parent), after
	}
	if _, rest, ok = header(rest, "author"); !ok {
		return c, errors.New("it names no author behind its tree and parents")
	}
	committer, rest, ok := header(rest, "committer")
	if !ok {
		return c, errors.New("it names no committer behind its author")
	}
	if err := onceOnly(rest, "tree", "parent", "author", "committer"); err != nil {
		return c, err
	}
	var err error
	c.committed, err = personTime(committer)
	return c, err
}

// parseTag parses an annotated tag like git.
func parseTag(raw []byte) (tagObject, error) {
	var t tagObject
	target, rest, ok := hashHeader(raw, "object")
	if !ok {
		return t, errors.New("it does not start with its object")
	}
	t.target = target
	if _, rest, ok = header(rest, "type"); !ok {
		return t, errors.New("it does not say the type of its object")
	}
	if t.name, rest, ok = header(rest, "tag"); !ok {
		return t, errors.New("it does not say its name")
	}
	tagger, rest, ok := header(rest, "tagger")
	if err := onceOnly(rest, "object", "type", "tag", "tagger"); err != nil || !ok {
		return t, err
	}
	var err error
	t.tagged, err = personTime(tagger)
	return t, err
}

// onceOnly refuses repeated headers, because readers differ in which of them they use.
func onceOnly(rest []byte, keys ...string) error {
	for line := range headerLines(rest) {
		for _, key := range keys {
			if bytes.HasPrefix(line, []byte(key+" ")) {
				return fmt.Errorf("it has the header %q where it does not belong", key)
			}
		}
	}
	return nil
}

// headerLines yields the lines, with their ends, before the empty line in front of the message.
func headerLines(raw []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for line := range bytes.Lines(raw) {
			if len(line) == 1 && line[0] == '\n' || !yield(line) {
				return
			}
		}
	}
}

// personTime parses the time after NAME <EMAIL>: SECONDS ZONE.
func personTime(person string) (time.Time, error) {
	fields := strings.Fields(person[strings.LastIndex(person, ">")+1:])
	if len(fields) == 0 {
		return time.Time{}, errors.New("it does not say when it was made")
	}
	const year10000 = 253402300800
	seconds, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || seconds < 0 || seconds >= year10000 {
		return time.Time{}, fmt.Errorf("it was made at %q, which is no time", fields[0])
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// errUnsigned is the error for an object without a signature.
var errUnsigned = errors.New("it is not signed")

// cutCommit removes the signature from a commit; the rest is the signed payload. git removes every
// header that begins with gpgsig. Here such a header is refused unless it is the only signature,
// because no signature covers it.
func cutCommit(raw []byte) (payload, signature []byte, err error) {
	inside := false // in the signature, whose further lines start with a space
	end := 0
	for line := range headerLines(raw) {
		end += len(line)
		rest, first := bytes.CutPrefix(line, []byte("gpgsig "))
		switch {
		case inside && line[0] == ' ':
			signature = append(signature, line[1:]...)
		case first && signature == nil:
			inside = true
			signature = append(signature, rest...)
		case first:
			return nil, nil, errors.New("it carries more than one signature")
		case bytes.HasPrefix(line, []byte("gpgsig")):
			return nil, nil, fmt.Errorf("it has a header %.20q that no signature covers", bytes.TrimRight(line, "\n"))
		default:
			inside = false
			payload = append(payload, line...)
		}
	}
	if signature == nil {
		return nil, nil, errUnsigned
	}
	return append(payload, raw[end:]...), signature, nil
}

// markers are the lines with which git starts a signature in the message of a tag.
var markers = [...]string{ //nolint:gochecknoglobals // a constant
	pgpSignature, "-----BEGIN PGP MESSAGE-----", sshSignature, "-----BEGIN SIGNED MESSAGE-----",
}

const (
	pgpSignature = "-----BEGIN PGP SIGNATURE-----"
	sshSignature = "-----BEGIN SSH SIGNATURE-----"
)

// cutTag removes the signature from the end of a tag's message.
func cutTag(raw []byte) (payload, signature []byte, err error) {
	for line := range headerLines(raw) {
		if bytes.HasPrefix(line, []byte("gpgsig")) {
			return nil, nil, fmt.Errorf("it has a header %.20q that no signature covers", bytes.TrimRight(line, "\n"))
		}
	}
	cut, offset := -1, 0
	for line := range bytes.Lines(raw) {
		for _, marker := range markers {
			switch {
			case !bytes.HasPrefix(line, []byte(marker)):
			case cut >= 0:
				return nil, nil, errors.New("it carries more than one signature")
			default:
				cut = offset
			}
		}
		offset += len(line)
	}
	if cut < 0 {
		return nil, nil, errUnsigned
	}
	return raw[:cut:cut], raw[cut:], nil
}
