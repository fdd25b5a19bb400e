{{/* router.yaml: your config, under what only this chart can know. */}}
{{- define "ringfence.config" -}}
{{- $seeds := dig "gossip" "seeds" list .Values.ringfence.config -}}
{{- if kindIs "string" $seeds }}{{ $seeds = splitList "," (nospace $seeds) | compact }}{{ end -}}
{{- $own := dict
  "node" (dict "group" (include "ringfence.group" .))
  "gossip" (dict "seeds" (prepend $seeds (printf "dns+%s-gossip.%s.svc:16652" (include "ringfence.fullname" .) .Release.Namespace)))
  "drain" (dict "timeout" (printf "%ds" (int .Values.ringfence.drain.seconds)))
-}}
{{- $_ := include "ringfence.addCredentials" (dict "own" $own "root" .) -}}
{{- $variables := keys (default dict .Values.ringfence.secretEnv) -}}
{{- range .Values.ringfence.extraEnv }}{{ $variables = append $variables .name }}{{ end -}}
{{- include "ringfence.checkOwn" (dict "own" $own "config" .Values.ringfence.config "variables" $variables "path" "") -}}
{{- if not (has "RINGFENCE__OWNERSHIP__DRAIN_TIMEOUT" $variables) }}{{ include "ringfence.checkDrain" . }}{{ end -}}
{{- $config := merge $own (deepCopy .Values.ringfence.config) -}}
{{- $pulsar := default dict $config.pulsar -}}
{{- if not $pulsar.topics }}{{ fail "ringfence.config.pulsar.topics is not set: which topics shall be consumed?" }}{{ end -}}
{{- if not $pulsar.subscription }}{{ fail "ringfence.config.pulsar.subscription is not set: which subscription do the routers share?" }}{{ end -}}
{{- range $path := list "pulsar.token" "gossip.encryption_keys" "admin.token" "admin.drain_token" -}}
{{- $at := splitList "." $path -}}
{{- if dig (first $at) (last $at) "" $config }}{{ fail (printf "ringfence.config.%s would be readable in the ConfigMap: use ringfence.secrets or ringfence.secretEnv" $path) }}{{ end -}}
{{- end -}}
{{- include "ringfence.checkListeners" (dict "config" $config "secretEnv" (default dict .Values.ringfence.secretEnv)) -}}
{{- toYaml $config -}}
{{- end -}}

{{/*
Fails if a setting that this chart sets has another value in the config, where it would be ignored, or in a variable, which would replace
the chart's value.
*/}}
{{- define "ringfence.checkOwn" -}}
{{- $here := . -}}
{{- range $name, $value := .own -}}
{{- $path := printf "%s.%s" $here.path $name | trimPrefix "." -}}
{{- $theirs := get $here.config $name -}}
{{- if kindIs "map" $value -}}
{{- include "ringfence.checkOwn" (dict "own" $value "config" (default dict $theirs) "variables" $here.variables "path" $path) -}}
{{- else -}}
{{- $variable := printf "RINGFENCE__%s" ($path | replace "." "__" | upper) -}}
{{- if has $variable $here.variables }}{{ fail (printf "%s would replace %s, which this chart sets: leave the variable out" $variable $path) }}{{ end -}}
{{- if and (hasKey $here.config $name) (ne $path "gossip.seeds") (ne (toString $theirs) (toString $value)) -}}
{{- fail (printf "ringfence.config.%s is %v, and this chart sets it to %v: leave it out, or the value of ringfence.secrets that sets it" $path $theirs $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails if the whole drain would be over before its handlers have to be: no router starts with that. */}}
{{- define "ringfence.checkDrain" -}}
{{- $handlers := toString (dig "drain_timeout" "30s" (default dict .Values.ringfence.config.ownership)) -}}
{{- if regexMatch "^([0-9]+h)?([0-9]+m)?([0-9]+s)?$" $handlers -}}
{{- $seconds := 0 -}}
{{- range $unit, $factor := dict "h" 3600 "m" 60 "s" 1 -}}
{{- $seconds = add $seconds (mul $factor (regexFind (printf "[0-9]+%s" $unit) $handlers | trimSuffix $unit | int)) -}}
{{- end -}}
{{- if le (int .Values.ringfence.drain.seconds) (int $seconds) -}}
{{- fail (printf "ringfence.drain.seconds is %d, and ownership.drain_timeout %s: the drain needs more than that" (int .Values.ringfence.drain.seconds) $handlers) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Fails if a listener that other pods reach would be in the clear, and the values do not say so by the word `insecure`.
Without TLS the admin page serves probes, hooks and metrics only, so it needs neither.
*/}}
{{- define "ringfence.checkListeners" -}}
{{- $tls := dig "peer" "tls" "cert_file" "" .config -}}
{{- $insecure := dig "peer" "insecure" false .config -}}
{{- if not (or $tls $insecure) -}}
{{- fail "the port of peers (16651) would be in the clear: set ringfence.secrets.peerTLS.issuer.name to an issuer of cert-manager, or ringfence.secrets.peerTLS.secretName to a Secret with a certificate; or say ringfence.config.peer.insecure=true, and every pod that reaches it can bring events and read them" -}}
{{- end -}}
{{- if and $tls $insecure }}{{ fail "ringfence.config.peer.insecure is true, and there is a certificate for peers: leave one of them out" }}{{ end -}}
{{- $keys := or (dig "gossip" "encryption_keys_file" "" .config) (hasKey .secretEnv "RINGFENCE__GOSSIP__ENCRYPTION_KEYS") -}}
{{- $changesOver := not (dig "gossip" "verify_incoming" true .config) -}}
{{- $insecure = dig "gossip" "insecure" false .config -}}
{{- if and (not $insecure) (or (not $keys) $changesOver) -}}
{{- fail "gossip (16652) would be in the clear: set ringfence.secrets.gossipKeys.secretName to a Secret with keys, or ringfence.secrets.gossipKeys.generate=true; or say ringfence.config.gossip.insecure=true, and every pod that reaches it can speak as a member" -}}
{{- end -}}
{{- if and $keys $insecure (not $changesOver) }}{{ fail "ringfence.config.gossip.insecure is true, and there are keys for gossip: leave one of them out, unless gossip.verify_incoming is false while the group changes over to keys" }}{{ end -}}
{{- if and (dig "admin" "tls" "cert_file" "" .config) (dig "admin" "insecure" false .config) -}}
{{- fail "ringfence.config.admin.insecure is true, and there is a certificate for the admin page: leave one of them out" -}}
{{- end -}}
{{- end -}}

{{/*
Adds to `own` the settings that go with ringfence.secrets, and with the drain. Kubernetes asks for probes and hooks at
the address of the pod, so the admin page cannot be on loopback.
*/}}
{{- define "ringfence.addCredentials" -}}
{{- $own := .own -}}
{{- $s := .root.Values.ringfence.secrets -}}
{{- $mounts := include "ringfence.secretMounts" .root | fromYaml -}}
{{- $dir := "/etc/ringfence-secrets" -}}
{{- $admin := dict "listen" "0.0.0.0:16653" "drain_open" (empty .root.Values.ringfence.drain.token) -}}
{{- if index $mounts "admin-token" }}{{ $_ := set $admin "token_file" (printf "%s/admin-token/%s" $dir $s.adminToken.key) }}{{ end -}}
{{- if index $mounts "admin-tls" }}{{ $_ := set $admin "tls" (dict "cert_file" (printf "%s/admin-tls/tls.crt" $dir) "key_file" (printf "%s/admin-tls/tls.key" $dir)) }}{{ end -}}
{{- $_ := set $own "admin" $admin -}}
{{- if index $mounts "app-token" }}{{ $_ := set $own "app" (dict "token_file" (printf "%s/app-token/%s" $dir $s.appToken.key)) }}{{ end -}}
{{- if index $mounts "peer-tls" -}}
{{- $at := printf "%s/peer-tls" $dir -}}
{{- $_ := set $own "peer" (dict "tls" (dict "cert_file" (printf "%s/tls.crt" $at) "key_file" (printf "%s/tls.key" $at) "ca_file" (printf "%s/ca.crt" $at) "name" (include "ringfence.peerName" .root))) -}}
{{- end -}}
{{- if index $mounts "gossip-keys" }}{{ $_ := set $own.gossip "encryption_keys_file" (printf "%s/gossip-keys/%s" $dir $s.gossipKeys.key) }}{{ end -}}
{{- $pulsar := dict -}}
{{- if index $mounts "pulsar-token" }}{{ $_ := set $pulsar "token_file" (printf "%s/pulsar-token/%s" $dir $s.pulsarToken.key) }}{{ end -}}
{{- if index $mounts "pulsar-tls" -}}
{{- $at := printf "%s/pulsar-tls" $dir -}}
{{- $tls := dict "ca_file" (printf "%s/ca.crt" $at) -}}
{{- if $s.pulsarTLS.clientCertificate }}{{ $tls = merge $tls (dict "cert_file" (printf "%s/tls.crt" $at) "key_file" (printf "%s/tls.key" $at)) }}{{ end -}}
{{- $_ := set $pulsar "tls" $tls -}}
{{- end -}}
{{- if $pulsar }}{{ $_ := set $own "pulsar" $pulsar }}{{ end -}}
{{- end -}}

{{/* Everything beside your Deployment. Include it once, in a file of its own. */}}
{{- define "ringfence.resources" -}}
{{ include "ringfence.configMap" . }}
---
{{ include "ringfence.gossipService" . }}
{{- if dig "issuer" "name" "" .Values.ringfence.secrets.peerTLS }}
---
{{ include "ringfence.peerCertificate" . }}
{{- end }}
{{- range $secret, $key := include "ringfence.generated" . | fromYaml }}
---
{{ include "ringfence.generatedSecret" (dict "root" $ "secret" $secret "key" $key) }}
{{- end }}
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
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- include "ringfence.labels" . | nindent 4 }}
data:
  router.yaml: |
    {{- include "ringfence.config" . | nindent 4 }}
{{- end -}}

{{/*
Routers are ready when they are members, and become members by finding each other here: so the addresses of
pods that are not ready belong in. Target ports are numbers: several releases of Kubernetes find no names of a sidecar's ports
(kubernetes#127958), and the application may have ports of the same names. A service mesh goes by the first part of a port's name.
*/}}
{{- define "ringfence.gossipService" -}}
{{- $config := include "ringfence.config" . | fromYaml -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "ringfence.fullname" . }}-gossip
  namespace: {{ .Release.Namespace | quote }}
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
      targetPort: 16652
      protocol: TCP
    - name: udp-gossip
      port: 16652
      targetPort: 16652
      protocol: UDP
    - name: {{ ternary "tls" "grpc" (dig "peer" "tls" "cert_file" "" $config | empty | not) }}-peer
      port: 16651
      targetPort: 16651
      protocol: TCP
{{- end -}}

{{- define "ringfence.podDisruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "ringfence.fullname" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
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
  name: {{ include "ringfence.fullname" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- include "ringfence.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "ringfence.selectorLabels" . | nindent 6 }}
  policyTypes: [Ingress{{ if .Values.ringfence.networkPolicy.egress }}, Egress{{ end }}]
  ingress:
    # The other routers of the group. The kubelet of the node always gets in, for probes and hooks.
    - from:
        - podSelector:
            matchLabels:
              {{- include "ringfence.selectorLabels" . | nindent 14 }}
        {{- with .Values.ringfence.networkPolicy.peers }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
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
  {{- if .Values.ringfence.networkPolicy.egress }}
  egress:
    # The other routers of the group.
    - to:
        - podSelector:
            matchLabels:
              {{- include "ringfence.selectorLabels" . | nindent 14 }}
        {{- with .Values.ringfence.networkPolicy.peers }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {port: 16651, protocol: TCP}
        - {port: 16652, protocol: TCP}
        - {port: 16652, protocol: UDP}
    {{- with .Values.ringfence.networkPolicy.dnsTo }}
    - to:
        {{- toYaml . | nindent 8 }}
      ports:
        - {port: 53, protocol: TCP}
        - {port: 53, protocol: UDP}
    {{- end }}
    # Pulsar.
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
  {{- end }}
{{- end -}}

{{- define "ringfence.podMonitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ include "ringfence.fullname" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
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
      {{- if eq (include "ringfence.adminScheme" .) "HTTPS" }}
      scheme: https
      tlsConfig:
        insecureSkipVerify: true # pods have no name that a certificate could be for, and what is read is no secret
      {{- end }}
{{- end -}}
