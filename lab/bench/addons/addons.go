// Package addons makes fleet repositories to measure with: many components of the
// same small chart.
package addons

import (
	"context"
	"fmt"
	"strings"

	"github.com/keelson-io/keelson/lab/fleet"
)

const (
	header  = "apiVersion: keelson.io/v1alpha1\nkind: "
	version = "v1.0.0"
)

// Files of a repository, by path.
type Files map[string][]byte

// New has the fleet's own file.
func New() Files { return Files{"fleet.yaml": []byte(header + "Fleet\nname: bench\n")} }

// Component adds a component with a template such as [Small].
func (f Files) Component(name, namespace, template string) {
	folder := "components/" + name + "/"
	f[folder+"component.yaml"] = fmt.Appendf(nil, "%sComponent\nnamespace: %s\ndescription: Made up, to measure with\n", header, namespace)
	f[folder+"template/Chart.yaml"] = []byte("apiVersion: v2\nname: " + name + "\nversion: 1.0.0\ndescription: A made-up component\n")
	f[folder+"template/values.yaml"] = []byte("level: \"0\"\ntier: none\n")
	f[folder+"template/templates/objects.yaml"] = []byte(template)
}

// Cluster adds a cluster of that name, with one label, which is the context of a
// kubeconfig, too.
func (f Files) Cluster(name, label, value string) {
	f["clusters/"+name+"/cluster.yaml"] = fmt.Appendf(nil, "%sCluster\nlabels: {%s: %q}\nconnection:\n  context: %s\n", header, label, value, name)
}

// Layer adds a layer: of each of the components the entry, lines at the left
// margin, for the clusters that a selector such as "matchLabels: {tier: t0}" takes.
func (f Files) Layer(path, selector string, components []string, entry func(i int) string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%sLayer\nclusterSelector: {%s}\ncomponents:\n", header, selector)
	for i, c := range components {
		fmt.Fprintf(&b, "  %s:\n    %s\n", c, strings.ReplaceAll(entry(i), "\n", "\n    "))
	}
	f[path] = []byte(b.String())
}

// Running is the entry that runs the one version of a component at a level.
func Running(level string) string {
	return fmt.Sprintf("version: %s\nvalues: {level: %q}", version, level)
}

// Publish makes a bare repository of one commit, which is the version of each
// component, too.
func (f Files) Publish(ctx context.Context, dir string, components []string) error {
	if err := fleet.Create(ctx, dir, fleet.Commit{Files: f}); err != nil {
		return err
	}
	tags := make([]string, len(components))
	for i, c := range components {
		tags[i] = c + "/" + version
	}
	return fleet.Tag(ctx, dir, tags...)
}
