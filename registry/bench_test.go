package registry_test

import (
	"fmt"
	"testing"

	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// fleetOf writes a fleet in which every cluster runs every component, half of
// them with a file of their own.
func fleetOf(t testing.TB, clusters, components int) *gittest.Repo {
	t.Helper()
	g := gittest.NewRepo(t)
	base := baseFleet(t)
	g.Write("fleet.yaml", base["fleet.yaml"])
	layer := "apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {}\ncomponents:\n"
	for c := range components {
		name := fmt.Sprintf("c%03d", c)
		for _, f := range []string{"component.yaml", "images.yaml", "template/Chart.yaml", "template/values.yaml"} {
			g.Write("components/"+name+"/"+f, base["components/coredns/"+f])
		}
		for i := range 8 {
			g.Write(fmt.Sprintf("components/%s/template/templates/%d.yaml", name, i), fmt.Sprintf("# %s %d\na: {{ .Values.x }}\n", name, i))
		}
		layer += fmt.Sprintf("  %s: {version: v1.0.0, values: {replicas: 3, nodeSelector: {zone: %s}}}\n", name, name)
	}
	g.Write("layers/10-all.yaml", layer)
	for i := range clusters {
		name := fmt.Sprintf("cluster-%03d", i)
		g.Write("clusters/"+name+"/cluster.yaml", base["clusters/a/cluster.yaml"])
		for c := 0; c < components; c += 2 {
			g.Write(fmt.Sprintf("clusters/%s/c%03d.yaml", name, c), fmt.Sprintf(
				"apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nvalues:\n  replicas: %d\n  resources:\n    requests: {cpu: %dm}\n  args: [--name=%s]\n", i%5, c, name))
		}
	}
	g.Commit()
	for c := range components {
		g.Tag(fmt.Sprintf("c%03d/v1.0.0", c))
	}
	return g
}

// BenchmarkLoad measures a first Load, and one after a commit that changed one
// file. Run it with -benchtime=3x: building the repository takes longest.
func BenchmarkLoad(b *testing.B) {
	for _, size := range []struct{ clusters, components int }{{50, 20}, {100, 100}, {300, 200}} {
		name := fmt.Sprintf("%dx%d", size.clusters, size.components)
		if testing.Short() && size.clusters > 50 {
			continue
		}
		g := fleetOf(b, size.clusters, size.components)
		b.Run(name+"/first", func(b *testing.B) {
			for b.Loop() {
				load(b, open(b, g.Path), "")
			}
		})
		b.Run(name+"/next", func(b *testing.B) {
			r := open(b, g.Path)
			load(b, r, "")
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				g.Write("clusters/cluster-000/c000.yaml", fmt.Sprintf(
					"apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nvalues: {replicas: %d}\n", i))
				g.Commit()
				b.StartTimer()
				if err := r.Git().Fetch(b.Context()); err != nil {
					b.Fatal(err)
				}
				f := load(b, r, "")
				if len(f.Clusters) != size.clusters || len(f.Clusters[0].Deliveries) != size.components || len(f.Problems) > 0 {
					b.Fatal(f.Problems)
				}
			}
		})
	}
}
