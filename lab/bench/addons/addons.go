// Package addons creates fleet repositories for measurements: many components with the same small
// chart.
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

// Files holds the files of a repository, by path.
type Files map[string][]byte

// New returns Files with the fleet's own file.
func New() Files { return Files{"fleet.yaml": []byte(header + "Fleet\nname: bench\n")} }

// Component adds a component with a template such as [Small].
func (f Files) Component(name, namespace, template string) {
	folder := "components/" + name + "/"
	f[folder+"component.yaml"] = fmt.Appendf(nil, "%sComponent\nnamespace: %s\ndescription: Made up, to measure with\n", header, namespace)
	f[folder+"template/Chart.yaml"] = []byte("apiVersion: v2\nname: " + name + "\nversion: 1.0.0\ndescription: A made-up component\n")
	f[folder+"template/values.yaml"] = []byte("level: \"0\"\ntier: none\n")
	f[folder+"template/templates/objects.yaml"] = []byte(template)
}

// Cluster adds a cluster with one label. The cluster's name is also its kubeconfig context.
func (f Files) Cluster(name, label, value string) {
	f["clusters/"+name+"/cluster.yaml"] = fmt.Appendf(nil, "%sCluster\nlabels: {%s: %q}\nconnection:\n  context: %s\n", header, label, value, name)
}

// Layer adds a layer for the clusters that match a selector such as "matchLabels: {tier: t0}".
// entry returns the entry of the i-th component, as lines without indentation.
func (f Files) Layer(path, selector string, components []string, entry func(i int) string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%sLayer\nclusterSelector: {%s}\ncomponents:\n", header, selector)
	for i, c := range components {
		fmt.Fprintf(&b, "  %s:\n    %s\n", c, strings.ReplaceAll(entry(i), "\n", "\n    "))
	}
	f[path] = []byte(b.String())
}

// Running returns the entry that runs the only version of a component at a level.
func Running(level string) string {
	return fmt.Sprintf("version: %s\nvalues: {level: %q}", version, level)
}

// Publish creates a bare repository with one commit. The commit is tagged as the version of each
// component.
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
