{
  _config+:: {
    // What picks Ringfence's series out of all others, beside their names; '' for none.
    selector: '',

    // The group of a series: the label that tells it, and what gives that label to a series
    // by its job and instance. Whoever has such a label on all series needs no join: ''.
    // A pod that gets the address of an earlier one has its instance, while Prometheus still has the series of both.
    groupLabel: 'group',
    groupJoin: ' * on (job, instance) group_left (group) max by (job, instance, group) (ringfence_node_info)',

    // Where the runbooks and the dashboards are.
    runbookURL: 'https://github.com/ringfence/router/blob/main/docs/alerts.md',
    dashboardURL: '/d',

    // The limits behind the thresholds. They are the router's defaults: whoever sets
    // others there sets them here as well.
    limits: {
      partitions: 4093,  // not a setting
      clockRate: 0.01,  // not a setting: by how much clocks may differ
      lease: 2,  // ownership.lease, in seconds
      unsettledMax: 20000,  // pulsar.unsettled_max
      unsettledBytesMax: 256 * 1024 * 1024,  // pulsar.unsettled_bytes_max
      pinnedMax: 25000,  // pulsar.spill.pinned_max
      mailboxBytesMax: 256 * 1024 * 1024,  // mailbox.bytes_max
      windowBytesMax: 32 * 1024 * 1024,  // mailbox.window_bytes_max
    },

    // What is bearable depends on the service.
    thresholds: {
      oldestEvent: 300,  // seconds
      failureRatio: 0.1,
      reservedKeys: 820,  // four fifths of the 1,024 that a group takes
      timersPending: 5000,  // half of the brokers' managedLedgerMaxUnackedRangesToPersist
      ackHoles: 8000,  // four fifths of the brokers' managedLedgerMaxUnackedRangesToPersist
      redeliveryRatio: 0.2,
      takeover: 5,  // seconds
      takeovers: 5,  // in 15 minutes
      handoff: 10,  // seconds; a handler that is not finished holds its own key back, rarely its partition
      append: 0.5,  // seconds
      imbalance: 1.5,  // times the average
      certificate: 3 * 24 * 3600,  // seconds; less where certificates live for less than that
      turnedAway: 20,  // in 15 minutes
    },
  },

  // The matchers of a query in braces: what the configuration says, and what the query needs.
  _matchers:: function(of=[])
    local all = [m for m in [$._config.selector] + of if m != ''];
    if all == [] then '' else '{%s}' % std.join(',', all),
}
