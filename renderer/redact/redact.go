// Package redact removes values that must not be seen from every text that leaves the process.
//
// A [Redactor] gets values from their owners. It finds a value as it is, a line of it, and a value
// broken over lines. It finds a value quoted for JSON, YAML, Go, HTML or a URL, in hexadecimal, and
// in base64, also with text before or after. It keeps hashes and no values: about 100 bytes for a
// form of any length. A text costs a table look-up a byte. It does not find a value that a program
// changed otherwise (reversed, hashed, compressed, cut).
package redact

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Redacted replaces a value.
const Redacted = "***"

const (
	// leastForm is the length in bytes of the shortest text that counts as secret. A text shorter
	// than wordForm counts only as a word of its own: otherwise "on" or "http" would hide every
	// message.
	leastForm = 4
	wordForm  = 8
	// leastBroken is the length without white space from which a form is searched across line
	// breaks.
	leastBroken = wordForm
)

// Redactor knows the values that must not be seen. The zero Redactor is not ready: use [New]. A nil
// *Redactor knows none. It is safe for concurrent use.
type Redactor struct {
	seed maphash.Seed

	mu     sync.RWMutex
	owners map[string]*owned
	forms  map[form]*known
	// long and short have the lengths of the forms by prefix, the longest first. A prefix has
	// wordForm bytes, and leastForm for the short forms.
	long, short map[uint64][]length
	lifted      bool
}

// form is a text by its hash and length.
type form struct {
	hash uint64
	n    int
}

type known struct {
	refs int
	of   string // the owner that added it first
}

type length struct{ n, refs int }

// owned holds the forms of one owner. The previous generation is kept, because an error that holds
// its values may still be reported.
type owned struct {
	generation       string
	current, earlier []prefixed
}

// prefixed is a form with the prefix under which it is looked up.
type prefixed struct {
	form
	prefix uint64
}

// New returns a Redactor that knows nothing.
func New() *Redactor {
	return &Redactor{
		seed: maphash.MakeSeed(), owners: map[string]*owned{}, forms: map[form]*known{},
		long: map[uint64][]length{}, short: map[uint64][]length{},
	}
}

// Set replaces what an owner hides. It calls values unless the owner has set the same generation
// before. The previous generation stays hidden until the next one. Nothing is kept for an owner
// that never hid anything.
func (r *Redactor) Set(owner, generation string, values func() []Value) {
	if r == nil {
		return
	}
	r.mu.RLock()
	o := r.owners[owner]
	same := o != nil && o.generation == generation
	r.mu.RUnlock()
	if same {
		return
	}
	next := r.prepare(values())
	r.mu.Lock()
	defer r.mu.Unlock()
	o = r.owners[owner]
	if o == nil && len(next) == 0 {
		return // most components have no secret
	}
	if o == nil {
		o = &owned{}
		r.owners[owner] = o
	}
	for _, f := range next {
		r.add(owner, f)
	}
	for _, f := range o.earlier {
		r.remove(f)
	}
	o.generation, o.current, o.earlier = generation, next, o.current
}

// Hide is [Redactor.Set] for values that never change, such as credentials.
func (r *Redactor) Hide(owner string, texts ...string) {
	r.Set(owner, strings.Join(texts, "\x00"), func() []Value {
		var out []Value
		for _, text := range texts {
			out = append(out, Certain(text))
		}
		return out
	})
}

// Forget drops the owners whose names begin with a prefix.
func (r *Redactor) Forget(prefix string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, o := range r.owners {
		if strings.HasPrefix(name, prefix) {
			for _, f := range slices.Concat(o.current, o.earlier) {
				r.remove(f)
			}
			delete(r.owners, name)
		}
	}
}

// Lift makes [Redactor.Text] show everything from now on, because the user asked for it.
func (r *Redactor) Lift() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lifted = true
}

// Forms returns how many texts are searched for.
func (r *Redactor) Forms() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.forms)
}

// Effort returns the most lengths that [Redactor.Text] tries at one place of a text.
func (r *Redactor) Effort() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	most := 0
	for _, table := range []map[uint64][]length{r.long, r.short} {
		for _, list := range table {
			most = max(most, len(list))
		}
	}
	return most
}

// prepare hashes the forms of values, each once.
func (r *Redactor) prepare(values []Value) []prefixed {
	seen := map[form]bool{}
	var out []prefixed
	for _, v := range values {
		for _, text := range v.forms() {
			if len(text) < leastForm || len(text) < v.least {
				continue
			}
			f := prefixed{form{maphash.String(r.seed, text), len(text)}, prefixOf(text)}
			if !seen[f.form] {
				seen[f.form] = true
				out = append(out, f)
			}
		}
	}
	return out
}

func prefixOf(text string) uint64 {
	if len(text) < wordForm {
		return shortPrefix(text)
	}
	return longPrefix(text)
}

func longPrefix(text string) uint64 { return binary.LittleEndian.Uint64([]byte(text[:wordForm])) }

func shortPrefix(text string) uint64 {
	return uint64(binary.LittleEndian.Uint32([]byte(text[:leastForm])))
}

func (r *Redactor) table(n int) map[uint64][]length {
	if n < wordForm {
		return r.short
	}
	return r.long
}

func (r *Redactor) add(owner string, f prefixed) {
	if k := r.forms[f.form]; k != nil {
		k.refs++
		return
	}
	r.forms[f.form] = &known{refs: 1, of: owner}
	table := r.table(f.n)
	list := table[f.prefix]
	i, found := slices.BinarySearchFunc(list, f.n, func(l length, n int) int { return n - l.n })
	if !found {
		list = slices.Insert(list, i, length{n: f.n})
	}
	list[i].refs++
	table[f.prefix] = list
}

func (r *Redactor) remove(f prefixed) {
	k := r.forms[f.form]
	if k.refs--; k.refs > 0 {
		return
	}
	delete(r.forms, f.form)
	table := r.table(f.n)
	list := table[f.prefix]
	i, _ := slices.BinarySearchFunc(list, f.n, func(l length, n int) int { return n - l.n })
	if list[i].refs--; list[i].refs == 0 {
		list = slices.Delete(list, i, i+1)
	}
	if table[f.prefix] = list; len(list) == 0 {
		delete(table, f.prefix)
	}
}

// Found is a value in a text.
type Found struct {
	Text  string
	Owner string // that added it first
}

// Find returns the values that a text shows, in their order.
func (r *Redactor) Find(text string) []Found {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []Found
	for _, s := range r.spans(text, leastForm) {
		part := text[s.from:s.to]
		out = append(out, Found{part, r.forms[form{maphash.String(r.seed, part), len(part)}].of})
	}
	return out
}

// Text returns a text with *** in place of every value.
func (r *Redactor) Text(text string) string {
	if r == nil {
		return text
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.lifted || len(r.forms) == 0 {
		return text
	}
	text = cut(text, r.spans(text, leastForm))
	if strings.Contains(text, "\n") {
		text = cut(text, r.broken(text))
	}
	return text
}

// span is a part of a text.
type span struct{ from, to int }

// spans returns the values in a text, in order; of several at one place, the longest.
func (r *Redactor) spans(text string, least int) []span {
	var out []span
	for i := 0; i+leastForm <= len(text); {
		if n := r.match(text, i); n >= least && n > 0 {
			out = append(out, span{i, i + n})
			i += n
			continue
		}
		i++
	}
	return out
}

// match returns the length of the longest value at a place; 0: none.
func (r *Redactor) match(text string, i int) int {
	rest := text[i:]
	if len(rest) >= wordForm {
		for _, l := range r.long[longPrefix(rest)] {
			if l.n <= len(rest) && r.forms[form{maphash.String(r.seed, rest[:l.n]), l.n}] != nil {
				return l.n
			}
		}
	}
	if len(r.short) == 0 {
		return 0
	}
	for _, l := range r.short[shortPrefix(rest)] {
		if l.n <= len(rest) && isWord(text, i, i+l.n) && r.forms[form{maphash.String(r.seed, rest[:l.n]), l.n}] != nil {
			return l.n
		}
	}
	return 0
}

// isWord reports whether no letter or digit next to a part continues it.
func isWord(text string, from, to int) bool {
	first, _ := utf8.DecodeRuneInString(text[from:])
	last, _ := utf8.DecodeLastRuneInString(text[:to])
	before, _ := utf8.DecodeLastRuneInString(text[:from])
	after, _ := utf8.DecodeRuneInString(text[to:])
	return (!inWord(before) || !inWord(first)) && (!inWord(last) || !inWord(after))
}

func inWord(r rune) bool {
	return r == '_' || r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r))
}

// broken returns the values in a text that white space breaks.
func (r *Redactor) broken(text string) []span {
	var b strings.Builder
	places := make([]int, 0, len(text)) // of the remaining bytes
	for i := range len(text) {
		if c := text[i]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			b.WriteByte(c)
			places = append(places, i)
		}
	}
	out := r.spans(b.String(), leastBroken)
	for i, s := range out {
		out[i] = span{places[s.from], places[s.to-1] + 1}
	}
	return out
}

// cut replaces parts of a text by ***.
func cut(text string, parts []span) string {
	if len(parts) == 0 {
		return text
	}
	var b strings.Builder
	at := 0
	for _, s := range parts {
		b.WriteString(text[at:s.from])
		b.WriteString(Redacted)
		at = s.to
	}
	b.WriteString(text[at:])
	return b.String()
}
