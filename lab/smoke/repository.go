package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/lab/gitserver"
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

const apiVersion = "apiVersion: keelson.io/v1alpha1\n"

// repository is the fleet repository: a bare repository, and a working clone that pushes to it.
type repository struct {
	harness.Clone

	bare    string
	address string // of the git server; empty: never started
	server  *gitserver.Server
}

// sources are the folders from which the fleet is copied, as described in its README.
type sources struct{ fleet, workloads string }

// publish publishes a fleet as one commit. Each component's version in Chart.yaml gets a tag.
func (r *repository) publish(ctx context.Context, from sources) {
	must.Do(os.MkdirAll(filepath.Dir(r.bare), 0o700))
	must.Do(harness.NewBare(ctx, r.bare))
	must.Get(harness.NewClone(ctx, r.bare, string(r.Clone)))
	for source, to := range map[string]string{from.fleet: string(r.Clone), from.workloads: r.Path("components/" + workloads)} {
		must.Do(os.CopyFS(to, os.DirFS(source)))
	}
	r.git(ctx, "checkout", "-q", "-b", "main")
	r.push(ctx, "the example fleet")
	for _, path := range must.Get(filepath.Glob(r.Path("components/*/template/Chart.yaml"))) {
		var chart struct{ Version string }
		must.Do(yaml.Unmarshal(must.Get(os.ReadFile(path)), &chart))
		r.tag(ctx, filepath.Base(filepath.Dir(filepath.Dir(path))), "v"+strings.TrimPrefix(chart.Version, "v"))
	}
}

// url returns where Keelson reads the repository: the git server, or before it was started, the
// folder.
func (r *repository) url() string {
	if r.address == "" {
		return r.bare
	}
	return "http://" + r.address + "/" + filepath.Base(r.bare)
}

// serve starts a git server, so that Keelson reads over HTTP, as from a forge. It has the same
// address each time.
func (r *repository) serve(ctx context.Context) {
	r.server = must.Get(gitserver.Start(ctx, filepath.Dir(r.bare), r.address))
	r.address = r.server.Address
}

// stop stops the git server, if it runs.
func (r *repository) stop() {
	if server := r.server; server != nil {
		r.server = nil
		must.Do(server.Stop())
	}
}

func (r *repository) git(ctx context.Context, args ...string) string {
	return must.Get(r.Git(ctx, args...))
}

// push commits everything and pushes it.
func (r *repository) push(ctx context.Context, message string) { must.Do(r.Push(ctx, message)) }

// tag publishes the last commit as a version of a component.
func (r *repository) tag(ctx context.Context, component, version string) {
	must.Do(r.Tag(ctx, component+"/"+version))
}

// release pushes the last changes of a component, and publishes them as a version.
func (r *repository) release(ctx context.Context, component, version string) {
	r.push(ctx, component+" "+version)
	r.tag(ctx, component, version)
}

// moveTag moves a published tag, which users must not do.
func (r *repository) moveTag(ctx context.Context, name, to string) {
	r.git(ctx, "tag", "-f", name, to)
	r.git(ctx, "push", "-q", "-f", "origin", name)
}

func (r *repository) write(name, content string) { must.Do(r.Write(name, content)) }

func (r *repository) remove(name string) { must.Do(os.Remove(r.Path(name))) }

func (r *repository) read(name string) []byte { return must.Get(os.ReadFile(r.Path(name))) }

// metaConfig edits the file of a component on a cluster. The file is created if needed.
func (r *repository) metaConfig(cluster, component string, edit func(map[string]any)) {
	name := "clusters/" + cluster + "/" + component + ".yaml"
	m := map[string]any{"apiVersion": "keelson.io/v1alpha1", "kind": "MetaConfig"}
	data, err := os.ReadFile(r.Path(name))
	if !errors.Is(err, fs.ErrNotExist) {
		must.Do(err)
	}
	must.Do(yaml.Unmarshal(data, &m))
	edit(m)
	r.write(name, string(must.Get(yaml.Marshal(m))))
}

// setVersion sets the version in the cluster's own file.
func (r *repository) setVersion(cluster, component, version string) {
	r.metaConfig(cluster, component, func(m map[string]any) { m["version"] = version })
}

// setValue sets a top-level value in the cluster's own file.
func (r *repository) setValue(cluster, component, key string, value any) {
	r.metaConfig(cluster, component, func(m map[string]any) {
		values, _ := m["values"].(map[string]any)
		if values == nil {
			values = map[string]any{}
		}
		values[key] = value
		m["values"] = values
	})
}

// replace edits one file of the repository. The first match of the pattern is replaced; without a
// match it fails.
func (r *repository) replace(name, pattern, by string) {
	if !r.replaceIfThere(name, pattern, by) {
		must.Failf("%s: nothing matches %s", name, pattern)
	}
}

// replaceIfThere is replace, and reports whether there was a match.
func (r *repository) replaceIfThere(name, pattern, by string) bool {
	data, re := r.read(name), regexp.MustCompile(pattern)
	at := re.FindSubmatchIndex(data)
	if at != nil {
		r.write(name, string(slices.Concat(data[:at[0]], re.Expand(nil, []byte(by), data, at), data[at[1]:])))
	}
	return at != nil
}

// integerValue returns a top-level value that is an integer in a component's schema.
func (r *repository) integerValue(component string) string {
	name := "components/" + component + "/template/values.schema.json"
	var s struct {
		Properties map[string]struct{ Type any }
	}
	must.Do(json.Unmarshal(r.read(name), &s))
	for key, p := range s.Properties {
		if p.Type == "integer" {
			return key
		}
	}
	must.Failf("%s: no top-level value is an integer", name)
	return ""
}

// templateWith returns the template file of a component that contains the text.
func (r *repository) templateWith(component, text string) string {
	for _, path := range must.Get(filepath.Glob(r.Path("components/" + component + "/template/templates/*.yaml"))) {
		name := filepath.ToSlash(must.Get(filepath.Rel(string(r.Clone), path)))
		if strings.Contains(string(r.read(name)), text) {
			return name
		}
	}
	must.Failf("no template of %s holds %q", component, text)
	return ""
}

// restore restores the files of an earlier commit. The caller commits them.
func (r *repository) restore(ctx context.Context, commit string) {
	r.git(ctx, "rm", "-rq", "--ignore-unmatch", ".")
	r.git(ctx, "checkout", "-q", commit, "--", ".")
}

func (r *repository) head(ctx context.Context) string { return r.git(ctx, "rev-parse", "HEAD") }
