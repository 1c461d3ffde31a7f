{{- define "etcd.selector" -}}
app.kubernetes.io/name: etcd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "etcd.labels" -}}
{{ include "etcd.selector" . }}
app.kubernetes.io/component: store
{{- end }}

{{- define "etcd.members" -}}
{{- $members := list }}
{{- range $i := until (int .Values.replicas) }}
{{- $members = append $members (printf "%[1]s-%[2]d=https://%[1]s-%[2]d.%[1]s.%[3]s.svc:2380" $.Release.Name $i $.Release.Namespace) }}
{{- end }}
{{- join "," $members }}
{{- end }}
