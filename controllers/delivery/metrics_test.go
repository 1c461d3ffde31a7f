package delivery_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	dto "github.com/prometheus/client_model/go"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/delivery"
)

// gathered are the series of a registry, as Prometheus writes them.
func gathered(t testing.TB, from prometheus.Gatherer) (series []string, text []byte) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&all, family); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(all.String()) {
		if !strings.HasPrefix(line, "#") {
			series = append(series, strings.TrimSuffix(line, "\n"))
		}
	}
	return series, all.Bytes()
}

// metric adds up a metric of the controller that was started last, over the series
// whose labels are given, as NAME=VALUE: a number, or how often it was observed.
func (f *fleet) metric(name string, labels ...string) (sum float64) {
	f.t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && bears(m, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func bears(m *dto.Metric, labels []string) bool {
	has := map[string]bool{}
	for _, l := range m.GetLabel() {
		has[l.GetName()+"="+l.GetValue()] = true
	}
	for _, l := range labels {
		if !has[l] {
			return false
		}
	}
	return true
}

// The metrics of a delivery, from its first commit until its cluster is gone.
func TestMetrics(t *testing.T) {
	f := newFleet(t)
	const config = "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: HEAD\n"
	f.write("components/CLUSTER-web/template/templates/host.yaml", `
apiVersion: v1
kind: Pod
metadata: {name: host}
spec:
  hostNetwork: {{ .Values.host }}
  containers: [{name: host, image: "host:v1"}]
`)
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", config+"values: {text: hello, host: false}\n")
	f.commit("a pod")
	stop := f.start(nil)
	is := func(why string, want float64, name string, labels ...string) {
		t.Helper()
		f.eventually(why, func() bool { return f.metric(name, labels...) == want })
	}
	f.sync(v1alpha1.SyncSynced, "")
	is("one component is in sync", 1, "keelson_deliveries", "cluster="+f.name, "sync=Synced")
	is("it became so once", 1, "keelson_convergence_seconds", "until=synced")
	is("it is not healthy", 0, "keelson_convergence_seconds", "until=healthy")
	is("a cluster is connected", 1, "keelson_clusters", "state=connected")
	is("all clusters are in some state", 1, "keelson_clusters")
	is("three objects were created", 3, "keelson_objects_written_total", "cluster="+f.name, "op=create")
	is("no component waits", 0, "keelson_queue_length", "cluster="+f.name)
	for _, name := range []string{
		"keelson_status_writes_total", "keelson_repository_reads_total", "keelson_repository_read_duration_seconds", "keelson_queue_wait_seconds",
		"keelson_apply_duration_seconds", "keelson_repository_last_read_timestamp_seconds", "keelson_renders_total", "keelson_api_requests_total",
	} {
		if f.metric(name) == 0 {
			t.Errorf("%s is 0", name)
		}
	}

	t.Log("a change is held")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", config+"values: {text: bye, host: true}\n")
	f.commit("the host's network")
	f.sync(v1alpha1.SyncHeld, "")
	is("a change is held", 1, "keelson_held_changes", "rule=host-namespaces")
	is("what is held has not arrived", 1, "keelson_convergence_seconds", "until=synced")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", config+"values: {text: bye, host: false}\n")
	f.commit("no")
	f.sync(v1alpha1.SyncSynced, "")
	is("none is held", 0, "keelson_held_changes")
	is("it became so again", 2, "keelson_convergence_seconds", "until=synced")

	t.Log("another process finds all as it is to be")
	stop()
	f.start(nil)
	f.eventually("it is in sync", func() bool { return f.metric("keelson_deliveries", "sync=Synced") == 1 })
	is("nothing was delivered", 0, "keelson_convergence_seconds")

	t.Log("the cluster leaves git")
	f.git("rm", "-q", "-r", "clusters/"+f.name)
	f.write("clusters/another/cluster.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Cluster\nconnection: {context: test}\n")
	f.commit("gone")
	f.eventually("no series of it is left", func() bool {
		series, _ := gathered(t, f.metrics)
		return !strings.Contains(strings.Join(series, "\n"), `cluster="`+f.name+`"`)
	})
}

// TestForgotten: an answer that comes when the cluster is gone brings nothing back.
func TestForgotten(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		back bool
		want []string
	}{
		"Gone": {why: "Series of what is not there any more would stay for ever."},
		"Back": {
			why: "A cluster that comes back is counted from 0.", back: true,
			want: []string{`keelson_api_requests_total{cluster="prod",code="404",verb="GET"} 1`},
		},
	}
	for name, c := range cases {
		r := prometheus.NewRegistry()
		if err := delivery.Forgotten(r, c.back); err != nil {
			t.Fatal(err)
		}
		got, _ := gathered(t, r)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", name, c.why, diff)
		}
	}
}

// TestMetricsAreBounded: what 300 clusters of 200 components cost whoever keeps their
// metrics, at their worst: 12 states each, every verb with 16 codes, and 15,000
// rules that hold something.
func TestMetricsAreBounded(t *testing.T) {
	t.Parallel()
	const clusters = 300
	r := prometheus.NewRegistry()
	if err := delivery.Standing(r, clusters, 200); err != nil {
		t.Fatal(err)
	}
	series, text := gathered(t, r)
	of := map[string]int{}
	for _, s := range series {
		name, _, _ := strings.Cut(s, " ")
		name, labels, _ := strings.Cut(name, "{")
		if strings.Contains(labels, `cluster="`) {
			name += " by cluster"
		}
		of[name]++
	}
	t.Logf("%d series, %d bytes: %v", len(series), len(text), of)
	for name, n := range of {
		if !strings.HasSuffix(name, " by cluster") && n > 65 {
			t.Errorf("%s has %d series, whatever the clusters are: 65 at most", name, n)
		}
	}
	// 7 verbs × 15 codes, 12 states, 3 writes, drift, 2 of the queue.
	if got, most := of["keelson_api_requests_total by cluster"], clusters*7*14; got != most {
		t.Errorf("%d series of requests, want %d", got, most)
	}
	if got, most := of["keelson_deliveries by cluster"], clusters*12; got != most {
		t.Errorf("%d series of deliveries, want %d", got, most)
	}
}

// BenchmarkMetrics is what one scrape of 300 clusters of 200 components takes.
func BenchmarkMetrics(b *testing.B) {
	r := prometheus.NewRegistry()
	if err := delivery.Standing(r, 300, 200); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}
