{{- define "workloads.selector" -}}
app.kubernetes.io/name: workload-controllers
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "workloads.labels" -}}
{{ include "workloads.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: keelson
{{- end }}
