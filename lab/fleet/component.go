package fleet

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

// charts holds the templates that charts are made of.
//
//go:embed all:chart
var charts embed.FS

// component is a component of the made-up fleet.
type component struct {
	name      string
	dependsOn []string
	versions  int // number of versions
	workloads []workload
	parts     []string // templates in addition to the common templates
	crds      int
	schema    bool
	large     bool
	// mirrored: the component's images come from a registry that has mirrors.
	mirrored bool
	axis     axis
	// variants is the number of distinct contents of the clusters' files. ownOnly
	// means that each cluster differs from all other clusters.
	variants int
	ownOnly  bool
}

type workload struct {
	name    string
	perNode bool
	ports   int
}

// The name of a component consists of a subject and a role.
func subjects() []string {
	return []string{
		"log", "node", "pod", "cert", "dns", "edge", "gpu", "image", "job", "queue", "secret", "tenant",
		"volume", "policy", "quota", "backup", "trace", "metric", "event", "token",
	}
}

func roles() []string {
	return []string{
		"agent", "exporter", "operator", "proxy", "gateway", "cache", "scheduler", "scaler", "checker",
		"collector", "injector", "rotator", "mirror", "janitor", "router",
	}
}

func maxComponents() int { return len(subjects()) * len(roles()) }

func (p *plan) newComponent(i int) *component {
	c := &component{
		name:     subjects()[i%len(subjects())] + "-" + roles()[i/len(subjects())],
		versions: 3 + p.random.IntN(4),
		schema:   i%2 == 0,
		large:    i%25 == 7,
	}
	pick := func(percent int, part string) {
		if p.random.IntN(100) < percent {
			c.parts = append(c.parts, part)
		}
	}
	pick(60, "network.yaml")
	pick(60, "leader.yaml")
	pick(20, "cleanup.yaml")
	pick(30, "dashboards.yaml")
	names := []string{"controller", "worker", "api", "frontend"}
	n := 1 + p.random.IntN(10)/6
	if c.large {
		n = 4
		c.parts = append(c.parts, "dashboards.yaml", "cleanup.yaml", "leader.yaml")
	}
	if i%10 == 3 || c.large {
		c.crds = 1 + p.random.IntN(4)
		c.parts = append(c.parts, "webhook.yaml")
	}
	for w := range n {
		c.workloads = append(c.workloads, workload{
			name: names[w], perNode: w == 0 && c.crds == 0 && p.random.IntN(4) == 0, ports: 1 + p.random.IntN(3),
		})
	}
	slices.Sort(c.parts)
	c.parts = slices.Compact(c.parts)
	for range p.random.IntN(3) {
		if i > 0 {
			c.dependsOn = append(c.dependsOn, p.components[p.random.IntN(i)].name)
		}
	}
	slices.Sort(c.dependsOn)
	c.dependsOn = slices.Compact(c.dependsOn)
	return c
}

const header = "apiVersion: keelson.io/v1alpha1\nkind: "

// files returns the files of a version. Files that the version doesn't change have the
// same content as before.
func (c *component) files(version int) map[string][]byte {
	out := map[string][]byte{}
	put := func(path, content string) { out["components/"+c.name+"/"+path] = []byte(content) }
	put("component.yaml", c.componentFile())
	put("images.yaml", c.imagesFile(version))
	put("README.md", fmt.Sprintf("# %s\n\nMade up by `lab fleet`.\n", c.name))
	put("template/Chart.yaml", fmt.Sprintf("apiVersion: v2\nname: %s\nversion: %s\nappVersion: %q\ntype: application\ndescription: A made-up component\n",
		c.name, versionName(version)[1:], versionName(version)))
	put("template/values.yaml", c.values(version))
	if c.schema {
		put("template/values.schema.json", chart("values.schema.json"))
	}
	for _, part := range append([]string{"_helpers.tpl", "config.yaml", "rbac.yaml", "workloads.yaml", "services.yaml", "budgets.yaml"}, c.parts...) {
		put("template/templates/"+part, chart(part))
	}
	for i := range c.crds {
		put(fmt.Sprintf("template/crds/%s.yaml", kinds()[i]), c.crd(i))
	}
	if slices.Contains(c.parts, "dashboards.yaml") {
		for i := range c.dashboards() {
			put(fmt.Sprintf("template/dashboards/view-%d.json", i), c.dashboard(i))
		}
	}
	return out
}

// chart returns an embedded file.
func chart(file string) string {
	text, err := charts.ReadFile("chart/" + file)
	if err != nil {
		panic("not embedded: " + file) // all callers name files of the folder
	}
	return string(text)
}

func (c *component) dashboards() int {
	if c.large {
		return 4
	}
	return 1
}

func (c *component) componentFile() string {
	text := header + fmt.Sprintf("Component\nnamespace: %s-system\ndescription: Made up, to measure with\n", c.name)
	if len(c.dependsOn) > 0 {
		text += "dependsOn: [" + strings.Join(c.dependsOn, ", ") + "]\n"
	}
	if c.large {
		text += "timeout: 10m\n"
	}
	return text
}

// host returns the registry of a component's images.
func (c *component) host() string {
	if c.mirrored {
		return "quay.io"
	}
	return "registry.fleet.example"
}

func (c *component) imagesFile(version int) string {
	var b strings.Builder
	b.WriteString(header + "Images\nimages:\n")
	for _, w := range c.workloads {
		fmt.Fprintf(&b, "  %s:\n    repository: %s/%s/%s\n    tag: %s\n", w.name, c.host(), c.name, w.name, versionName(version))
	}
	return b.String()
}

func (c *component) values(version int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Defaults of %s.
replicas: 2
maxUnavailable: 1
pullPolicy: IfNotPresent
logLevel: info
scrape: true
leaderElection: true
priorityClassName: ""
podAnnotations: {}
commonLabels: {}
nodeSelector: {}
tolerations:
- {key: CriticalAddonsOnly, operator: Exists}
env: {}
resources:
  requests: {cpu: 100m, memory: 128Mi}
  limits: {memory: 256Mi}
networkPolicy:
  enabled: true
  from: [monitoring, ingress]
cleanup: {schedule: "17 3 * * *", olderThan: 72h, image: controller}
webhook:
  failurePolicy: Ignore
  kinds: [%s]
rbac:
  rules:
  - {groups: [""], resources: [pods, nodes, services, endpoints], verbs: [get, list, watch]}
  - {groups: [apps], resources: [deployments, daemonsets], verbs: [get, list, watch]}
  - {groups: [%s.fleet.example], resources: ["*"], verbs: ["*"]}
settings:
  release: %d
`, c.name, strings.Join(kinds()[:max(c.crds, 1)], ", "), c.name, version)
	for i := range 6 + 20*boolInt(c.large) {
		fmt.Fprintf(&b, "  option-%02d: %s-%d\n", i, c.name, i*i)
	}
	b.WriteString("workloads:\n")
	for _, w := range c.workloads {
		fmt.Fprintf(&b, "  %s:\n    image: %s\n    perNode: %t\n", w.name, w.name, w.perNode)
		b.WriteString("    args: [\"--cluster={{ .Values.settings.cluster | default \\\"none\\\" }}\", --workers=4]\n    ports:\n      metrics: 9090\n")
		for i, port := range []string{"http", "grpc", "webhook"}[:w.ports] {
			fmt.Fprintf(&b, "      %s: %d\n", port, 8080+i)
		}
	}
	return b.String()
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func kinds() []string { return []string{"claims", "pools", "rules", "targets"} }

// crd returns a custom resource definition with as many fields as a real one: 20, or
// 100 in a large component.
func (c *component) crd(i int) string {
	plural := kinds()[i]
	kind := strings.ToUpper(plural[:1]) + plural[1:len(plural)-1]
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %[1]s.%[2]s.fleet.example
spec:
  group: %[2]s.fleet.example
  scope: %[3]s
  names: {kind: %[4]s, plural: %[1]s, singular: %[5]s}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
`, plural, c.name, map[bool]string{true: "Cluster", false: "Namespaced"}[i%2 == 1], kind, plural[:len(plural)-1])
	for group := range 4 + 16*boolInt(c.large) {
		fmt.Fprintf(&b, "              group%02d:\n                type: object\n                description: How the %s of this group are handled by %s.\n                properties:\n", group, plural, c.name)
		for field := range 5 {
			fmt.Fprintf(&b, "                  field%d:\n                    type: %s\n                    description: What field %d of group %d says, and what it is when it is left out.\n",
				field, []string{"string", "integer", "boolean"}[field%3], field, group)
		}
	}
	b.WriteString("          status:\n            type: object\n            x-kubernetes-preserve-unknown-fields: true\n")
	return b.String()
}

// dashboard returns a dashboard file of a chart. It has 2 to 20 KB.
func (c *component) dashboard(i int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "{\n  \"title\": \"%s %d\",\n  \"panels\": [\n", c.name, i)
	panels := 8 + 60*boolInt(c.large)
	for n := range panels {
		fmt.Fprintf(&b, "    {\"id\": %d, \"type\": \"timeseries\", \"title\": \"Requests of group %d\", \"expr\": \"sum by (code) (rate(%s_requests_total{group=\\\"%d\\\"}[5m]))\", \"height\": 8, \"width\": 12}%s\n",
			n, n, strings.ReplaceAll(c.name, "-", "_"), n, map[bool]string{true: ","}[n < panels-1])
	}
	b.WriteString("  ]\n}\n")
	return b.String()
}
