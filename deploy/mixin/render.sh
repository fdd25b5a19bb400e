#!/usr/bin/env bash
#
# Renders the mixin into rendered/: rules for Prometheus, dashboards for Grafana, tests for promtool.

set -euo pipefail
cd "$(dirname "$0")"

jsonnet=$(../../tools/tool.sh jsonnet)

# yaml FILE EXPRESSION writes a document that people can read and no hand should edit.
yaml() {
	{
		echo "# Made from the mixin by 'make generate'. Do not edit."
		"$jsonnet" -S -e "std.manifestYamlDoc($2, quote_keys=false, indent_array_in_object=true)"
	} >"rendered/$1"
}

rm -rf rendered
mkdir -p rendered/dashboards
yaml alerts.yaml "(import 'mixin.libsonnet').prometheusAlerts"
yaml rules.yaml "(import 'mixin.libsonnet').prometheusRules"
yaml tests.yaml "import 'tests.libsonnet'"
"$jsonnet" -m rendered/dashboards -e "(import 'mixin.libsonnet').grafanaDashboards" >/dev/null
