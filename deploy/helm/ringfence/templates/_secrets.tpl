{{/* The Secrets that are mounted in the router, as a map from folder to Secret. */}}
{{- define "ringfence.secretMounts" -}}
{{- $full := include "ringfence.fullname" . -}}
{{- range $folder, $value := dict "peer-tls" "peerTLS" "gossip-keys" "gossipKeys" "admin-token" "adminToken" "admin-tls" "adminTLS" "app-token" "appToken" "pulsar-token" "pulsarToken" "pulsar-tls" "pulsarTLS" }}
{{- $secret := index $.Values.ringfence.secrets $value }}
{{- $issuer := dig "issuer" "name" "" $secret }}
{{- if and $secret.secretName (or $issuer $secret.generate) }}{{ fail (printf "ringfence.secrets.%s has a secretName, and shall be made by this chart: leave one of them out" $value) }}{{ end }}
{{- if $secret.secretName }}
{{ $folder }}: {{ $secret.secretName | quote }}
{{- else if or $issuer $secret.generate }}
{{ $folder }}: {{ printf "%s-%s" $full $folder | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The Secrets that this chart makes, as a map from Secret to key. */}}
{{- define "ringfence.generated" -}}
{{- $full := include "ringfence.fullname" . -}}
{{- range $folder, $value := dict "gossip-keys" "gossipKeys" "admin-token" "adminToken" "app-token" "appToken" }}
{{- $secret := index $.Values.ringfence.secrets $value }}
{{- if $secret.generate }}
{{ printf "%s-%s" $full $folder }}: {{ $secret.key | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
A Secret with 32 random bytes in base64. One that is there stays as it is, whatever was put in since, so an upgrade
changes no key. Where the cluster cannot be asked each rendering would have a new key: there it has to be given.
*/}}
{{- define "ringfence.generatedSecret" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $found := lookup "v1" "Secret" $namespace .secret -}}
{{- if not (or $found (lookup "v1" "Secret" $namespace "")) -}}
{{- fail (printf "the Secret %s cannot be generated here, since `helm template` and tools that use it ask no cluster whether it is there, and would make another one each time: make it yourself, with the key %s, name it in ringfence.secrets by secretName, and leave out generate" .secret .key) -}}
{{- end -}}
{{- if and $found (not (hasKey (default dict $found.data) .key)) }}{{ fail (printf "the Secret %s is there and has no key %s" .secret .key) }}{{ end -}}
apiVersion: v1
kind: Secret
metadata:
  name: {{ .secret }}
  namespace: {{ $namespace | quote }}
  labels:
    {{- include "ringfence.labels" .root | nindent 4 }}
type: Opaque
data:
  {{- if $found }}
  {{- toYaml $found.data | nindent 2 }}
  {{- else }}
  {{ .key | quote }}: {{ randBytes 32 | b64enc }}
  {{- end }}
{{- end -}}

{{/* The name in the certificates of all members. */}}
{{- define "ringfence.peerName" -}}
{{- $tls := .Values.ringfence.secrets.peerTLS -}}
{{- if $tls.name -}}
{{- $tls.name -}}
{{- else if dig "issuer" "name" "" $tls -}}
{{- printf "%s-router.%s.svc" (include "ringfence.fullname" .) .Release.Namespace -}}
{{- else -}}
{{- fail "ringfence.secrets.peerTLS.name is not set: without it any certificate of the CA would be accepted" -}}
{{- end -}}
{{- end -}}

{{- define "ringfence.peerCertificate" -}}
{{- $tls := .Values.ringfence.secrets.peerTLS -}}
{{- $name := include "ringfence.peerName" . -}}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ include "ringfence.fullname" . }}-peer-tls
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- include "ringfence.labels" . | nindent 4 }}
spec:
  secretName: {{ include "ringfence.fullname" . }}-peer-tls
  {{- if contains "://" $name }}
  uris: [{{ $name | quote }}]
  {{- else }}
  dnsNames: [{{ $name | quote }}]
  {{- end }}
  usages: [digital signature, server auth, client auth]
  privateKey: {algorithm: ECDSA, size: 256, rotationPolicy: Always}
  duration: {{ $tls.issuer.duration }}
  issuerRef:
    {{- with $tls.issuer }}
    name: {{ .name | quote }}
    kind: {{ .kind | quote }}
    group: {{ .group | quote }}
    {{- end }}
{{- end -}}

{{/* How probes and hooks ask the admin page. The kubelet does not check the certificate. */}}
{{- define "ringfence.adminScheme" -}}
{{- $ours := hasKey (include "ringfence.secretMounts" . | fromYaml) "admin-tls" -}}
{{- ternary "HTTPS" "HTTP" (or $ours (dig "admin" "tls" "cert_file" "" .Values.ringfence.config | empty | not)) -}}
{{- end -}}
