#!/usr/bin/env bash
#
# Builds a tool, unless that was done before, and prints where it is:
#
#   $(tools/tool.sh helm) lint deploy/helm/orders
#
# Those for Go code are pinned in tools/go.mod, each other one in a module of its own, tools/NAME.mod, since their dependencies do not agree.
# `go tool` ignores GOFLAGS, and would compile the standard library once more.

set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:-}
tags=
case $name in
compose) package=github.com/compose-spec/compose-go/v2/cmd ;; # checks a file as `docker compose config` does
cyclonedx-gomod) package=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod ;;
goreleaser) package=github.com/goreleaser/goreleaser/v2 ;;
govulncheck) package=golang.org/x/vuln/cmd/govulncheck ;;
grpcurl) package=github.com/fullstorydev/grpcurl/cmd/grpcurl ;;
helm) package=helm.sh/helm/v4/cmd/helm ;;
jsonnet) package=github.com/google/go-jsonnet/cmd/jsonnet ;;
jsonnetfmt) package=github.com/google/go-jsonnet/cmd/jsonnetfmt ;;
kubeconform) package=github.com/yannh/kubeconform/cmd/kubeconform ;;
kube-score) package=github.com/zegl/kube-score/cmd/kube-score ;;
golangci-lint) package=github.com/golangci/golangci-lint/v2/cmd/golangci-lint ;;
benchstat) package=golang.org/x/perf/cmd/benchstat ;;
protoc-gen-go) package=google.golang.org/protobuf/cmd/protoc-gen-go ;;
protoc-gen-go-grpc) package=google.golang.org/grpc/cmd/protoc-gen-go-grpc ;;
promtool)
	package=github.com/prometheus/prometheus/cmd/promtool
	tags=remove_all_sd # or it compiles the clients of every cloud there is
	;;
kube-apiserver | kubectl) package=k8s.io/kubernetes/cmd/$name ;;
etcd) package=go.etcd.io/etcd/server/v3 ;;
*)
	echo "usage: tools/tool.sh benchstat|compose|cyclonedx-gomod|golangci-lint|goreleaser|govulncheck|grpcurl|helm|jsonnet|jsonnetfmt|kubeconform|kube-score|promtool|protoc-gen-go|protoc-gen-go-grpc|kube-apiserver|kubectl|etcd" >&2
	exit 2
	;;
esac
modfile=tools/$name.mod
case $name in
benchstat | golangci-lint | protoc-gen-*) modfile=tools/go.mod ;;
jsonnetfmt) modfile=tools/jsonnet.mod ;;
kube-apiserver | kubectl) modfile=tools/kubernetes.mod ;;
esac

# `go tool` would do, but it knows no tags. An unchanged tool is not linked again.
bin=${XDG_CACHE_HOME:-$HOME/.cache}/ringfence/bin
mkdir -p "$bin"
GOWORK=off "${GO:-go}" build -modfile="$modfile" -tags="$tags" -o "$bin/$name" "$package"
echo "$bin/$name"
