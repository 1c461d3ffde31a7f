{{- define "keelson.selector" -}}
app.kubernetes.io/name: keelson
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "keelson.labels" -}}
{{ include "keelson.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: keelson
{{- end }}
