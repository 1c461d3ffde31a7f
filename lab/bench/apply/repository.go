package apply

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/keelson-io/keelson/lab/harness"

	"github.com/keelson-io/keelson/lab/harness/must"

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
	harness.Clone

	bare string
}

// publish creates a bare repository, packed as after a clone.
func (m *measurement) publish(ctx context.Context, name string, files addons.Files, versions []string) *repository {
	r := &repository{bare: filepath.Join(m.dir, "git", name+".git"), Clone: harness.Clone(filepath.Join(m.dir, name))}
	must.Do(files.Publish(ctx, r.bare, versions))
	must.Do(fleet.Pack(ctx, r.bare))
	return r
}

// clone creates the working clone from the URL to which it pushes.
func (r *repository) clone(ctx context.Context, url string) {
	must.Get(harness.NewClone(ctx, url, string(r.Clone)))
}

// push writes files, commits and pushes them.
func (r *repository) push(ctx context.Context, files addons.Files, message string) {
	for path, content := range files {
		must.Do(r.Write(path, string(content)))
	}
	must.Do(r.Push(ctx, message))
}

// rendered returns the objects as Keelson renders the fleet. The loops apply these objects.
func (m *measurement) rendered(ctx context.Context) []unstructured.Unstructured {
	c := exec.CommandContext(ctx, m.keelson, "render", clusterName, "--repo", m.fleet.bare, "-o", "json") //nolint:gosec // the binary that is measured
	c.Env = append(os.Environ(), "KUBECONFIG="+os.DevNull)
	out, err := c.Output()
	if err != nil {
		must.Failf("keelson render: %w\n%s", err, harness.Stderr(err))
	}
	var list struct {
		Items []map[string]any `json:"items"`
	}
	must.Do(yaml.Unmarshal(out, &list))
	objects := make([]unstructured.Unstructured, len(list.Items))
	for i := range list.Items {
		objects[i].Object = list.Items[i]
	}
	if want := addons.ObjectsOfSmall * m.components; len(objects) != want {
		must.Failf("keelson render: %d objects, want %d", len(objects), want)
	}
	return objects
}
