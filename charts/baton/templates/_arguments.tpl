{{/* The arguments of each role's command. A worker is named as its pod; so is its certificate. */}}
{{- define "baton.router.arguments" -}}
- router
- --credentials=/baton/certificate
- --internal-host=$(POD_IP)
- --internal-port=7000
- "--host={{ .root.Values.listen }}"
- --http-port=8000
- --grpc-port=50051
- --drain={{ .pool.drainSeconds }}
{{- if .pool.replicas }}
- --routers={{ .pool.replicas }}
{{- end }}
{{- if .root.Values.access.tlsSecret }}
- --ssl-certfile=/baton/tls/tls.crt
- --ssl-keyfile=/baton/tls/tls.key
{{- end }}
{{- include "baton.model" .root }}
{{- include "baton.access" .root }}
{{- include "baton.options" (dict "from" (list .root.Values.options .pool.options)) }}
{{- end }}

{{- define "baton.worker.arguments" -}}
{{- $root := .root }}
{{- $routers := printf "%s-router" (include "baton.name" $root) }}
- worker
- --role={{ .role }}
- --worker-id=$(POD_NAME)
- --credentials=/baton/certificate
- --peer-host=$(POD_IP)
- --peer-port=7001
- "--host={{ $root.Values.listen }}"
- --http=8000
- --drain={{ .pool.drainSeconds }}
{{- range until (int ($root.Values.router.replicas | default 1)) }}
- --router={{ $routers }}-{{ . }}.{{ $routers }}.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}:7000
{{- end }}
{{- include "baton.model" $root }}
{{- include "baton.access" $root }}
{{- $cores := dict "threads" "$(CPU_LIMIT)" }}
{{- include "baton.options" (dict "from" (list $cores $root.Values.options $root.Values.workers.options .pool.options)) }}
{{- end }}
