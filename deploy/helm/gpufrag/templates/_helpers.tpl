{{- define "gpufrag.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}-restarter
{{- end }}

{{- define "gpufrag.selector" -}}
app.kubernetes.io/name: gpufrag-restarter
app.kubernetes.io/instance: {{ quote .Release.Name }}
{{- end }}

{{- define "gpufrag.labels" -}}
app.kubernetes.io/part-of: gpufrag
app.kubernetes.io/instance: {{ quote .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The restarter's config file: what this chart sets, with the values' config on top. */}}
{{- define "gpufrag.config" -}}
{{- $web := dict "listen_address" ":9837" }}
{{- if .Values.web.existingSecret }}{{ $_ := set $web "config_file" "/etc/gpufrag/web/web.yml" }}{{ end }}
{{- $made := dict
  "web" $web
  "metrics_web" (dict "listen_address" ":9838")
  "auth" (dict "bearer_file" (printf "/etc/gpufrag/auth/%s" .Values.auth.key))
  "policy" (dict "dry_run" .Values.dryRun "namespaces" .Values.allowedNamespaces)
  "circuit" (dict "config_map" (include "gpufrag.name" .))
}}
{{- with .Values.checkpoint }}
{{- if .existingSecret }}{{ $_ := set $made "checkpoint" (dict "token_file" (printf "/etc/gpufrag/checkpoint/%s" .key)) }}{{ end }}
{{- end }}
{{- mergeOverwrite $made (deepCopy .Values.config) | toYaml }}
{{- end }}

{{/* The rules of the Role in each allowed namespace: those of files/permissions.yaml that the targets need. */}}
{{- define "gpufrag.rules" -}}
{{- $verbs := dict }}
{{- range .Files.Get "files/permissions.yaml" | fromYamlArray }}
{{- $row := . }}
{{- $needed := not .targets }}
{{- range .targets }}{{ if has . $.Values.targets }}{{ $needed = true }}{{ end }}{{ end }}
{{- if $needed }}
{{- $key := printf "%s %s" $row.group $row.resource }}
{{- $_ := set $verbs $key (concat (get $verbs $key | default list) $row.verbs | uniq) }}
{{- end }}
{{- end }}
{{- range $key, $granted := $verbs }}
{{- $parts := splitList " " $key }}
- apiGroups: [{{ first $parts | quote }}]
  resources: [{{ last $parts }}]
  verbs: [{{ join ", " $granted }}]
{{- end }}
{{- end }}

{{/* Of a repository, and a digest or a tag. */}}
{{- define "gpufrag.image" -}}
{{ .image.repository }}{{ if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .version }}{{ end }}
{{- end }}

{{- define "gpufrag.ruleFile" -}}
{{ .Values.rules.content | default (.Files.Get "files/rules.yaml") }}
{{- end }}

{{/* Passes the Pod Security Standard restricted. */}}
{{- define "gpufrag.securityContext" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
runAsGroup: 65532
runAsNonRoot: true
runAsUser: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}
