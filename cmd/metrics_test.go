package cmd_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/cmd"
)

// documented are the types and the labels of metrics that docs/reference/metrics.md tells of.
func documented(t *testing.T) (types, labels map[string]string) {
	t.Helper()
	text, err := os.ReadFile("../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	types, labels = map[string]string{}, map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `(keelson_[a-z_]+)` \\| ([a-z]+) \\| ([^|]*) \\| [^|]+ \\|$")
	for _, m := range row.FindAllStringSubmatch(strings.ReplaceAll(string(text), "| |", "|  |"), -1) {
		types[m[1]], labels[m[1]] = m[2], strings.NewReplacer("`", "", " ", "").Replace(m[3])
	}
	return types, labels
}

// TestMetricsDocumented: docs/reference/metrics.md lists each metric that there is, with its
// labels, and no other.
func TestMetricsDocumented(t *testing.T) {
	t.Parallel()
	described, err := cmd.Described()
	if err != nil {
		t.Fatal(err)
	}
	is := regexp.MustCompile(`fqName: "([^"]+)", help: "([^"]*)", unit: "[^"]*", constLabels: \{([a-z]*)[^}]*\}, variableLabels: \{([^}]*)\}`)
	got := map[string]string{}
	for _, d := range described {
		m := is.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("not understood: %s", d)
		}
		if !strings.HasSuffix(m[2], ".") {
			t.Errorf("the help of %s is no sentence: %q", m[1], m[2])
		}
		got[m[1]] = m[3] + m[4]
	}
	types, want := documented(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/reference/metrics.md is not what there is (-docs +program):\n%s", diff)
	}
	for name, kind := range types {
		if strings.HasSuffix(name, "_total") != (kind == "counter") {
			t.Errorf("%s is a %s", name, kind)
		}
		if kind == "histogram" && !strings.HasSuffix(name, "_seconds") {
			t.Errorf("%s is a histogram without a unit", name)
		}
	}
}

// TestMetricsServed: what a controller with all its parts serves is of the types that
// docs/reference/metrics.md says.
func TestMetricsServed(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, versions[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		f := newFleet(t, "metrics")
		f.git("rm", "-q", "-r", "clusters/test")
		f.commit()
		secret := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(secret, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c := startController(t, f, start(t).Config, "--webhook-listen", "127.0.0.1:0", "--webhook-secret-file", secret)
		until(t, "it has delivered", func() bool { return strings.Contains(c.get(t, "/metrics"), `keelson_status_writes_total{result="ok"}`) })
		types, _ := documented(t)
		served := regexp.MustCompile(`(?m)^# TYPE (keelson_\w+) (\w+)$`).FindAllStringSubmatch(c.get(t, "/metrics"), -1)
		for _, m := range served {
			if types[m[1]] != m[2] {
				t.Errorf("%s is a %s, and docs/reference/metrics.md says %q", m[1], m[2], types[m[1]])
			}
		}
		if len(served) < 20 {
			t.Errorf("only %d metrics: %q", len(served), served)
		}
	})
}

// TestTraceFlags: an address that nothing could be sent to is a mistake before
// anything is begun.
func TestTraceFlags(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfigOf("http://127.0.0.1:1"), f.kubeconfig); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ endpoint, says string }{
		"NoScheme": {"collector:4318", "--trace-endpoint takes a URL such as http://collector:4318"},
		"NoHost":   {"http:///v1/traces", "--trace-endpoint takes a URL"},
		"GRPC":     {"grpc://keelson:S3cret-of-it@collector:4317", "and not grpc://keelson:xxxxx@collector:4317"},
		"NoURL":    {"http://keelson:S3cret-of-it@collector:port", "--trace-endpoint is no URL; is something in its password"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.keelson("controller", "--listen", "", "--trace-endpoint", c.endpoint).want(t, 2).says(t, c.says).saysNot(t, "S3cret-of-it")
		})
	}
}
