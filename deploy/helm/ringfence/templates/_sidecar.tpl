{{/* The item for `initContainers` of your pod. */}}
{{- define "ringfence.sidecar" -}}
{{- $v := .Values.ringfence -}}
{{- include "ringfence.checkMemory" . -}}
- name: ringfence
  image: {{ include "ringfence.image" . | quote }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  restartPolicy: Always # which makes it a sidecar: it starts before the application and ends after it
  args: [run, --config=/etc/ringfence/router.yaml]
  env:
    - name: RINGFENCE__NODE__NAME
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
    - name: RINGFENCE__NODE__ADVERTISE_IP
      valueFrom:
        fieldRef:
          fieldPath: status.podIP
    - name: GOMEMLIMIT
      value: {{ $v.goMemLimit | quote }}
    {{- $theirs := list }}
    {{- range $v.extraEnv }}{{ $theirs = append $theirs .name }}{{ end }}
    {{- if not (has "GOGC" $theirs) }}
    - name: GOGC
      value: "400"
    {{- end }}
    {{- with $v.drain.token }}
    - name: RINGFENCE__ADMIN__DRAIN_TOKEN
      value: {{ . | quote }}
    {{- end }}
    {{- range $name, $ref := $v.secretEnv }}
    - name: {{ $name }}
      valueFrom:
        secretKeyRef:
          name: {{ $ref.name | quote }}
          key: {{ $ref.key | quote }}
    {{- end }}
    {{- with $v.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - {name: peer, containerPort: 16651, protocol: TCP}
    - {name: gossip, containerPort: 16652, protocol: TCP}
    - {name: gossip-udp, containerPort: 16652, protocol: UDP}
    - {name: admin, containerPort: 16653, protocol: TCP}
  # It must not wait for the application, which starts only after it. A restart does not help against a broker outage, and
  # after several restarts the kubelet's pause of up to five minutes would outlast the outage.
  startupProbe:
    httpGet: {path: /startupz, port: admin, scheme: {{ include "ringfence.adminScheme" . }}}
    periodSeconds: 1
    failureThreshold: 900
  readinessProbe:
    httpGet: {path: /readyz, port: admin, scheme: {{ include "ringfence.adminScheme" . }}}
    periodSeconds: 2
    timeoutSeconds: 2
    failureThreshold: 2
  livenessProbe:
    httpGet: {path: /livez, port: admin, scheme: {{ include "ringfence.adminScheme" . }}}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 3
  # The application's hook comes first in what matters. This one is for pods that have lost theirs.
  lifecycle:
    preStop:
      {{- include "ringfence.drainHook" . | nindent 6 }}
  resources:
    {{- toYaml $v.resources | nindent 4 }}
  securityContext:
    {{- toYaml $v.securityContext | nindent 4 }}
  volumeMounts:
    - {name: ringfence-config, mountPath: /etc/ringfence, readOnly: true}
    {{- range $folder, $secret := include "ringfence.secretMounts" . | fromYaml }}
    - {name: ringfence-{{ $folder }}, mountPath: /etc/ringfence-secrets/{{ $folder }}, readOnly: true}
    {{- end }}
    {{- with $v.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Fails if the memory limit would end the router before Go begins to collect harder. */}}
{{- define "ringfence.checkMemory" -}}
{{- $v := .Values.ringfence -}}
{{- with (default dict $v.resources.limits).memory -}}
{{- if le (include "ringfence.bytes" (toString .) | float64) (include "ringfence.bytes" $v.goMemLimit | float64) -}}
{{- fail (printf "ringfence.goMemLimit is %s, and ringfence.resources.limits.memory %v: set goMemLimit to nine tenths of the limit (docs/install.md, Memory)" $v.goMemLimit .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The bytes of a quantity of Kubernetes or of GOMEMLIMIT. */}}
{{- define "ringfence.bytes" -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mulf (trimSuffix $unit . | float64) (get $units (trimSuffix "B" $unit)) -}}
{{- end -}}

{{/*
The `lifecycle` of your application's container. SIGTERM would reach the router only after the application is
gone, which is too late to hand over: so the hook asks for it, and holds the application's own SIGTERM back.
*/}}
{{- define "ringfence.applicationLifecycle" -}}
preStop:
  {{- include "ringfence.drainHook" . | nindent 2 }}
{{- end -}}

{{- define "ringfence.drainHook" -}}
httpGet:
  path: /drain?wait={{ int .Values.ringfence.drain.seconds }}s
  port: 16653
  scheme: {{ include "ringfence.adminScheme" . }}
  {{- $headers := default list .Values.ringfence.drain.headers -}}
  {{- with .Values.ringfence.drain.token }}
  {{- $headers = prepend $headers (dict "name" "Authorization" "value" (printf "Bearer %s" .)) -}}
  {{- end }}
  {{- with $headers }}
  httpHeaders:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* `terminationGracePeriodSeconds` of your pod: the hand-over, the end of the application, and the router's own. */}}
{{- define "ringfence.terminationGracePeriodSeconds" -}}
{{- add (int .Values.ringfence.drain.seconds) (int .Values.ringfence.drain.applicationSeconds) 5 -}}
{{- end -}}

{{/* `env` of your application's container. */}}
{{- define "ringfence.applicationEnv" -}}
- name: RINGFENCE_APP_ENDPOINT
  value: 127.0.0.1:16650
{{- if hasKey (include "ringfence.secretMounts" . | fromYaml) "app-token" }}
- name: RINGFENCE_APP_TOKEN_FILE
  value: /etc/ringfence-secrets/app-token/{{ .Values.ringfence.secrets.appToken.key }}
{{- end }}
{{- end -}}

{{/* Items for `volumeMounts` of your application's container; nothing without ringfence.secrets.appToken. */}}
{{- define "ringfence.applicationVolumeMounts" -}}
{{- if hasKey (include "ringfence.secretMounts" . | fromYaml) "app-token" -}}
- {name: ringfence-app-token, mountPath: /etc/ringfence-secrets/app-token, readOnly: true}
{{- end -}}
{{- end -}}

{{/* Items for `volumes` of your pod. */}}
{{- define "ringfence.volumes" -}}
- name: ringfence-config
  configMap:
    name: {{ include "ringfence.fullname" . }}-router
{{- range $folder, $secret := include "ringfence.secretMounts" . | fromYaml }}
- name: ringfence-{{ $folder }}
  secret:
    secretName: {{ $secret | quote }}
{{- end }}
{{- with .Values.ringfence.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An annotation of your pods, so that they are replaced when the router's settings change. */}}
{{- define "ringfence.podAnnotations" -}}
ringfence.dev/config-checksum: {{ include "ringfence.config" . | sha256sum }}
{{- end -}}
