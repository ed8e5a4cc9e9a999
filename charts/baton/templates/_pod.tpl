{{/* The pod of a role. */}}
{{- define "baton.pod" -}}
{{- $root := .root }}{{ $pool := .pool }}{{ $values := $root.Values }}{{ $role := .role }}
{{- $certificates := $values.certificates }}
{{- $scheme := ternary "HTTPS" "HTTP" (and (eq $role "router") (ne $values.access.tlsSecret "")) }}
metadata:
  labels:
    {{- include "baton.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $role }}
    {{- with $pool.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with $pool.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  # Above what the hook and the drain take together: then the kubelet kills nobody.
  terminationGracePeriodSeconds: {{ add $pool.preStopSeconds $pool.drainSeconds 15 | int }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $pool.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- range $name := list "resourceClaims" "nodeSelector" "affinity" "tolerations" "topologySpreadConstraints" "priorityClassName" "runtimeClassName" }}
  {{- with index $pool $name }}
  {{ $name }}: {{- if kindIs "string" . }} {{ . }}{{ else }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- end }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ $values.user.id | int64 }}
    runAsGroup: {{ $values.user.group | int64 }}
    fsGroup: {{ $values.user.group | int64 }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: { type: RuntimeDefault }
  {{- if eq $certificates.source "authority" }}
  initContainers:
    # Each start of a pod issues its certificate, so every pod that is ever added has one. Only this
    # container sees the authority's key.
    - name: certificate
      {{- include "baton.image" $root | nindent 6 }}
      command: [baton, certs, issue, {{ $role }}, $(POD_NAME)]
      args: [--folder=/baton/authority, --to=/baton/certificate, --days={{ $certificates.days | int }}]
      env: {{- include "baton.names" . | nindent 8 }}
      resources:
        requests: { cpu: 100m, memory: 256Mi }
        limits: { cpu: "1", memory: 512Mi }
      securityContext: {{- include "baton.confined" (dict "capabilities" list) | nindent 8 }}
      volumeMounts:
        - { name: authority, mountPath: /baton/authority, readOnly: true }
        - { name: certificate, mountPath: /baton/certificate }
        - { name: temporary, mountPath: /tmp }
  {{- end }}
  containers:
    - name: {{ $role }}
      {{- include "baton.image" $root | nindent 6 }}
      command: [baton]
      args:
        {{- if eq $role "router" }}{{ include "baton.router.arguments" . | nindent 8 }}
        {{- else }}{{ include "baton.worker.arguments" . | nindent 8 }}
        {{- end }}
      env:
        {{- include "baton.names" . | nindent 8 }}
        {{- if ne $role "router" }}
        # As many threads as the pod may use: without a limit, as its node has cores.
        - name: CPU_LIMIT
          valueFrom: { resourceFieldRef: { resource: limits.cpu } }
        {{- end }}
        {{- with $values.model.tokenSecret }}
        - name: HF_TOKEN
          valueFrom: { secretKeyRef: { name: {{ . }}, key: token } }
        {{- end }}
        {{- if $values.model.hub }}
        - { name: HF_HOME, value: /baton/hub }
        {{- end }}
        {{- with $pool.env }}{{ toYaml . | nindent 8 }}{{ end }}
      ports:
        - { name: http, containerPort: 8000 }
        {{- if eq $role "router" }}
        - { name: grpc, containerPort: 50051 }
        - { name: registry, containerPort: 7000 }
        {{- else }}
        - { name: peers, containerPort: 7001 }
        {{- end }}
      # The port opens once the model is read.
      startupProbe:
        httpGet: { path: /health, port: http, scheme: {{ $scheme }} }
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: {{ div (add $pool.startupSeconds 1) 2 | int }}
      # Fails once only a new start would help.
      livenessProbe:
        httpGet: { path: /health, port: http, scheme: {{ $scheme }} }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      # Fails where a request that is sent now could not be answered.
      readinessProbe:
        httpGet: { path: /ready, port: http, scheme: {{ $scheme }} }
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      {{- if $pool.preStopSeconds }}
      lifecycle:
        preStop: { exec: { command: [sleep, {{ $pool.preStopSeconds | int | quote }}] } }
      {{- end }}
      {{- with $pool.resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {{- include "baton.confined" $pool | nindent 8 }}
      volumeMounts:
        - { name: certificate, mountPath: /baton/certificate, readOnly: true }
        - { name: temporary, mountPath: /tmp }
        - { name: shared-memory, mountPath: /dev/shm }
        {{- if $values.model.volume }}
        - { name: model, mountPath: /baton/model, readOnly: true }
        {{- else if $values.model.hub }}
        - { name: hub, mountPath: /baton/hub }
        {{- end }}
        {{- if $values.access.apiKeysSecret }}
        - { name: keys, mountPath: /baton/keys, readOnly: true }
        {{- end }}
        {{- if eq $scheme "HTTPS" }}
        - { name: tls, mountPath: /baton/tls, readOnly: true }
        {{- end }}
        {{- with $pool.volumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    {{- if eq $certificates.source "authority" }}
    - name: authority
      secret: { secretName: {{ include "baton.authority" $root }}, defaultMode: 0440 }
    - name: certificate
      emptyDir: { medium: Memory, sizeLimit: 1Mi }
    {{- else }}
    - name: certificate
      csi: {{- include "baton.csi" . | nindent 8 }}
    {{- end }}
    - name: temporary
      emptyDir: { sizeLimit: {{ $values.temporary }} }
    - name: shared-memory
      emptyDir: { medium: Memory, sizeLimit: {{ $values.sharedMemory }} }
    {{- with $values.model.volume }}
    - name: model
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if $values.model.hub }}
    - name: hub
      {{- toYaml ($values.model.cache | default (dict "emptyDir" dict)) | nindent 6 }}
    {{- end }}
    {{- with $values.access.apiKeysSecret }}
    - name: keys
      secret: { secretName: {{ . }}, defaultMode: 0440 }
    {{- end }}
    {{- if eq $scheme "HTTPS" }}
    - name: tls
      secret: { secretName: {{ $values.access.tlsSecret }}, defaultMode: 0440 }
    {{- end }}
    {{- with $pool.volumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}

{{- define "baton.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "baton.names" -}}
- name: POD_NAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- name: POD_IP
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
- { name: HOME, value: /tmp }
{{- end }}

{{- define "baton.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with .capabilities }}
  add: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* The volume of cert-manager's CSI driver: it makes, renews and forgets a pod's certificate. */}}
{{- define "baton.csi" -}}
{{- $values := .root.Values }}{{ $issuer := $values.certificates.issuer }}
{{- $zone := printf "%s.baton" $values.cluster }}
{{- $names := printf "${POD_NAME}.%s.%s" .role $zone }}
{{- if eq .role "router" }}{{ $names = printf "%s,router.%s" $names $zone }}{{ end -}}
driver: csi.cert-manager.io
readOnly: true
volumeAttributes:
  csi.cert-manager.io/issuer-name: {{ required "set certificates.issuer.name, of cert-manager's issuer" $issuer.name }}
  csi.cert-manager.io/issuer-kind: {{ $issuer.kind }}
  csi.cert-manager.io/issuer-group: {{ $issuer.group }}
  csi.cert-manager.io/dns-names: {{ $names | quote }}
  csi.cert-manager.io/duration: {{ printf "%dh" (mul 24 $values.certificates.days) }}
  csi.cert-manager.io/key-usages: digital signature,server auth,client auth
  csi.cert-manager.io/fs-group: {{ $values.user.group | int64 | quote }}
{{- end }}
