package main

import (
	"net/http"
	"strings"

	"github.com/keelson-io/keelson/lab/chaos/proxy"
)

// breakages returns the ways in which Keelson can't know the complete desired state or
// the complete live state.
func breakages() []breakage {
	return append(brokenGit(), brokenAnswers()...)
}

func brokenGit() []breakage {
	template := func(c *component, name string) string { return "components/" + c.name + "/template/" + name }
	add := func(name, content string) func(*component, map[string]string) {
		return func(c *component, files map[string]string) { files[template(c, name)] = content }
	}
	remove := func(name string) func(*component, map[string]string) { return add(name, "") }
	all := func(c *component) string { return template(c, "templates/all.yaml") }
	return []breakage{
		{name: "a template fails", edit: add("templates/zz.yaml", `{{ fail "not today" }}`)},
		{name: "a template calls what is not there", edit: add("templates/zz.yaml", `{{ include "undefined" . }}`)},
		{name: "a template needs a value", edit: add("templates/zz.yaml", `{{ required "a value is missing" .Values.nothing }}`)},
		{name: "a template ends in the middle", edit: add("templates/zz.yaml", "{{ if true }}\n")},
		{name: "a template renders to no YAML", edit: add("templates/zz.yaml", "a: b: c\n")},
		{name: "a template renders an object without a kind", edit: add("templates/zz.yaml", "apiVersion: v1\nmetadata: {name: x}\n")},
		{name: "a template renders an object without a name", edit: add("templates/zz.yaml", "apiVersion: v1\nkind: ConfigMap\n")},
		{name: "two objects have one name", edit: func(c *component, files map[string]string) {
			files[template(c, "templates/zz.yaml")] = c.old[0].manifest
		}},
		{name: "all templates render to nothing", edit: func(c *component, files map[string]string) {
			files[all(c)] = "{{- if .Values.enabled }}\n" + files[all(c)] + "{{- end }}\n"
		}},
		{name: "there is no template", edit: remove("templates/all.yaml")},
		{name: "half of a template is cut off", edit: func(c *component, files map[string]string) {
			text := files[all(c)]
			files[all(c)] = text[:strings.LastIndex(text, "name: ")] + "name: [cut"
		}},
		{name: "there is no chart", edit: remove("Chart.yaml")},
		{name: "the chart can't be read", edit: add("Chart.yaml", "name: [\n")},
		{name: "values break the schema", edit: add("values.schema.json", `{"type": "object", "required": ["size"]}`)},
		{name: "the component has an unknown field", edit: func(c *component, files map[string]string) {
			files["components/"+c.name+"/component.yaml"] += "prune: true\n"
		}},
		{name: "the component is gone", edit: func(c *component, files map[string]string) {
			for name := range files {
				if strings.HasPrefix(name, "components/"+c.name+"/") {
					files[name] = ""
				}
			}
		}},
		{name: "the version is not there", edit: func(c *component, files map[string]string) {
			files["clusters/"+target+"/"+c.name+".yaml"] = apiVersion + "kind: MetaConfig\nversion: v9.9.9\n"
		}},
		{name: "the meta-config can't be read", edit: func(c *component, files map[string]string) {
			files["clusters/"+target+"/"+c.name+".yaml"] += "values: {a: [\n"
		}},
	}
}

// answers returns a decision function with the verdict v for requests that match.
func answers(v proxy.Verdict, match func(proxy.Request) bool) func(proxy.Request) proxy.Verdict {
	return func(r proxy.Request) proxy.Verdict {
		if match(r) {
			return v
		}
		return proxy.Verdict{}
	}
}

func brokenAnswers() []breakage {
	unavailable := proxy.Verdict{Fault: proxy.Status, Code: http.StatusServiceUnavailable}
	// The answer of an intermediary, such as a load balancer without a backend. It doesn't
	// come from an API server, and doesn't prove that an object is absent.
	notFound := proxy.Verdict{Fault: proxy.Status, Code: http.StatusNotFound, Plain: true}
	path := func(p string) func(proxy.Request) bool {
		return func(r proxy.Request) bool { return strings.HasPrefix(r.Path, p) && r.Resource == "" }
	}
	resource := func(name string) func(proxy.Request) bool {
		return func(r proxy.Request) bool { return r.Resource == name && r.Namespace != systemNS && !r.Write() }
	}
	records := func(r proxy.Request) bool { return r.Resource == "secrets" && r.Namespace == systemNS && !r.Write() }
	// In most ways the ConfigMaps that git lost can be read. Keelson must not delete
	// them while it can't read another group.
	return []breakage{
		{name: "groups can't be discovered", fault: answers(unavailable, path("/apis"))},
		{name: "groups are not found", fault: answers(notFound, path("/apis"))},
		{name: "the core group can't be discovered", fault: answers(unavailable, path("/api"))},
		{name: "schemas can't be read", fault: answers(unavailable, path("/openapi"))},
		{name: "ConfigMaps can't be read", fault: answers(unavailable, resource("configmaps"))},
		{name: "ConfigMaps are not found on the way", fault: answers(notFound, resource("configmaps"))},
		{name: "Deployments can't be read", fault: answers(unavailable, resource("deployments"))},
		{name: "Deployments are not found on the way", fault: answers(notFound, resource("deployments"))},
		{name: "Services are forbidden", fault: answers(proxy.Verdict{Fault: proxy.Status, Code: http.StatusForbidden}, resource("services"))},
		{name: "answers break off", fault: answers(proxy.Verdict{Fault: proxy.ResetMidAnswer}, resource("services"))},
		{name: "records can't be read", fault: answers(unavailable, records)},
		{name: "records are not found on the way", fault: answers(notFound, records)},
	}
}
