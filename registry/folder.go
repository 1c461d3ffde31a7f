package registry

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
)

// topFolder is one of the folders at the top, of which each file says one thing.
type topFolder[F decoded] struct {
	name, kind string
	decode     func([]byte) *F
	// strict: whoever wrote a file that is no .yaml, and no note, believes that it is read.
	// Elsewhere it may lie beside the others for one of them to name.
	strict bool
}

// decoded is what is kept of a file.
type decoded interface{ in(path string) Problems }

// topFile is what stands right below a folder at the top, or may have been meant to.
type topFile[F decoded] struct {
	entry
	stem    string // its name without the ending
	content *F     // nil: it can't be known; the problems say why
	// problems are all that is wrong with the file itself.
	problems Problems
}

// read reads a folder without its notes. Where that is too much, nothing is read, and a
// problem says so.
func (t topFolder[F]) read(ctx context.Context, l *loader) (files []topFile[F], unread Problems, err error) {
	entries, err := l.tree.list(ctx, t.name)
	if err != nil {
		return nil, nil, err
	}
	if wrong, err := l.tooMuch(ctx, t.name, entries); wrong != "" || err != nil {
		return nil, Problems{{At: Position{File: t.name}, Message: wrong}}, err
	}
	for _, e := range entries {
		f := topFile[F]{entry: e, stem: strings.TrimSuffix(e.name, path.Ext(e.name))}
		problem := Problem{At: Position{File: e.path}}
		switch {
		case isYAML(e.name):
			if f.content, problem, err = readEntry(ctx, l, e, t.kind, t.decode); err != nil {
				return nil, nil, err
			}
		case isNote(e):
			continue
		case isYML(e.name):
			problem = renameYML(e)
		case e.kind != entryFile:
			problem.Message = fmt.Sprintf("this is %s; %s are files right below %s/", e.kind, t.name, t.name)
		case t.strict:
			problem.Message, problem.Hint = fmt.Sprintf("a %s is a .yaml file", strings.ToLower(t.kind)), "notes are .md files"
		default:
			continue
		}
		if f.problems = (Problems{problem}); f.content != nil {
			f.problems = (*f.content).in(e.path)
		}
		files = append(files, f)
	}
	return files, nil, nil
}

// misnamed reports a file whose name is none for what it says.
func misnamed(at Position, name, what string) Problems {
	if wrong := checkName(name); wrong != "" {
		return Problems{{At: at, Message: wrong, Hint: "the file is named after its " + what}}
	}
	return nil
}

// noFile is the problem of a name that no file of a folder has.
func noFile(at Position, what, name string, names []string) Problem {
	return Problem{
		At: at, Message: fmt.Sprintf("there is no %s %q: %ss/%s.yaml does not exist", what, name, what, name), Hint: Suggest(name, names),
	}
}

// templates are files that another one names by their paths.
type templates[F decoded] struct {
	kind   string
	decode func([]byte) *F
	refs   []templateRef
}

// read returns them by their paths, and a key that is another one when one of them is.
// What is wrong with one stands there, or where the file with the given path names it.
func (t templates[F]) read(ctx context.Context, l *loader, from string) (files map[string]*F, key string, wrong Problems, err error) {
	files, key = map[string]*F{}, from
	for _, ref := range t.refs {
		if _, done := files[ref.path]; done { // two may name one file
			continue
		}
		problem := Problem{At: ref.at.in(from, "")}
		entries, err := l.tree.list(ctx, strings.TrimSuffix(path.Dir(ref.path), "."))
		i := slices.IndexFunc(entries, func(e entry) bool { return e.path == ref.path })
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, "", nil, ctx.Err()
		case err != nil:
			problem.Message = fmt.Sprintf("%s can't be read: %v", ref.path, err)
		case i < 0:
			problem.Message, problem.Hint = "there is no file "+ref.path, "give the path from the root of the repository"
		default:
			var f *F
			if f, problem, err = readEntry(ctx, l, entries[i], t.kind, t.decode); err != nil {
				return nil, "", nil, err
			}
			files[ref.path] = f
			if f != nil {
				wrong = append(wrong, (*f).in(ref.path)...)
				key += "\n" + ref.path + " " + entries[i].hash
				continue
			}
		}
		wrong = append(wrong, problem)
	}
	return files, key, wrong, nil
}
