{{- define "turngate.name" -}}
{{- if contains .Chart.Name .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{/* Labels by which pods are selected. (dict "root" $ "component" "api") */}}
{{- define "turngate.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- if .part }}
turngate.dev/part: {{ .part }}
{{- end }}
{{- end -}}

{{- define "turngate.labels" -}}
{{ include "turngate.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* repository@digest, else repository:tag. (dict "image" … "default" TAG) */}}
{{- define "turngate.image" -}}
{{- if .image.digest -}}{{ .image.repository }}@{{ .image.digest }}
{{- else -}}{{ .image.repository }}:{{ required (printf "name a tag or a digest of the image %s" .image.repository) (.image.tag | default .default) }}{{- end -}}
{{- end -}}
