{{- define "coredns.selector" -}}
app.kubernetes.io/name: coredns
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "coredns.labels" -}}
{{ include "coredns.selector" . }}
app.kubernetes.io/component: dns
{{- end }}
