{{- define "baton.name" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ $name }}{{ end -}}
{{- end }}

{{- define "baton.selector" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "baton.authority" -}}
{{ .Values.certificates.authoritySecret | default (printf "%s-authority" (include "baton.name" .)) }}
{{- end }}

{{/* The options of a process as arguments, one a line: of the maps in `from`, later ones first. */}}
{{- define "baton.options" -}}
{{- $all := dict }}
{{- range .from }}{{ $all = mergeOverwrite $all (deepCopy .) }}{{ end }}
{{- range $name, $value := $all }}
{{- if kindIs "bool" $value }}{{ if $value }}
- --{{ $name }}{{ end }}
{{- else if eq $name "metric-aliases" }}
- {{ printf "--%s=%s" $name (kindIs "slice" $value | ternary (join "," $value) $value) | quote }}
{{- else if kindIs "slice" $value }}{{ range $value }}
- {{ printf "--%s=%v" $name . | quote }}{{ end }}
{{- else if kindIs "float64" $value }}
- {{ printf "--%s=%s" $name (toJson $value) | quote }}
{{- else if not (kindIs "invalid" $value) }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}{{ end }}
{{- end }}

{{/* How a process finds the model. */}}
{{- define "baton.model" -}}
{{- $model := .Values.model }}
{{- if and $model.volume $model.hub }}{{ fail "set model.volume or model.hub, not both" }}{{ end }}
{{- if $model.volume }}
- --model={{ clean (printf "/baton/model/%s" $model.path) }}
{{- else if $model.hub }}
- --model={{ $model.hub }}
{{- end }}
{{- end }}

{{/* Who may call a process. */}}
{{- define "baton.access" -}}
{{- if .Values.access.apiKeysSecret }}
- --api-keys=/baton/keys/keys.json
{{- else if .Values.access.insecure }}
- --insecure
{{- else }}
{{- fail "set access.apiKeysSecret, or access.insecure to let everybody call who reaches the pods" }}
{{- end }}
{{- end }}
