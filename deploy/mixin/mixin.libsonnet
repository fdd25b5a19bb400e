// Ringfence's monitoring mixin: recording rules, alerts and dashboards.
//
// Other mixins import this file and overlay _config; `make generate` renders it as it
// stands into rendered/.
(import 'config.libsonnet') +
(import 'rules.libsonnet') +
(import 'alerts.libsonnet') +
(import 'dashboards.libsonnet')
