{{- define "ingress-nginx.selector" -}}
app.kubernetes.io/name: ingress-nginx
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ingress-nginx.labels" -}}
{{ include "ingress-nginx.selector" . }}
app.kubernetes.io/component: ingress
{{- end }}

{{- define "ingress-nginx.controller" -}}
k8s.io/ingress-{{ .Values.ingressClass.name }}
{{- end }}
