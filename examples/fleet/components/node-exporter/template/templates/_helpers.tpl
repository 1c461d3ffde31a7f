{{- define "node-exporter.selector" -}}
app.kubernetes.io/name: node-exporter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "node-exporter.labels" -}}
{{ include "node-exporter.selector" . }}
app.kubernetes.io/component: metrics
{{- end }}
