package addons

import (
	_ "embed"
	"fmt"
	"strings"
)

// ObjectsOfSmall is the number of objects in [Small].
const ObjectsOfSmall = 4

// Small is a template of an add-on without pods. All its objects are in its namespace. The only
// value, level, is a field of the Deployment.
//
//go:embed small.yaml
var Small string

// mixed has the objects of other kinds than ConfigMap.
//
//go:embed mixed.yaml
var mixed string

// Mixed returns a template with the given number of objects: first a Deployment, then other kinds,
// then ConfigMaps. The value level is one field of the Deployment. The value tier is in many
// objects.
func Mixed(objects int) string {
	parts := strings.Split(mixed, "---\n")
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
