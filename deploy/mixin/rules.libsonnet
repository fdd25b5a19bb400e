// Rates that several alerts and panels share, by group.
{
  local c = $._config,
  local sumOf(name, window, of=[]) = 'sum by (%s) (rate(%s%s[%s]))' % [c.groupLabel, name, $._matchers(of), window],
  local sumBy(label, name, window) = 'sum by (%s, %s) (rate(%s%s[%s]))' % [c.groupLabel, label, name, $._matchers(), window],
  local record(name, expr) = { record: '%s:%s' % [c.groupLabel, name], expr: expr },

  prometheusRules+:: {
    groups+: [{
      name: 'ringfence.rules',
      rules: [
        record('ringfence_source_received:rate5m', sumOf('ringfence_source_received_total', '5m')),
        record(
          'ringfence_source_settled:rate5m',
          std.join('\n  + ', [
            sumOf('ringfence_source_%s_total' % end, '5m')
            for end in ['acked', 'retried', 'dead_lettered', 'spilled']
          ])
        ),
        record('ringfence_mailbox_deliveries:rate5m', sumBy('outcome', 'ringfence_mailbox_deliveries_total', '5m')),
        record('ringfence_ownership_open_partitions:sum', 'sum by (%s) (ringfence_ownership_open_partitions%s)' % [c.groupLabel, $._matchers()]),
        record('ringfence_ownership_is_member:sum', 'sum by (%s) (ringfence_ownership_is_member%s)' % [c.groupLabel, $._matchers()]),
      ],
    }],
  },
}
