{{/*
What every process of Turngate has. Each takes (dict "root" $ "process" "api|worker|migrate" "settings" DICT), where
settings are those of the process, chart's own first.
*/}}

{{- define "turngate.pod.security" -}}
automountServiceAccountToken: false
# Kubernetes would set variables such as TURNGATE_API_PORT=tcp://… for the services of the namespace.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {{ .seccomp | default (dict "type" "RuntimeDefault") | toJson }}
{{- end -}}

{{- define "turngate.container.security" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "turngate.spread" -}}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "turngate.selector" $ | nindent 8 }}
  {{- end }}
{{- end -}}

{{- define "turngate.env" -}}
{{- $values := .root.Values -}}
{{- $process := .process -}}
{{- $own := dict "TURNGATE_DATA_DIR" "/data/turngate" -}}
{{- if ne $process "migrate" -}}
{{- $_ := set $own "TEMPORAL_ADDRESS" (required "set temporal.address to HOST:PORT of Temporal's frontend" $values.temporal.address) -}}
{{- $_ := set $own "TEMPORAL_NAMESPACE" $values.temporal.namespace -}}
{{- with $values.publicUrl }}{{ $_ := set $own "TURNGATE_PUBLIC_URL" . }}{{ end -}}
{{- if $values.workspaces.existingClaim }}{{ $_ := set $own "TURNGATE_WORKSPACES" $values.workspaces.mountPath }}{{ end -}}
{{- if $values.metrics.enabled -}}
{{- $_ := set $own "TURNGATE_METRICS_HOST" "0.0.0.0" -}}
{{- $_ := set $own "TURNGATE_METRICS_PORT" $values.metrics.port -}}
{{- end -}}
{{- end -}}
{{- if and (eq $process "api") (hasKey $values.files "TURNGATE_AUDIT_KEY_FILE") -}}
{{- $_ := required "set audit.existingClaim: the signed lines need a volume that outlives the pod" $values.audit.existingClaim }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- $_ := set $own "TURNGATE_AUDIT_HEADS" (printf "%s/$(POD_NAME).heads" $values.audit.mountPath) -}}
{{- end -}}
{{- range $name, $secret := $values.secrets }}{{ if has $process $secret.processes -}}
{{- $_ := set $own (printf "%s_FILE" $name) (printf "/run/secrets/turngate/%s" $name) -}}
{{- end }}{{ end -}}
{{- range $name, $file := $values.files }}{{ if has $process $file.processes -}}
{{- $_ := set $own $name (printf "/etc/turngate/%s" $name) -}}
{{- end }}{{ end -}}
{{- range $name, $value := mergeOverwrite (deepCopy $values.settings) (deepCopy (.settings | default dict)) $own (.more | default dict) }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- range $name, $secret := $values.secretEnv }}{{ if has $process $secret.processes }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $secret.existingSecret }}, key: {{ $secret.key }}}}
{{- end }}{{ end }}
{{- end -}}

{{- define "turngate.sources" -}}
{{- $process := .process -}}
{{- range $name, $each := .of }}{{ if has $process $each.processes }}
{{- if $each.configMap }}
- configMap: {name: {{ $each.configMap }}, items: [{key: {{ $each.key }}, path: {{ $name }}}]}
{{- else }}
- secret: {name: {{ $each.existingSecret | default $each.secret }}, items: [{key: {{ $each.key }}, path: {{ $name }}}]}
{{- end }}
{{- end }}{{ end }}
{{- end -}}

{{- define "turngate.volumes" -}}
{{- $values := .root.Values -}}
- name: state
  emptyDir: {sizeLimit: 256Mi}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- with include "turngate.sources" (dict "of" $values.secrets "process" .process) }}
- name: secrets
  projected:
    defaultMode: 0440
    sources: {{- . | nindent 6 }}
{{- end }}
{{- with include "turngate.sources" (dict "of" $values.files "process" .process) }}
- name: files
  projected:
    defaultMode: 0440
    sources: {{- . | nindent 6 }}
{{- end }}
{{- if and $values.workspaces.existingClaim (ne .process "migrate") }}
- name: workspaces
  persistentVolumeClaim: {claimName: {{ $values.workspaces.existingClaim }}}
{{- end }}
{{- if and (eq .process "api") $values.audit.existingClaim }}
- name: audit
  persistentVolumeClaim: {claimName: {{ $values.audit.existingClaim }}}
{{- end }}
{{- end -}}

{{- define "turngate.mounts" -}}
{{- $values := .root.Values -}}
- {name: state, mountPath: /data}
- {name: tmp, mountPath: /tmp}
{{- if include "turngate.sources" (dict "of" $values.secrets "process" .process) }}
- {name: secrets, mountPath: /run/secrets/turngate, readOnly: true}
{{- end }}
{{- if include "turngate.sources" (dict "of" $values.files "process" .process) }}
- {name: files, mountPath: /etc/turngate, readOnly: true}
{{- end }}
{{- if and $values.workspaces.existingClaim (ne .process "migrate") }}
- {name: workspaces, mountPath: {{ $values.workspaces.mountPath }}, readOnly: {{ eq .process "api" }}}
{{- end }}
{{- if and (eq .process "api") $values.audit.existingClaim }}
- {name: audit, mountPath: {{ $values.audit.mountPath }}}
{{- end }}
{{- end -}}

{{- define "turngate.image.of" -}}
image: {{ include "turngate.image" (dict "image" .Values.image "default" .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{- define "turngate.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "turngate.annotations" -}}
{{- if .Values.metrics.enabled }}
annotations:
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ .Values.metrics.port | quote }}
  prometheus.io/path: /metrics
{{- end }}
{{- end -}}
