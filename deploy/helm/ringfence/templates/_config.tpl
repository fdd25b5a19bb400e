{{/* router.yaml: your config, under what only this chart can know. */}}
{{- define "ringfence.config" -}}
{{- $own := dict
  "node" (dict "group" (include "ringfence.group" .))
  "gossip" (dict "seeds" (list (printf "dns+%s-gossip.%s.svc:16652" (include "ringfence.fullname" .) .Release.Namespace)))
  "drain" (dict "timeout" (printf "%ds" (int .Values.ringfence.drain.seconds)))
-}}
{{- $_ := include "ringfence.doors" (dict "own" $own "values" .Values.ringfence) -}}
{{- $config := merge $own (deepCopy .Values.ringfence.config) -}}
{{- $pulsar := default dict $config.pulsar -}}
{{- if not $pulsar.topics }}{{ fail "ringfence.config.pulsar.topics is not set: which topics shall be consumed?" }}{{ end -}}
{{- if not $pulsar.subscription }}{{ fail "ringfence.config.pulsar.subscription is not set: which subscription do the routers share?" }}{{ end -}}
{{- range $path := list "pulsar.token" "gossip.encryption_keys" "admin.token" "admin.drain_token" -}}
{{- $at := splitList "." $path -}}
{{- if dig (first $at) (last $at) "" $config }}{{ fail (printf "ringfence.config.%s would be readable in the ConfigMap: use ringfence.secrets or ringfence.secretEnv" $path) }}{{ end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/*
Adds to `own` who gets in: the files of ringfence.secrets, and the drain. Kubernetes asks for probes and hooks at
the address of the pod, so the admin page cannot be on loopback.
*/}}
{{- define "ringfence.doors" -}}
{{- $own := .own -}}
{{- $s := .values.secrets -}}
{{- $dir := "/etc/ringfence-secrets" -}}
{{- $admin := dict "listen" "0.0.0.0:16653" "drain_open" (empty .values.drain.token) -}}
{{- if $s.adminToken.secretName }}{{ $_ := set $admin "token_file" (printf "%s/admin-token/%s" $dir $s.adminToken.key) }}{{ end -}}
{{- $_ := set $own "admin" $admin -}}
{{- /* What has no Secret is in the clear, and says so. */ -}}
{{- $_ := set $admin "insecure" true -}}
{{- if not $s.peerTLS.secretName }}{{ $_ := set $own "peer" (dict "insecure" true) }}{{ end -}}
{{- if not $s.gossipKeys.secretName }}{{ $_ := set $own.gossip "insecure" true }}{{ end -}}
{{- with $s.peerTLS -}}
{{- if .secretName -}}
{{- if not .name }}{{ fail "ringfence.secrets.peerTLS.name is not set: without it everybody would get in to whom the CA has given a certificate" }}{{ end -}}
{{- $at := printf "%s/peer-tls" $dir -}}
{{- $_ := set $own "peer" (dict "tls" (dict "cert_file" (printf "%s/tls.crt" $at) "key_file" (printf "%s/tls.key" $at) "ca_file" (printf "%s/ca.crt" $at) "name" .name)) -}}
{{- end -}}
{{- end -}}
{{- if $s.gossipKeys.secretName }}{{ $_ := set $own.gossip "encryption_keys_file" (printf "%s/gossip-keys/%s" $dir $s.gossipKeys.key) }}{{ end -}}
{{- $pulsar := dict -}}
{{- if $s.pulsarToken.secretName }}{{ $_ := set $pulsar "token_file" (printf "%s/pulsar-token/%s" $dir $s.pulsarToken.key) }}{{ end -}}
{{- with $s.pulsarTLS -}}
{{- if .secretName -}}
{{- $at := printf "%s/pulsar-tls" $dir -}}
{{- $tls := dict "ca_file" (printf "%s/ca.crt" $at) -}}
{{- if .clientCertificate }}{{ $tls = merge $tls (dict "cert_file" (printf "%s/tls.crt" $at) "key_file" (printf "%s/tls.key" $at)) }}{{ end -}}
{{- $_ := set $pulsar "tls" $tls -}}
{{- end -}}
{{- end -}}
{{- if $pulsar }}{{ $_ := set $own "pulsar" $pulsar }}{{ end -}}
{{- end -}}

{{/* The Secrets that are mounted, as lines "folder secret". */}}
{{- define "ringfence.secretMounts" -}}
{{- range $folder, $value := dict "peer-tls" "peerTLS" "gossip-keys" "gossipKeys" "admin-token" "adminToken" "pulsar-token" "pulsarToken" "pulsar-tls" "pulsarTLS" -}}
{{- with (index $.Values.ringfence.secrets $value).secretName }}
{{ $folder }} {{ . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Everything beside your Deployment. Include it once, in a file of its own. */}}
{{- define "ringfence.resources" -}}
{{ include "ringfence.configMap" . }}
---
{{ include "ringfence.gossipService" . }}
{{- if .Values.ringfence.podDisruptionBudget.enabled }}
---
{{ include "ringfence.podDisruptionBudget" . }}
{{- end }}
{{- if .Values.ringfence.networkPolicy.enabled }}
---
{{ include "ringfence.networkPolicy" . }}
{{- end }}
{{- if .Values.ringfence.podMonitor.enabled }}
---
{{ include "ringfence.podMonitor" . }}
{{- end }}
{{- end -}}

{{- define "ringfence.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "ringfence.fullname" . }}-router
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "ringfence.labels" . | nindent 4 }}
data:
  router.yaml: |
    {{- include "ringfence.config" . | nindent 4 }}
{{- end -}}

{{/*
Routers are ready when they are members, and become members by finding each other here: so the addresses of
pods that are not ready belong in.
*/}}
{{- define "ringfence.gossipService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "ringfence.fullname" . }}-gossip
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "ringfence.labels" . | nindent 4 }}
spec:
  type: ClusterIP
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "ringfence.selectorLabels" . | nindent 4 }}
  ports:
    - name: tcp-gossip
      port: 16652
      targetPort: gossip
      protocol: TCP
    - name: udp-gossip
      port: 16652
      targetPort: gossip-udp
      protocol: UDP
    - name: grpc-peer
      port: 16651
      targetPort: peer
      protocol: TCP
{{- end -}}

{{- define "ringfence.podDisruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "ringfence.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "ringfence.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .Values.ringfence.podDisruptionBudget.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "ringfence.selectorLabels" . | nindent 6 }}
{{- end -}}

{{- define "ringfence.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "ringfence.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "ringfence.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "ringfence.selectorLabels" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    # The other routers of the group. The kubelet of the node always gets in, for probes and hooks.
    - from:
        - podSelector:
            matchLabels:
              {{- include "ringfence.selectorLabels" . | nindent 14 }}
      ports:
        - {port: 16651, protocol: TCP}
        - {port: 16652, protocol: TCP}
        - {port: 16652, protocol: UDP}
    {{- with .Values.ringfence.networkPolicy.monitoringFrom }}
    - from:
        {{- toYaml . | nindent 8 }}
      ports:
        - {port: 16653, protocol: TCP}
    {{- end }}
    {{- with .Values.ringfence.networkPolicy.extraIngress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  egress:
    - to:
        - podSelector:
            matchLabels:
              {{- include "ringfence.selectorLabels" . | nindent 14 }}
      ports:
        - {port: 16651, protocol: TCP}
        - {port: 16652, protocol: TCP}
        - {port: 16652, protocol: UDP}
    - to:
        - namespaceSelector: {}
      ports:
        - {port: 53, protocol: TCP}
        - {port: 53, protocol: UDP}
    - ports:
        {{- range .Values.ringfence.networkPolicy.pulsarPorts }}
        - {port: {{ . }}, protocol: TCP}
        {{- end }}
      {{- with .Values.ringfence.networkPolicy.pulsarTo }}
      to:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- with .Values.ringfence.networkPolicy.extraEgress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "ringfence.podMonitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ include "ringfence.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "ringfence.labels" . | nindent 4 }}
    {{- with .Values.ringfence.podMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "ringfence.selectorLabels" . | nindent 6 }}
  podMetricsEndpoints:
    - port: admin
      path: /metrics
      interval: {{ .Values.ringfence.podMonitor.interval }}
{{- end -}}
