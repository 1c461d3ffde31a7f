{{- define "asi-proxy.selector" -}}
app.kubernetes.io/name: asi-proxy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "asi-proxy.labels" -}}
{{ include "asi-proxy.selector" . }}
app.kubernetes.io/component: proxy
{{- end }}
