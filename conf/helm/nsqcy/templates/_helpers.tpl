{{/* Templates with a dict as their context take `root`, the chart's context, and `name`, a daemon. */}}

{{- define "nsqcy.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "nsqcy.labels" -}}
{{ include "nsqcy.selector" . }}
app.kubernetes.io/part-of: nsq
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "nsqcy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Lines of an INI file. YAML numbers are floats in Helm; the schema admits integers only. */}}
{{- define "nsqcy.options" -}}
{{- range $key, $value := . }}
{{ $key }} = {{ if kindIs "float64" $value }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}
{{- end }}
{{- end }}

{{/* The ConfigMap with a daemon's INI file. `lines`: more options of its section; `after`: more sections. */}}
{{- define "nsqcy.config" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  labels:
    {{- include "nsqcy.labels" . | nindent 4 }}
data:
  {{ .name }}.ini: |
    [{{ .name }}]
    {{- include "nsqcy.options" (index .root.Values .name).config | trim | nindent 4 }}
    {{- with .lines }}
    {{- . | trim | nindent 4 }}
    {{- end }}
    {{- with .after }}
    {{- . | trim | nindent 4 }}
    {{- end }}
{{- end }}

{{/* Pod annotations. The checksum restarts the pods when the INI file changes. */}}
{{- define "nsqcy.annotations" -}}
checksum/config: {{ .config | sha256sum }}
{{- with (index .root.Values .name).podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The start of a pod's spec. */}}
{{- define "nsqcy.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with index .root.Values .name }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "nsqcy.security" -}}
runAsNonRoot: true
runAsUser: 4150
runAsGroup: 4150
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The part of a container that does not depend on the daemon. */}}
{{- define "nsqcy.container" -}}
image: {{ include "nsqcy.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
resources:
  {{- toYaml (index .root.Values .name).resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* A probe. `path`: of the HTTP request. `timing`: from the values. */}}
{{- define "nsqcy.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
{{- with .timing }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "nsqcy.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "nsqcy.selector" . | nindent 8 }}
{{- end }}

{{- define "nsqcy.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  labels:
    {{- include "nsqcy.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ (index .root.Values .name).podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "nsqcy.selector" . | nindent 6 }}
{{- end }}
