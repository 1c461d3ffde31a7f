package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/keelson-io/keelson/lab/fleet"
)

// kind is one sort of commit that people make.
type kind struct {
	name string
	// push makes the i-th of them.
	push func(ctx context.Context, m *measurement, i int) error
}

func kinds() []kind {
	return []kind{
		{"cluster file", pushClusterFile},
		{"layer", pushLayer},
		{"new version", pushVersion},
	}
}

// pushClusterFile changes what one cluster sets for one component.
func pushClusterFile(ctx context.Context, m *measurement, i int) error {
	c := m.fleet.Clusters[i%len(m.fleet.Clusters)]
	path := fmt.Sprintf("clusters/%s/%s.yaml", c.Name, c.Deliveries[i%len(c.Deliveries)].Component)
	content := fmt.Sprintf("apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nvalues:\n  replicas: %d\n", 100+i)
	return fleet.Push(ctx, m.dir, fleet.Commit{Files: map[string][]byte{path: []byte(content)}})
}

// pushLayer changes one line for all clusters of a stage.
func pushLayer(ctx context.Context, m *measurement, i int) error {
	const path = "layers/40-stage-production.yaml"
	return edit(ctx, m, path, "replicas:", fmt.Sprintf("replicas: %d", 50+i), "")
}

// pushVersion publishes a version and lets all clusters run it, as a layer says.
func pushVersion(ctx context.Context, m *measurement, i int) error {
	component := m.fleet.Clusters[0].Deliveries[0].Component
	version := fmt.Sprintf("v2.0.%d", i)
	values := "components/" + component + "/template/values.yaml"
	if err := edit(ctx, m, values, "release:", fmt.Sprintf("release: %d", 100+i), component+"/"+version); err != nil {
		return err
	}
	return edit(ctx, m, "layers/10-all.yaml", "  "+component+":\n    version:", "  "+component+":\n    version: "+version, "")
}

// edit replaces the first line that starts as given, blanks aside.
func edit(ctx context.Context, m *measurement, path, start, line, tag string) error {
	data, err := fleet.Read(ctx, m.dir, path)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(data, []byte(start))
	if !ok {
		return fmt.Errorf("%s has no line %q", path, strings.TrimSpace(start))
	}
	_, after, _ := bytes.Cut(rest, []byte("\n"))
	changed := bytes.Join([][]byte{before, []byte(line + "\n"), after}, nil)
	return fleet.Push(ctx, m.dir, fleet.Commit{Files: map[string][]byte{path: changed}, Tag: tag})
}
