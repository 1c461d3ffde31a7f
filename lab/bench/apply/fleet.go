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
)

const (
	// clusterName is the cluster's name in git.
	clusterName = "bench"
	// namespace of every object: one that all components share.
	namespace = "bench"
	header    = "apiVersion: keelson.io/v1alpha1\nkind: "
)

// template is the chart of every component: what an add-on without pods has.
// The one value is a field of the Deployment.
const template = `apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .Release.Name }}
  labels: {app: {{ .Release.Name }}}
automountServiceAccountToken: false
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .Release.Name }}
  labels: {app: {{ .Release.Name }}}
spec:
  clusterIP: None
  selector: {app: {{ .Release.Name }}}
  ports:
  - {name: http, port: 80, targetPort: http}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ .Release.Name }}
  labels: {app: {{ .Release.Name }}}
spec:
  rules:
  - host: {{ .Release.Name }}.bench.example
    http:
      paths:
      - path: /
        pathType: Prefix
        backend: {service: {name: {{ .Release.Name }}, port: {name: http}}}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .Release.Name }}
  labels: {app: {{ .Release.Name }}}
spec:
  replicas: 0
  selector:
    matchLabels: {app: {{ .Release.Name }}}
  template:
    metadata:
      labels: {app: {{ .Release.Name }}}
    spec:
      serviceAccountName: {{ .Release.Name }}
      containers:
      - name: main
        image: registry.bench.example/{{ .Release.Name }}:v1
        ports:
        - {name: http, containerPort: 8080}
        env:
        - {name: LEVEL, value: {{ .Values.level | quote }}}
        resources:
          requests: {cpu: 10m, memory: 16Mi}
          limits: {memory: 64Mi}
`

// fleet is a repository of many components that one cluster runs.
type fleet struct {
	bare, work string
	components []string
}

// makeFleet publishes the components, each at a version of its own.
func makeFleet(ctx context.Context, dir string, components int) (*fleet, error) {
	f := &fleet{bare: filepath.Join(dir, "fleet.git"), work: filepath.Join(dir, "fleet")}
	for i := range components {
		f.components = append(f.components, fmt.Sprintf("addon-%04d", i))
	}
	if err := f.git(ctx, dir, nil, "init", "--quiet", "--bare", "--initial-branch=main", f.bare); err != nil {
		return nil, err
	}
	if err := f.git(ctx, dir, nil, "clone", "--quiet", f.bare, f.work); err != nil {
		return nil, err
	}
	for path, content := range f.files() {
		if err := f.write(path, content); err != nil {
			return nil, err
		}
	}
	if err := f.setLevel("1"); err != nil {
		return nil, err
	}
	if err := f.setPass("0"); err != nil {
		return nil, err
	}
	if err := f.push(ctx, "the fleet"); err != nil {
		return nil, err
	}
	return f, f.tag(ctx)
}

func (f *fleet) files() map[string]string {
	out := map[string]string{"fleet.yaml": header + "Fleet\nname: bench\n"}
	for _, c := range f.components {
		folder := "components/" + c + "/"
		out[folder+"component.yaml"] = header + "Component\nnamespace: " + namespace + "\ndescription: Made up, to measure with\n"
		out[folder+"template/Chart.yaml"] = "apiVersion: v2\nname: " + c + "\nversion: 1.0.0\ndescription: A made-up component\n"
		out[folder+"template/values.yaml"] = "level: \"0\"\n"
		out[folder+"template/templates/objects.yaml"] = template
	}
	return out
}

// setLevel writes the layer that sets one field of every component.
func (f *fleet) setLevel(level string) error {
	var b strings.Builder
	b.WriteString(header + "Layer\nclusterSelector: {}\ncomponents:\n")
	for _, c := range f.components {
		fmt.Fprintf(&b, "  %s:\n    version: v1.0.0\n    values: {level: %q}\n", c, level)
	}
	return f.write("layers/10-all.yaml", b.String())
}

// setPass writes the cluster's file with a label that nothing reads, so that
// every component is looked at again.
func (f *fleet) setPass(pass string) error {
	return f.write("clusters/"+clusterName+"/cluster.yaml",
		header+"Cluster\nlabels: {pass: \""+pass+"\"}\nconnection:\n  context: "+clusterName+"\n")
}

func (f *fleet) write(path, content string) error {
	file := filepath.Join(f.work, filepath.FromSlash(path))
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func (f *fleet) push(ctx context.Context, message string) error {
	for _, args := range [][]string{
		{"add", "--all"},
		{"-c", "user.name=bench", "-c", "user.email=bench@example.com", "commit", "--quiet", "--message", message},
		{"push", "--quiet", "origin", "HEAD:main"},
	} {
		if err := f.git(ctx, f.work, nil, args...); err != nil {
			return err
		}
	}
	return nil
}

// tag publishes v1.0.0 of every component, as of the last commit.
func (f *fleet) tag(ctx context.Context) error {
	var b strings.Builder
	for _, c := range f.components {
		b.WriteString("create refs/tags/" + c + "/v1.0.0 refs/heads/main\n")
	}
	if err := f.git(ctx, f.bare, strings.NewReader(b.String()), "update-ref", "--stdin"); err != nil {
		return err
	}
	for _, args := range [][]string{{"repack", "-a", "-d", "-q"}, {"pack-refs", "--all"}} {
		if err := f.git(ctx, f.bare, nil, args...); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) git(ctx context.Context, dir string, in *strings.Reader, args ...string) error {
	c := exec.CommandContext(ctx, "git", args...)
	c.Dir = dir
	if in != nil {
		c.Stdin = in
	}
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// rendered is what Keelson renders of the fleet: what the bare loop applies.
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
	if want := objectsEach * m.components; len(objects) != want {
		return nil, fmt.Errorf("keelson render: %d objects, want %d", len(objects), want)
	}
	return objects, nil
}
