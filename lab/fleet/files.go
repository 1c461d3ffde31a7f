package fleet

import (
	"fmt"
	"slices"
	"strings"
)

const fleetFile = header + `Fleet
name: made-up
danger:
- name: namespaces-stay
  match: {kinds: [Namespace]}
  on: [delete-object]
  effect: deny
  because: made up, as everything here
`

const readme = "# A made-up fleet\n\nMade by `lab fleet`, to measure with.\n"

// layers returns the layer files. They set versions for all clusters, and values by label.
func (p *plan) layers() map[string][]byte {
	out := map[string][]byte{}
	put := func(name, selector string, entries []string) {
		if len(entries) > 0 {
			out["layers/"+name+".yaml"] = []byte(header + "Layer\nclusterSelector: " + selector + "\ncomponents:\n" + strings.Join(entries, ""))
		}
	}
	var all []string
	for i, c := range p.components {
		all = append(all, fmt.Sprintf("  %s:\n    version: %s\n    values:\n      commonLabels: {fleet: made-up, team: team-%d}\n",
			c.name, versionName(c.stable()), i%12))
	}
	put("10-all", "{}", all)
	for i, label := range labels() {
		for n, value := range label.values {
			var entries []string
			for _, c := range p.components {
				if c.axis.has(label.name) {
					entries = append(entries, label.layered(c, value, n))
				}
			}
			selector := fmt.Sprintf("{matchLabels: {%s: %s}}", label.name, value)
			if n%2 == 1 {
				selector = fmt.Sprintf("{matchExpressions: [{key: %s, operator: In, values: [%s]}]}", label.name, value)
			}
			put(fmt.Sprintf("%d0-%s-%s", i+2, label.name, value), selector, entries)
		}
	}
	return out
}

// label is a label of clusters and the values that layers set for it.
type label struct {
	name   string
	values []string
	// set returns the values for a component; n is the index of the label's value.
	set func(c *component, value string, n int) string
}

// labels returns the labels in the order of their layers.
func labels() []label {
	return []label{
		{"provider", providers(), func(_ *component, value string, n int) string {
			return fmt.Sprintf("      nodeSelector: {fleet.example/provider: %s}\n      env: {PROVIDER: %s, DISK_CLASS: %s-%d}\n", value, value, value, n)
		}},
		{"region", regions(), func(c *component, value string, _ int) string {
			return fmt.Sprintf("      settings:\n        region: %s\n        endpoint: https://%s.%s.fleet.example\n", value, c.name, value)
		}},
		{"stage", stages(), func(_ *component, value string, n int) string {
			text := fmt.Sprintf("      replicas: %d\n      podAnnotations: {fleet.example/stage: %s}\n", 1+n, value)
			if value == "testing" {
				return text + "      logLevel: debug\n"
			}
			return text + fmt.Sprintf("      resources:\n        requests: {cpu: %dm, memory: %dMi}\n        limits: {memory: %dMi}\n", 200*n, 256*n, 512*n)
		}},
	}
}

// layered returns the entry of a component in the layer of a label's value.
func (l label) layered(c *component, value string, n int) string {
	text := fmt.Sprintf("  %s:\n", c.name)
	if value == "testing" {
		text += "    version: " + versionName(c.versions-1) + "\n" // the newest
	}
	return text + "    values:\n" + l.set(c, value, n)
}

// stable returns the version that most clusters run: the last but one.
func (c *component) stable() int { return c.versions - 2 }

// clusterFiles adds a cluster's cluster.yaml and its own component files to into.
func (p *plan) clusterFiles(cl *cluster, into map[string][]byte) {
	text := header + fmt.Sprintf("Cluster\nlabels:\n  stage: %s\n  region: %s\n  provider: %s\n  fleet.example/name: %s\nconnection:\n  secret: {name: %s}\n",
		cl.stage, cl.region, cl.provider, cl.name, cl.name)
	if mirrored(cl.region) {
		text += "imageMirrors:\n  quay.io: mirror.asia.fleet.example/quay\n  docker.io: mirror.asia.fleet.example/docker\n"
	}
	folder := "clusters/" + cl.name + "/"
	into[folder+"cluster.yaml"] = []byte(text)
	for _, c := range p.components {
		if v := cl.variants[c.name]; v > 0 {
			into[folder+c.name+".yaml"] = []byte(c.own(cl, v))
		}
	}
}

// own returns the content of a cluster's file for a component. It is the same for all
// clusters with the same variant, unless ownOnly is set.
func (c *component) own(cl *cluster, variant int) string {
	var b strings.Builder
	b.WriteString(header + "MetaConfig\n")
	if variant%9 == 4 {
		b.WriteString("version: " + versionName(c.versions-1) + " # until the others follow\n")
	}
	b.WriteString("values:\n")
	if c.ownOnly {
		fmt.Fprintf(&b, "  settings:\n    cluster: %s\n    shard: %d\n", cl.name, variant)
		return b.String()
	}
	fmt.Fprintf(&b, "  replicas: %d\n  settings:\n    shard: %d\n    option-01: custom-%d\n", 2+variant%5, variant, variant)
	if variant%3 == 0 {
		fmt.Fprintf(&b, "  resources:\n    requests: {cpu: %dm, memory: %dMi}\n    limits: {memory: %dMi}\n", 50*variant, 64+8*variant, 256+16*variant)
	}
	if variant%4 == 1 {
		b.WriteString("  tolerations:\n  - {key: dedicated, operator: Equal, value: infra, effect: NoSchedule}\n")
	}
	names := make([]string, 0, len(c.workloads))
	for _, w := range c.workloads {
		names = append(names, w.name)
	}
	if variant%5 == 2 && slices.Contains(names, "worker") {
		fmt.Fprintf(&b, "  workloads:\n    worker:\n      replicas: %d\n", 3+variant%7)
	}
	return b.String()
}
