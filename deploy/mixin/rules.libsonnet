// Rates that several alerts and panels share, by group.
{
  local c = $._config,
  local sumOf(name, window, of=[]) = 'sum by (%s) (rate(%s%s[%s])%s)' % [c.groupLabel, name, $._matchers(of), window, c.groupJoin],
  local sumBy(label, name, window) = 'sum by (%s, %s) (rate(%s%s[%s])%s)' % [c.groupLabel, label, name, $._matchers(), window, c.groupJoin],
  // A router that is scraped by two jobs counts once.
  local ofMembers(name) = 'sum by (%s) (max by (%s, instance) (%s%s%s))' % [c.groupLabel, c.groupLabel, name, $._matchers(), c.groupJoin],
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
            for end in ['acked', 'retried', 'dead_lettered', 'parked', 'spilled']
          ])
        ),
        record('ringfence_mailbox_deliveries:rate5m', sumBy('outcome', 'ringfence_mailbox_deliveries_total', '5m')),
        record('ringfence_ownership_open_partitions:sum', ofMembers('ringfence_ownership_open_partitions')),
        record('ringfence_ownership_is_member:sum', ofMembers('ringfence_ownership_is_member')),
      ],
    }],
  },
}
