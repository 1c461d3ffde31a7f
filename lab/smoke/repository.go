package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/lab/gitserver"
)

// repository is the fleet repository: a bare repository, and a working clone that pushes to it.
type repository struct {
	bare, work string
	url        string // for Keelson
	address    string // of the git server; empty: never started
	server     *gitserver.Server
}

// sources are the folders from which the fleet is copied, as described in its README.
type sources struct{ fleet, workloads string }

// makeRepository publishes a fleet as one commit. Each component's version in Chart.yaml gets a
// tag.
func makeRepository(ctx context.Context, folder string, from sources) (*repository, error) {
	r := &repository{bare: filepath.Join(folder, "fleet.git"), work: filepath.Join(folder, "fleet")}
	r.url = r.bare
	for _, old := range []string{r.bare, r.work} {
		if err := os.RemoveAll(old); err != nil {
			return nil, fmt.Errorf("make repository: %w", err)
		}
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make repository: %w", err)
	}
	if _, err := run(ctx, folder, "git", "init", "-q", "--bare", "-b", "main", r.bare); err != nil {
		return nil, err
	}
	if _, err := run(ctx, folder, "git", "clone", "-q", r.bare, r.work); err != nil {
		return nil, err
	}
	for _, kv := range [][2]string{{"user.name", "Platform Team"}, {"user.email", "platform@example.com"}} {
		if _, err := r.git(ctx, "config", kv[0], kv[1]); err != nil {
			return nil, err
		}
	}
	for source, to := range map[string]string{from.fleet: r.work, from.workloads: r.path("components/" + workloads)} {
		if err := os.CopyFS(to, os.DirFS(source)); err != nil {
			return nil, fmt.Errorf("copy %s: %w", source, err)
		}
	}
	if _, err := r.git(ctx, "checkout", "-q", "-b", "main"); err != nil {
		return nil, err
	}
	if err := r.push(ctx, "the example fleet"); err != nil {
		return nil, err
	}
	return r, r.tagAll(ctx)
}

// serve starts a git server, so that Keelson reads over HTTP, as from a forge.
func (r *repository) serve(ctx context.Context) (err error) {
	if r.server, err = gitserver.Start(ctx, filepath.Dir(r.bare), r.address); err != nil {
		return err
	}
	r.address, r.url = r.server.Address, r.server.URL(filepath.Base(r.bare))
	return nil
}

func (r *repository) close() error {
	if r.server == nil {
		return nil
	}
	err := r.server.Stop()
	r.server = nil
	return err
}

func (r *repository) git(ctx context.Context, args ...string) (string, error) {
	return run(ctx, r.work, "git", args...)
}

// push commits everything and pushes it.
func (r *repository) push(ctx context.Context, message string) error {
	if _, err := r.git(ctx, "add", "-A"); err != nil {
		return err
	}
	if _, err := r.git(ctx, "commit", "-q", "--allow-empty", "-m", message); err != nil {
		return err
	}
	_, err := r.git(ctx, "push", "-q", "origin", "main")
	return err
}

// tag publishes the last commit as a version of a component.
func (r *repository) tag(ctx context.Context, component, version string) error {
	name := component + "/" + version
	if _, err := r.git(ctx, "tag", name); err != nil {
		return err
	}
	_, err := r.git(ctx, "push", "-q", "origin", name)
	return err
}

// moveTag moves a published tag, which users must not do.
func (r *repository) moveTag(ctx context.Context, name, to string) error {
	if _, err := r.git(ctx, "tag", "-f", name, to); err != nil {
		return err
	}
	_, err := r.git(ctx, "push", "-q", "-f", "origin", name)
	return err
}

func (r *repository) tagAll(ctx context.Context) error {
	charts, err := filepath.Glob(filepath.Join(r.work, "components", "*", "template", "Chart.yaml"))
	if err != nil {
		return fmt.Errorf("find charts: %w", err)
	}
	for _, path := range charts {
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read chart: %w", err)
		}
		var chart struct{ Version string }
		if err := yaml.Unmarshal(data, &chart); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		component := filepath.Base(filepath.Dir(filepath.Dir(path)))
		if err := r.tag(ctx, component, "v"+strings.TrimPrefix(chart.Version, "v")); err != nil {
			return err
		}
	}
	return nil
}

func (r *repository) path(name string) string { return filepath.Join(r.work, filepath.FromSlash(name)) }

func (r *repository) write(name, content string) error {
	if err := os.MkdirAll(filepath.Dir(r.path(name)), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.WriteFile(r.path(name), []byte(content), 0o644); err != nil { //nolint:gosec // a repository is for everybody
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// metaConfig edits the file of a component on a cluster. The file is created if needed.
func (r *repository) metaConfig(cluster, component string, edit func(map[string]any)) error {
	name := "clusters/" + cluster + "/" + component + ".yaml"
	m := map[string]any{"apiVersion": "keelson.io/v1alpha1", "kind": "MetaConfig"}
	data, err := os.ReadFile(r.path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if err := yaml.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	edit(m)
	if data, err = yaml.Marshal(m); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return r.write(name, string(data))
}

// setVersion sets the version in the cluster's own file.
func (r *repository) setVersion(cluster, component, version string) error {
	return r.metaConfig(cluster, component, func(m map[string]any) { m["version"] = version })
}

// setValue sets a top-level value in the cluster's own file.
func (r *repository) setValue(cluster, component, key string, value any) error {
	return r.metaConfig(cluster, component, func(m map[string]any) {
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
func (r *repository) replace(name, pattern, by string) error {
	data, err := os.ReadFile(r.path(name))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("pattern: %w", err)
	}
	at := re.FindStringSubmatchIndex(string(data))
	if at == nil {
		return fmt.Errorf("%s: nothing matches %s", name, pattern)
	}
	out := slices.Concat(data[:at[0]], re.ExpandString(nil, by, string(data), at), data[at[1]:])
	return r.write(name, string(out))
}

// integerValue returns a top-level value that is an integer in a component's schema.
func (r *repository) integerValue(component string) (string, error) {
	name := "components/" + component + "/template/values.schema.json"
	data, err := os.ReadFile(r.path(name))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	var s struct {
		Properties map[string]struct{ Type any }
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	for key, p := range s.Properties {
		if p.Type == "integer" {
			return key, nil
		}
	}
	return "", fmt.Errorf("%s: no top-level value is an integer", name)
}

// templateWith returns the template file of a component that contains the text.
func (r *repository) templateWith(component, text string) (string, error) {
	files, err := filepath.Glob(r.path("components/" + component + "/template/templates/*.yaml"))
	if err != nil {
		return "", fmt.Errorf("find templates: %w", err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("read template: %w", err)
		}
		if strings.Contains(string(data), text) {
			rel, err := filepath.Rel(r.work, path)
			if err != nil {
				return "", fmt.Errorf("find template: %w", err)
			}
			return filepath.ToSlash(rel), nil
		}
	}
	return "", fmt.Errorf("no template of %s holds %q", component, text)
}

// restore restores the files of an earlier commit. The caller commits them.
func (r *repository) restore(ctx context.Context, commit string) error {
	if _, err := r.git(ctx, "rm", "-rq", "--ignore-unmatch", "."); err != nil {
		return err
	}
	_, err := r.git(ctx, "checkout", "-q", commit, "--", ".")
	return err
}

func (r *repository) head(ctx context.Context) (string, error) {
	out, err := r.git(ctx, "rev-parse", "HEAD")
	return strings.TrimSpace(out), err
}

// run runs a program and returns its output. An error includes the output, too.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
