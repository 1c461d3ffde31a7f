{{- define "chart.labels" -}}
{{ include "chart.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "chart.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "chart.settings" -}}
{{- range $key, $value := .Values.settings }}
{{ $key }}: {{ $value | toString | quote }}
{{- end }}
{{- end }}

{{/* The pod of one workload: (dict "root" $ "name" NAME "workload" WORKLOAD). */}}
{{- define "chart.pod" -}}
{{- $root := .root -}}
{{- $w := .workload -}}
metadata:
  labels:
    {{- include "chart.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .name }}
  annotations:
    checksum/config: {{ include "chart.settings" $root | sha256sum }}
    {{- with $root.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ $root.Release.Name }}
  {{- with $root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    seccompProfile: {type: RuntimeDefault}
  {{- with $root.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if not $w.perNode }}
  topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "chart.selector" $root | nindent 8 }}
        app.kubernetes.io/component: {{ $.name }}
  {{- end }}
  {{- end }}
  containers:
  - name: {{ .name }}
    image: {{ (index $root.Values.images $w.image).ref }}
    imagePullPolicy: {{ $root.Values.pullPolicy }}
    args:
    - --config=/etc/{{ $root.Chart.Name }}/settings.yaml
    - --log-level={{ $root.Values.logLevel }}
    {{- range $w.args }}
    - {{ tpl . $root | quote }}
    {{- end }}
    ports:
    {{- range $name, $port := $w.ports }}
    - name: {{ $name }}
      containerPort: {{ $port }}
      protocol: TCP
    {{- end }}
    env:
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    - name: GOMEMLIMIT
      valueFrom: {resourceFieldRef: {resource: limits.memory}}
    {{- range $key, $value := $root.Values.env }}
    - name: {{ $key }}
      value: {{ $value | quote }}
    {{- end }}
    readinessProbe:
      httpGet: {path: /readyz, port: metrics}
    livenessProbe:
      httpGet: {path: /healthz, port: metrics}
      initialDelaySeconds: 15
      failureThreshold: {{ default 5 $w.failures }}
    {{- with merge (dict) (default (dict) $w.resources) $root.Values.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    volumeMounts:
    - name: config
      mountPath: /etc/{{ $root.Chart.Name }}
      readOnly: true
    - name: tmp
      mountPath: /tmp
  volumes:
  - name: config
    configMap: {name: {{ $root.Release.Name }}}
  - name: tmp
    emptyDir: {sizeLimit: 256Mi}
{{- end }}
