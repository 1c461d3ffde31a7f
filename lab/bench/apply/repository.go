package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/lab/bench/addons"
	"github.com/keelson-io/keelson/lab/fleet"
)

const (
	// clusterName is the cluster's name in git.
	clusterName = "bench"
	// namespace is shared by all objects of all components.
	namespace = "bench"
)

// fleetFiles returns a fleet of components, each with its own version tag. One cluster runs all of
// them at level 1.
func (m *measurement) fleetFiles() addons.Files {
	files := addons.New()
	for _, c := range m.names {
		files.Component(c, namespace, addons.Small)
	}
	m.setLevels(files, func(int) string { return "1" })
	m.setPass(files, "0")
	return files
}

// setLevels writes the layer that sets one field of every component.
func (m *measurement) setLevels(files addons.Files, level func(i int) string) {
	files.Layer("layers/10-all.yaml", "", m.names, func(i int) string { return addons.Running(level(i)) })
}

// setPass writes the cluster's file with a label that has no effect. A change of the label makes
// Keelson check every component again.
func (m *measurement) setPass(files addons.Files, pass string) {
	files.Cluster(clusterName, "pass", pass)
}

// repository is a bare repository and its working clone.
type repository struct {
	bare, work string
}

// publish creates a bare repository, packed as after a clone.
func (m *measurement) publish(ctx context.Context, name string, files addons.Files, versions []string) (*repository, error) {
	r := &repository{bare: filepath.Join(m.dir, "git", name+".git"), work: filepath.Join(m.dir, name)}
	if err := files.Publish(ctx, r.bare, versions); err != nil {
		return nil, err
	}
	return r, fleet.Pack(ctx, r.bare)
}

// clone creates the working clone from the URL to which it pushes.
func (r *repository) clone(ctx context.Context, url string) error {
	return git(ctx, filepath.Dir(r.work), "clone", "--quiet", url, r.work)
}

// push writes files, commits and pushes them.
func (r *repository) push(ctx context.Context, files addons.Files, message string) error {
	for path, content := range files {
		file := filepath.Join(r.work, filepath.FromSlash(path))
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	if err := git(ctx, r.work, "-c", "user.name=bench", "-c", "user.email=bench@example.com", "commit", "--quiet", "--all", "--message", message); err != nil {
		return err
	}
	return git(ctx, r.work, "push", "--quiet", "origin", "HEAD:main")
}

func git(ctx context.Context, dir string, args ...string) error {
	c := exec.CommandContext(ctx, "git", args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// rendered returns the objects as Keelson renders the fleet. The loops apply these objects.
func (m *measurement) rendered(ctx context.Context) ([]unstructured.Unstructured, error) {
	c := exec.CommandContext(ctx, m.keelson, "render", clusterName, "--repo", m.fleet.bare, "-o", "json") //nolint:gosec // the binary that is measured
	c.Env = append(os.Environ(), "KUBECONFIG="+os.DevNull)
	out, err := c.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("keelson render: %w\n%s", err, exit.Stderr)
	}
	if err != nil {
		return nil, fmt.Errorf("keelson render: %w", err)
	}
	var list struct {
		Items []map[string]any `json:"items"`
	}
	if err := yaml.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("keelson render: %w", err)
	}
	objects := make([]unstructured.Unstructured, len(list.Items))
	for i := range list.Items {
		objects[i].Object = list.Items[i]
	}
	if want := addons.ObjectsOfSmall * m.components; len(objects) != want {
		return nil, fmt.Errorf("keelson render: %d objects, want %d", len(objects), want)
	}
	return objects, nil
}
