package delivery_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

const head = "apiVersion: keelson.io/v1alpha1\nkind: "

// many makes components of ten objects each, which are healthy as soon as they are
// there.
func (f *fleet) many(from, to int) {
	f.t.Helper()
	for i := from; i < to; i++ {
		name := fmt.Sprintf("CLUSTER-%03d", i)
		f.write("clusters/CLUSTER/"+name+".yaml", head+"MetaConfig\nversion: HEAD\n")
		f.write("components/"+name+"/component.yaml", head+"Component\nnamespace: CLUSTER\n")
		f.write("components/"+name+"/template/Chart.yaml", "apiVersion: v2\nname: few\nversion: 1.0.0\n")
		f.write("components/"+name+"/template/templates/few.yaml", `
{{- range $i, $kind := list "ConfigMap" "ConfigMap" "ConfigMap" "ServiceAccount" "ConfigMap" "ConfigMap" "ServiceAccount" "ConfigMap" "ConfigMap" "ConfigMap" }}
---
apiVersion: v1
kind: {{ $kind }}
metadata:
  name: {{ $.Release.Name }}-{{ $i }}
  labels: {app.kubernetes.io/name: few, app.kubernetes.io/part-of: a-bench, app.kubernetes.io/version: "1.0.0"}
  annotations: {example.com/about: "An annotation of about as much text as one finds in charts, and a little more than that."}
{{- if eq $kind "ConfigMap" }}
data:
{{- range $j := until 20 }}
  key-{{ $j }}: "a value of some forty bytes, which says nothing, number {{ $j }}"
{{- end }}
{{- end }}
{{- end }}
`)
	}
	f.git("rm", "-qrf", "--ignore-unmatch", "clusters/"+f.name+"/"+f.name+"-web.yaml")
	f.commit("many")
}

// rests waits until so many components are at rest.
func (f *fleet) rests(components int) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("%d components are at rest", components), func() bool {
		k := f.controller.Kept()
		return k.Resting == components && k.Bodies == 0
	})
}

// deliveries counts by state.
func (f *fleet) deliveries(sync v1alpha1.Sync, health v1alpha1.Health) int {
	f.t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	n := 0.0
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if family.GetName() == "keelson_deliveries" && labels["sync"] == string(sync) && labels["health"] == string(health) {
				n += m.GetGauge().GetValue()
			}
		}
	}
	return int(n)
}

// BenchmarkAtRest tells what one more object costs in memory that is as it is wanted,
// once nothing happens: on a real API server, with all that goes with it, a tenth
// of a component with its chart, record and status. Renders are left out, which
// clusters share. KEELSON_HEAP names a file for a heap profile.
func BenchmarkAtRest(b *testing.B) {
	heap := func() float64 {
		var m runtime.MemStats
		for range 3 { // what finalizers hold goes in the second
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	const few, components = 50, 250
	f := newFleet(b)
	f.many(0, few)
	f.renders = 1
	f.start(nil)
	f.rests(few)
	before := heap()
	f.many(few, components)
	f.rests(components)
	after := heap()
	if name := os.Getenv("KEELSON_HEAP"); name != "" {
		file, err := os.Create(name)
		if err != nil {
			b.Fatal(err)
		}
		if err := pprof.WriteHeapProfile(file); err != nil {
			b.Fatal(err)
		}
		if err := file.Close(); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
	}
	b.ReportMetric((after-before)/((components-few)*10), "B/object")
	b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
}
