package registry

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// topFolder is a folder at the top of the repository, with files of one kind.
type topFolder[F decoded] struct {
	name, kind string
	decode     func([]byte) *F
	// strict: a file that is neither .yaml nor a note is a problem, because its author expects
	// Keelson to read it. Without strict, such a file is ignored.
	strict bool
}

// decoded is the decoded content of a file.
type decoded interface {
	In(path string) yamlfile.Problems
}

// topFile is a file right below a folder at the top, or an entry that may be meant as a file.
type topFile[F decoded] struct {
	gitrepo.Entry
	stem    string // its name without the ending
	content *F     // nil: the content is unknown; the problems say why
	// problems are all mistakes in the file itself.
	problems yamlfile.Problems
}

// read reads the files of a folder, except notes. If the folder exceeds its limits, nothing is
// read, and unread reports it.
func (t topFolder[F]) read(ctx context.Context, r *revisionFiles) (files []topFile[F], unread yamlfile.Problems, err error) {
	entries, err := r.tree.List(ctx, t.name)
	if err != nil {
		return nil, nil, err
	}
	if wrong, err := r.tooMuch(ctx, t.name, entries); wrong != "" || err != nil {
		return nil, yamlfile.Problems{{At: yamlfile.Position{File: t.name}, Message: wrong}}, err
	}
	for _, e := range entries {
		f := topFile[F]{Entry: e, stem: strings.TrimSuffix(e.Name, path.Ext(e.Name))}
		problem := yamlfile.Problem{At: yamlfile.Position{File: e.Path}}
		switch {
		case isYAML(e.Name):
			if f.content, problem, err = readEntry(ctx, r, e, t.kind, t.decode); err != nil {
				return nil, nil, err
			}
		case isNote(e):
			continue
		case isYML(e.Name):
			problem = renameYML(e)
		case e.Kind != gitrepo.EntryFile:
			problem.Message = fmt.Sprintf("this is %s; %s are files right below %s/", e.Kind, t.name, t.name)
		case t.strict:
			problem.Message, problem.Hint = fmt.Sprintf("a %s is a .yaml file", strings.ToLower(t.kind)), "notes are .md files"
		default:
			continue
		}
		if f.problems = (yamlfile.Problems{problem}); f.content != nil {
			f.problems = (*f.content).In(e.Path)
		}
		files = append(files, f)
	}
	return files, nil, nil
}

// misnamed reports a file with an invalid name.
func misnamed(at yamlfile.Position, name, what string) yamlfile.Problems {
	if wrong := naming.Check(name); wrong != "" {
		return yamlfile.Problems{{At: at, Message: wrong, Hint: "the file is named after its " + what}}
	}
	return nil
}

// noFile returns the problem of a reference to a missing file of a folder.
func noFile(at yamlfile.Position, what, name string, names []string) yamlfile.Problem {
	return yamlfile.Problem{
		At: at, Message: fmt.Sprintf("there is no %s %q: %ss/%s.yaml does not exist", what, name, what, name), Hint: naming.Suggest(name, names),
	}
}

// templates are files that another file names by their paths.
type templates[F decoded] struct {
	kind   string
	decode func([]byte) *F
	refs   []templateRef
}

// read returns the files by their paths, and a key that changes when a file changes. A mistake is
// reported in the file, or at the reference in the file from.
func (t templates[F]) read(ctx context.Context, r *revisionFiles, from string) (files map[string]*F, key string, wrong yamlfile.Problems, err error) {
	files, key = map[string]*F{}, from
	for _, ref := range t.refs {
		if _, done := files[ref.path]; done { // two references may name one file
			continue
		}
		problem := yamlfile.Problem{At: ref.at.In(from, "")}
		entries, err := r.tree.List(ctx, strings.TrimSuffix(path.Dir(ref.path), "."))
		i := slices.IndexFunc(entries, func(e gitrepo.Entry) bool { return e.Path == ref.path })
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, "", nil, ctx.Err()
		case err != nil:
			problem.Message = fmt.Sprintf("%s can't be read: %v", ref.path, err)
		case i < 0:
			problem.Message, problem.Hint = "there is no file "+ref.path, "give the path from the root of the repository"
		default:
			var f *F
			if f, problem, err = readEntry(ctx, r, entries[i], t.kind, t.decode); err != nil {
				return nil, "", nil, err
			}
			files[ref.path] = f
			if f != nil {
				wrong = append(wrong, (*f).In(ref.path)...)
				key += "\n" + ref.path + " " + entries[i].Hash
				continue
			}
		}
		wrong = append(wrong, problem)
	}
	return files, key, wrong, nil
}

// join joins a folder and a name; the folder "" is the root.
func join(folder, name string) string { return path.Join(folder, name) }
