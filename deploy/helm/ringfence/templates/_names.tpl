{{/*
Your chart includes these templates with its own root context; values are those under `ringfence:`.
*/}}

{{- define "ringfence.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels by which the members of the group find each other: on your pods and in your selector. */}}
{{- define "ringfence.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "ringfence.labels" -}}
{{ include "ringfence.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "ringfence.group" -}}
{{- default (include "ringfence.fullname" .) .Values.ringfence.group -}}
{{- end -}}

{{- define "ringfence.image" -}}
{{- with .Values.ringfence.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ required "ringfence.image.tag or ringfence.image.digest is not set" .tag }}
{{- end -}}
{{- end -}}
{{- end -}}
