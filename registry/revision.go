package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/objectcache"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// revisionFiles reads the files of one revision of a fleet, and decodes equal files once.
type revisionFiles struct {
	tree  gitrepo.Tree
	cache *objectcache.Cache // of this and of earlier Loads
	// unreadable: something could not be read, and a later Load may succeed.
	unreadable bool
}

// readEntry reads and decodes one file, or finds it in the cache. If the file is nil, the problem
// says why it can't be read. The error is only that of ctx.
func readEntry[T any](ctx context.Context, r *revisionFiles, e gitrepo.Entry, kind string, decode func([]byte) *T) (*T, yamlfile.Problem, error) {
	problem := yamlfile.Problem{At: yamlfile.Position{File: e.Path}}
	if e.Kind != gitrepo.EntryFile {
		problem.Message = fmt.Sprintf("this is %s, not a file", e.Kind)
		return nil, problem, nil
	}
	f, err := objectcache.Get(r.cache, objectcache.Key{Job: kind, Hash: e.Hash}, func() (*T, error) {
		data, err := r.tree.Read(ctx, e, maxFleetFile)
		if err != nil {
			return nil, err
		}
		return decode(data), nil
	})
	if err == nil {
		return f, yamlfile.Problem{}, nil
	}
	if errors.Is(err, gitrepo.ErrTooLarge) {
		problem.Message = fmt.Sprintf("the file is larger than %d MiB", maxFleetFile>>20)
	} else {
		r.unreadable = true
		problem.Message = "can't be read: " + err.Error()
	}
	return nil, problem, ctx.Err()
}

// isNote reports whether a file is for people, not for Keelson.
func isNote(e gitrepo.Entry) bool {
	return strings.HasPrefix(e.Name, ".") || e.Kind == gitrepo.EntryFile && strings.HasSuffix(e.Name, ".md")
}

// isYAML reports whether a file name has the ending that Keelson reads. isYML reports whether it
// has another spelling of this ending.
func isYAML(name string) bool { return strings.HasSuffix(name, ".yaml") }

func isYML(name string) bool {
	lower := strings.ToLower(name)
	return !isYAML(name) && (strings.HasSuffix(lower, ".yml") || strings.HasSuffix(lower, ".yaml"))
}

// renameYML returns the problem of a file with an ending like .yml.
func renameYML(e gitrepo.Entry) yamlfile.Problem {
	stem := e.Name[:strings.LastIndex(e.Name, ".")]
	return yamlfile.Problem{
		At:      yamlfile.Position{File: e.Path},
		Message: "files must be called .yaml, so that none is overlooked",
		Hint:    "rename it to " + stem + ".yaml",
	}
}

// tooMuch returns which limit a folder at the top exceeds; "" for none.
func (r *revisionFiles) tooMuch(ctx context.Context, folder string, entries []gitrepo.Entry) (string, error) {
	var holds holding
	for _, e := range entries {
		if e.Kind != gitrepo.EntryFile || !isYAML(e.Name) {
			continue
		}
		if holds.files++; holds.files > maxTopFiles {
			return fmt.Sprintf("%s/ holds more than %d files", folder, maxTopFiles), nil
		}
		size, err := r.tree.Size(ctx, e)
		if err != nil {
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			continue // topFolder.read reports it
		}
		if size <= maxFleetFile { // larger files are not read
			holds.bytes += size
		}
	}
	if holds.bytes > maxTopBytes {
		return fmt.Sprintf("the files in %s/ are larger than %d MiB in all", folder, maxTopBytes>>20), nil
	}
	return "", nil
}
