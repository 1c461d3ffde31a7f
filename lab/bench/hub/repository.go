package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/keelson-io/keelson/lab/fleet"
)

const header = "apiVersion: keelson.io/v1alpha1\nkind: "

// tiers is how many kinds of clusters there are: each component is rendered from
// so many inputs.
const tiers = 10

// size is how large a fleet is.
type size struct{ clusters, components, objects int }

func (s size) deliveries() int { return s.clusters * s.components }
func (s size) all() int        { return s.deliveries() * s.objects }
func (s size) String() string {
	return fmt.Sprintf("%d clusters × %d components × %d objects", s.clusters, s.components, s.objects)
}

// repository is the fleet in git.
type repository struct {
	dir    string
	size   size
	levels []int // by component
}

func component(i int) string { return fmt.Sprintf("addon-%03d", i) }

// makeRepository writes the fleet: small charts of the kinds that add-ons consist
// of, each component in a namespace of its own.
func makeRepository(ctx context.Context, dir string, s size) (*repository, error) {
	r := &repository{dir: filepath.Join(dir, "fleet.git"), size: s, levels: make([]int, s.components)}
	files := map[string][]byte{"fleet.yaml": []byte(header + "Fleet\nname: bench\n")}
	chart := []byte(chartOf(s.objects))
	for i := range s.components {
		c := component(i)
		folder := "components/" + c + "/"
		files[folder+"component.yaml"] = fmt.Appendf(nil, "%sComponent\nnamespace: %s\ndescription: Made up, to measure with\n", header, c)
		files[folder+"template/Chart.yaml"] = []byte("apiVersion: v2\nname: " + c + "\nversion: 1.0.0\ndescription: A made-up component\n")
		files[folder+"template/values.yaml"] = []byte("level: \"0\"\ntier: none\n")
		files[folder+"template/templates/objects.yaml"] = chart
	}
	for i := range s.clusters {
		files["clusters/"+clusterName(i)+"/cluster.yaml"] = fmt.Appendf(nil, "%sCluster\nlabels: {tier: t%d}\nconnection:\n  context: %s\n", header, i%tiers, clusterName(i))
	}
	for t := range min(tiers, s.clusters) {
		files[fmt.Sprintf("layers/20-tier-%d.yaml", t)] = []byte(r.layer(fmt.Sprintf("matchLabels: {tier: t%d}", t), func(int) string {
			return fmt.Sprintf("values: {tier: t%d}", t)
		}))
	}
	files[allLayer] = r.all()
	tagged := make([]string, s.components)
	for i := range tagged {
		tagged[i] = component(i) + "/v1.0.0"
	}
	if err := fleet.Create(ctx, r.dir, fleet.Commit{Files: files}); err != nil {
		return nil, err
	}
	return r, fleet.Tag(ctx, r.dir, tagged...)
}

// all is the layer for all clusters: versions, and the one value that commits change.
func (r *repository) all() []byte {
	return []byte(r.layer("", func(i int) string { return fmt.Sprintf("version: v1.0.0\n    values: {level: \"%d\"}", r.levels[i]) }))
}

const allLayer = "layers/10-all.yaml"

func (r *repository) layer(selector string, entry func(i int) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%sLayer\nclusterSelector: {%s}\ncomponents:\n", header, selector)
	for i := range r.size.components {
		fmt.Fprintf(&b, "  %s:\n    %s\n", component(i), entry(i))
	}
	return b.String()
}

// push changes the level of one component for all clusters.
func (r *repository) push(ctx context.Context, of int) error {
	r.levels[of]++
	return fleet.Push(ctx, r.dir, fleet.Commit{Files: map[string][]byte{allLayer: r.all()}})
}

// chartOf has the given number of objects: first a Deployment, whose one field the
// level is, then others, then ConfigMaps.
func chartOf(objects int) string {
	parts := parts()
	for i := len(parts); i < objects; i++ {
		parts = append(parts, fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-%d
  labels: {app.kubernetes.io/name: {{ .Release.Name }}}
data:
  tier: {{ .Values.tier | quote }}
  settings.yaml: |
    workers: 4
    queue: {{ .Release.Name }}-%d
    endpoints: [https://one.{{ .Values.tier }}.example, https://two.{{ .Values.tier }}.example]
`, i, i))
	}
	return strings.Join(parts[:objects], "---\n")
}

func parts() []string {
	const labels = "\n  labels: {app.kubernetes.io/name: {{ .Release.Name }}, app.kubernetes.io/part-of: bench}\n"
	const name = "metadata:\n  name: {{ .Release.Name }}" + labels
	return []string{
		"apiVersion: apps/v1\nkind: Deployment\n" + name + `spec:
  replicas: 2
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
        args: [--tier={{ .Values.tier }}]
        ports:
        - {name: http, containerPort: 8080}
        env:
        - {name: LEVEL, value: {{ .Values.level | quote }}}
        readinessProbe:
          httpGet: {path: /ready, port: http}
        resources:
          requests: {cpu: 10m, memory: 16Mi}
          limits: {memory: 64Mi}
`,
		"apiVersion: v1\nkind: ServiceAccount\n" + name + "automountServiceAccountToken: false\n",
		"apiVersion: v1\nkind: Service\n" + name + "spec:\n  selector: {app: {{ .Release.Name }}}\n  ports:\n  - {name: http, port: 80, targetPort: http}\n",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n" + name + "rules:\n- {apiGroups: [\"\"], resources: [configmaps], verbs: [get, list, watch]}\n",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\n" + name +
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ .Release.Name }}}\nsubjects:\n- {kind: ServiceAccount, name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}\n",
		"apiVersion: policy/v1\nkind: PodDisruptionBudget\n" + name + "spec:\n  maxUnavailable: 1\n  selector:\n    matchLabels: {app: {{ .Release.Name }}}\n",
		"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n" + name + "spec:\n  podSelector:\n    matchLabels: {app: {{ .Release.Name }}}\n  ingress:\n  - ports:\n    - {port: http}\n",
		"apiVersion: networking.k8s.io/v1\nkind: Ingress\n" + name +
			"spec:\n  rules:\n  - host: {{ .Release.Name }}.{{ .Values.tier }}.example\n    http:\n      paths:\n      - {path: /, pathType: Prefix, backend: {service: {name: {{ .Release.Name }}, port: {name: http}}}}\n",
	}
}
