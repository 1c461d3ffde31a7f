package delivery_test

import (
	"strings"
	"testing"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// A converged fleet says nothing, however often git is read.
func TestConvergedLogsNothing(t *testing.T) {
	f := newFleet(t)
	f.start(nil)
	f.sync(v1alpha1.SyncSynced, "")
	f.ready("2", "all there")
	f.eventually("it is healthy", func() bool { return f.status().Health == v1alpha1.HealthHealthy })
	reads := func() float64 { return f.metric("keelson_repository_reads_total", "result=ok") }
	before, said := reads(), len(f.logged())
	f.eventually("git is read again and again", func() bool { return reads() >= before+10 })
	if more := f.logged()[said:]; more != "" {
		t.Errorf("it says:\n%s", more)
	}
}

// Trouble names the cluster, the component and the object.
func TestTroubleIsNamed(t *testing.T) {
	f := newFleet(t)
	f.write("components/CLUSTER-web/template/templates/service.yaml",
		"apiVersion: v1\nkind: Service\nmetadata: {name: wrong}\nspec: {ports: [{port: 0}]}\n")
	f.write("clusters/CLUSTER/CLUSTER-web.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: HEAD\nvalues: {text: hello}\n")
	f.commit("a Service that no API server takes")
	f.start(nil)
	f.sync(v1alpha1.SyncFailed, "Service")
	var line string
	f.eventually("it is logged", func() bool {
		for l := range strings.Lines(f.log.String()) {
			if strings.Contains(l, `msg="delivery failed"`) {
				line = l
			}
		}
		return line != ""
	})
	for _, part := range []string{"level=WARN", "cluster=" + f.name + " ", "component=" + f.name + "-web ", "error=", "Service " + f.name + "/wrong"} {
		if !strings.Contains(line, part) {
			t.Errorf("the line lacks %q: %s", part, line)
		}
	}
}
