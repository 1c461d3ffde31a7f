{{- define "kube-state-metrics.selector" -}}
app.kubernetes.io/name: kube-state-metrics
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kube-state-metrics.labels" -}}
{{ include "kube-state-metrics.selector" . }}
app.kubernetes.io/component: metrics
{{- end }}
