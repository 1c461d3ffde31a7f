package addons

import (
	"fmt"
	"strings"
)

// ObjectsOfSmall is the number of objects in [Small].
const ObjectsOfSmall = 4

// Small is a template of an add-on without pods. All its objects are in its namespace. The only
// value, level, is a field of the Deployment.
const Small = `apiVersion: v1
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

// Mixed returns a template with the given number of objects: first a Deployment, then other kinds,
// then ConfigMaps. The value level is one field of the Deployment. The value tier is in many
// objects.
func Mixed(objects int) string {
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
