// Unit tests for promtool: every alert fires on series that deserve it, with the text
// that people will read, and keeps quiet on series that look much like them.
local mixin = import 'mixin.libsonnet';

local job = 'job="shop/orders"';
local a = job + ', instance="a"';
local b = job + ', instance="b"';
local again = 'job="again", instance="a"';
local s(name, labels, values, more='') = {
  series: '%s{%s}' % [name, labels + (if more == '' then '' else ', ' + more)],
  values: values,
};
local info(labels, group) = s('ringfence_node_info', labels, '1x100', 'group="%s"' % group);
local oneGroup = [info(a, 'orders'), info(b, 'orders')];

// Cases: what is on record minute by minute, when to look, and what $value is then.
// Group alerts have no instance.
local atMember = { job: 'shop/orders', instance: 'a' };
local atGroup = { group: 'orders' };

// A counter that rises in some of the scrapes: 5 minutes after the begin, for so many minutes.
local everyMinute(minutes) = '0x5 0+12x%d %dx20' % [minutes + 1, 12 * (minutes + 1)];  // an outage that begins between two scrapes
local every15s(minutes) = '0x20 0+3x%d %dx60' % [4 * minutes, 12 * minutes];
local outages(name, minutes, more='') = {
  ['an outage of %d minutes, scraped every minute' % minutes]: { minutes: 20, series: [s(name, a, everyMinute(minutes), more)] },
  ['an outage of %d minutes, scraped every 15 s' % minutes]: { minutes: 20, interval: '15s', series: [s(name, a, every15s(minutes), more)] },
};
local started(at) = [s('process_start_time_seconds', a, '%dx20' % at)];

local cases = {
  RingfenceNoMembers: {
    fires: [s('ringfence_ownership_is_member', a, '1 1 0x10'), s('ringfence_ownership_is_member', b, '0x12')],
    quiet: [
      s('ringfence_ownership_is_member', a, '0x12'),
      s('ringfence_ownership_is_member', b, '1x12'),
      s('ringfence_ownership_lease_remaining_seconds', a, '-4x12'),
      s('ringfence_ownership_lease_remaining_seconds', b, '1.5x12'),
    ],
    firesToo: {
      'for members without a lease': [s('ringfence_ownership_is_member', m, '1x12') for m in [a, b]] +
                                     [s('ringfence_ownership_lease_remaining_seconds', m, '1.5 1.5 -9x10') for m in [a, b]],
    },
    labels: atGroup,
  },
  RingfencePartitionsUnowned: {
    fires: [
      s('ringfence_ownership_open_partitions', a, '2000x10'),
      s('ringfence_ownership_open_partitions', b, '2093 0x10'),
      s('ringfence_ownership_is_member', a, '1x10'),
    ],
    quiet: [  // nobody is missing, and then nobody is there, which has an alert of its own
      s('ringfence_ownership_open_partitions', a, '4093x6 0x4'),
      s('ringfence_ownership_is_member', a, '1x6 0x4'),
    ],
    also: {
      'a rollout that moves partitions all the time, and routers that are scraped at different times': [
        s('ringfence_ownership_open_partitions', a, '2050-10x11'),
        s('ringfence_ownership_open_partitions', b, '2043 2043+10x10'),  // a minute later
        s('ringfence_ownership_is_member', a, '1x11'),
      ],
    },
    labels: atGroup,
    value: '2000',
  },
  RingfencePartitionsOwnedTwice: {
    fires: [
      s('ringfence_ownership_open_partitions', a, '4093x10'),
      s('ringfence_ownership_open_partitions', b, '7x10'),
      s('ringfence_ownership_lease_remaining_seconds', a, '1.5x10'),
      s('ringfence_ownership_lease_remaining_seconds', b, '1.5x10'),
    ],
    quiet: [  // the second one has open gates, but no lease
      s('ringfence_ownership_open_partitions', a, '4093x10'),
      s('ringfence_ownership_open_partitions', b, '7x10'),
      s('ringfence_ownership_lease_remaining_seconds', a, '1.5x10'),
      s('ringfence_ownership_lease_remaining_seconds', b, '-1x10'),
    ],
    local whole(labels) = [
      s('ringfence_ownership_open_partitions', labels, '4093x10'),
      s('ringfence_ownership_lease_remaining_seconds', labels, '1.5x10'),
    ],
    also: {
      'two groups of one job': whole(a) + whole(b) + [info(a, 'orders'), info(b, 'payments')],
      'a router that two jobs scrape': whole(a) + whole(again) + [info(a, 'orders'), info(again, 'orders')],
      'a rollout that moves partitions all the time, and routers that are scraped at different times': [
        s('ringfence_ownership_open_partitions', a, '2050 2050-10x10'),  // a minute later
        s('ringfence_ownership_open_partitions', b, '2043+10x11'),
        s('ringfence_ownership_lease_remaining_seconds', a, '1.5x11'),
        s('ringfence_ownership_lease_remaining_seconds', b, '1.5x11'),
      ],
    },
    labels: atGroup,
    value: '4100',
  },
  RingfenceLeaseMarginLow: {
    fires: [s('ringfence_ownership_lease_margin_seconds', a, '1.4 1.4 0.3 1.4 1.4 1.4 0.3 1.4 1.4 0.3 1.4 1.4 1.4 0.3')],
    quiet: [s('ringfence_ownership_lease_margin_seconds', a, '1.4x4 0.6x20')],
    never: {
      'one late Beat': { minutes: 25, series: [s('ringfence_ownership_lease_margin_seconds', a, '1.4x5 0.3 1.4x20')] },
      'a broker outage of some minutes that is over': { minutes: 25, interval: '15s', series: [s('ringfence_ownership_lease_margin_seconds', a, '1.4x20 0.1x12 1.4x80')] },
    },
    at: '13m',
    value: '300ms',
  },
  RingfenceLeaseLapsing: {
    labels: atMember { kind: 'lease_lapsed' },
    fires: [s('ringfence_ownership_notes_total', a, '0 2 4 6x10', 'kind="lease_lapsed"')],
    quiet: [
      s('ringfence_ownership_notes_total', a, '0 1x10', 'kind="lease_lapsed"'),
      s('ringfence_ownership_notes_total', a, '0+5x10', 'kind="epoch"'),
    ],
    never: {
      'two broker restarts, scraped between the evaluations': { minutes: 25, interval: '17s', series: [s('ringfence_ownership_notes_total', a, '7x20 8x10 9x80', 'kind="lease_lapsed"')] },
    },
  },
  RingfenceOwnershipLost: {
    fires: [s('ringfence_ownership_lost_total', a, '0 0 1x10')],
    quiet: [s('ringfence_ownership_lost_total', a, '3x10')] + started(-3600),
    firesToo: { 'before the first scrape': { series: [s('ringfence_ownership_lost_total', a, '_ 1x10')] + started(10) } },
  },
  RingfencePartitionsWaiting: {
    fires: [s('ringfence_ownership_waiting_partitions', a, '0 40x10')],
    quiet: [s('ringfence_ownership_waiting_partitions', a, '0 40 0 40 0 40 0 40 0 40 0')],
    value: '40',
  },
  RingfenceOtherSettings: {
    fires: [s('ringfence_forward_other_settings_total', a, '0 1x10'), s('ringfence_membership_other_settings_total', a, '0x10')],
    quiet: [s('ringfence_forward_other_settings_total', a, '3x10'), s('ringfence_membership_other_settings_total', a, '1x10')],
  },
  RingfenceClaimNotHeld: {
    fires: [s('ringfence_claim_held', a, '0x20')],
    quiet: [s('ringfence_claim_held', a, '0x3 1x20')],
    value: '0',
  },
  RingfenceClaimRefused: {
    fires: [s('ringfence_claim_records_total', a, '0 1x10', 'result="refused"')],
    quiet: [s('ringfence_claim_records_total', a, '3x10', 'result="refused"'), s('ringfence_claim_records_total', a, '0+1x10', 'result="confirmed"')],
  },
  RingfenceActsUnreadable: {
    fires: [s('ringfence_act_topic_readable', a, '0x20')],
    quiet: [s('ringfence_act_topic_readable', a, '0x3 1x20')],
    value: '0',
  },
  RingfenceParkLapsed: {
    fires: [s('ringfence_act_lapsed_parks', a, '2x20')],
    quiet: [s('ringfence_act_lapsed_parks', a, '0x3 1 0x20')],
    value: '2',
  },
  RingfenceKeysParked: {
    at: '7h',
    fires: [info(a, 'orders') { values: '1x420' }, s('ringfence_act_parked_keys', a, '2x420')],
    quiet: [info(a, 'orders') { values: '1x420' }, s('ringfence_act_parked_keys', a, '2x200 0 2x220')],
    labels: atGroup,
    value: '2',
  },
  RingfenceTopicsNotConsumed: {
    fires: [s('ringfence_node_topics_not_consumed', a, '2x30')],
    quiet: [s('ringfence_node_topics_not_consumed', a, '2x5 0x30')],
    value: '2',
    at: '20m',
  },
  RingfenceDrainForced: {
    fires: [s('ringfence_ownership_forced_drains_total', a, '0 3x10')],
    quiet: [s('ringfence_ownership_forced_drains_total', a, '3x10')],
  },
  RingfenceDrained: {
    at: '35m',
    fires: [s('ringfence_node_draining', a, '1x40')],
    quiet: [s('ringfence_node_draining', a, '0x10 1x24'), s('ringfence_node_draining', b, '0x40')],
  },
  RingfenceHandoffSlow: {
    fires: [
      s('ringfence_ownership_acquire_seconds_bucket', a, '0+0x10', 'le="8"'),
      s('ringfence_ownership_acquire_seconds_bucket', a, '0+4x10', 'le="16"'),
      s('ringfence_ownership_acquire_seconds_bucket', a, '0+4x10', 'le="+Inf"'),
    ],
    quiet: [
      s('ringfence_ownership_acquire_seconds_bucket', a, '0+4x10', 'le="8"'),
      s('ringfence_ownership_acquire_seconds_bucket', a, '0+4x10', 'le="16"'),
      s('ringfence_ownership_acquire_seconds_bucket', a, '0+4x10', 'le="+Inf"'),
    ],
    labels: atGroup,
    value: '15.92s',
  },
  RingfenceTakeoverSlow: {
    fires: [
      s('ringfence_ownership_takeover_seconds_bucket', a, '0+0x10', 'le="4"'),
      s('ringfence_ownership_takeover_seconds_bucket', a, '0+1x10', 'le="6"'),
      s('ringfence_ownership_takeover_seconds_bucket', a, '0+1x10', 'le="+Inf"'),
    ],
    quiet: [
      s('ringfence_ownership_takeover_seconds_bucket', a, '0+1x10', 'le="4"'),
      s('ringfence_ownership_takeover_seconds_bucket', a, '0+1x10', 'le="+Inf"'),
    ],
    labels: atGroup,
    value: '5.98s',
  },
  RingfenceTakeoversRepeated: {
    fires: [
      s('ringfence_ownership_notes_total', a, '0+1x20', 'kind="takeover"'),
    ],
    quiet: [  // some nodes of the cluster were lost
      s('ringfence_ownership_notes_total', a, '0 4x20', 'kind="takeover"'),
    ],
    never: {
      'five, scraped between the evaluations': { minutes: 25, interval: '17s', series: [s('ringfence_ownership_notes_total', a, '7x20 8x4 9x4 10x4 11x4 12x80', 'kind="takeover"')] },
    },
    labels: atGroup,
    value: '9',
  },
  RingfencePartitionsUneven: {
    fires: [
      s('ringfence_ownership_open_partitions', a, '3800x40'),
      s('ringfence_ownership_open_partitions', b, '293x40'),
    ],
    quiet: [
      s('ringfence_ownership_open_partitions', a, '2500x40'),
      s('ringfence_ownership_open_partitions', b, '1593x40'),
    ],
    at: '35m',
    labels: atGroup,
    value: '3800',
  },
  RingfenceNotExclusive: {
    fires: [s('ringfence_ownership_exclusive', a, '0x10')],
    quiet: [s('ringfence_ownership_exclusive', a, '1x10')],
  },
  RingfenceClockSlewed: {
    fires: [s('ringfence_clock_rate_error_ratio', a, '-0.083x30')],
    quiet: [s('ringfence_clock_rate_error_ratio', a, '-0.0005x30')],
    at: '15m',
    value: '8.3%',
  },
  RingfenceInvariantFailed: {
    fires: [s('ringfence_invariant_failures_total', a, '0 1x10')],
    quiet: [s('ringfence_invariant_failures_total', a, '0x10')] + started(10),
    firesToo: {
      'before the first scrape': { series: [s('ringfence_invariant_failures_total', a, '_ 1x10')] + started(10) },
      'before the router has restarted': { series: [s('ringfence_invariant_failures_total', a, '0 0 1 0x10')] + started(190) },
    },
  },
  RingfenceHandlersOverlapped: {
    fires: [s('ringfence_audit_overlaps_total', a, '0 1x10')],
    quiet: [s('ringfence_audit_overlaps_total', a, '2x10'), s('ringfence_audit_undecided_total', a, '0+3x10', 'reason="clocks"')] + started(-3600),
    firesToo: { 'before the first scrape': { series: [s('ringfence_audit_overlaps_total', a, '_ 2x10')] + started(10) } },
  },
  RingfenceMembershipDisagrees: {
    fires: [s('ringfence_membership_members', a, '2x10'), s('ringfence_membership_members', b, '3x10')],
    quiet: [s('ringfence_membership_members', a, '2 2 3x10'), s('ringfence_membership_members', b, '3x10')],
    also: {
      'a rollout, in which the routers are scraped at different times': [
        s('ringfence_membership_members', a, '3 4 3 4 3 4 3 4 3 4 3'),
        s('ringfence_membership_members', b, '4 3 4 3 4 3 4 3 4 3 4'),
      ],
    },
    labels: atGroup,
  },
  RingfenceAlone: {
    labels: atMember + atGroup,
    fires: [s('ringfence_membership_seeds_only_self', a, '1x10'), s('ringfence_membership_seeds_only_self', b, '0x10')],
    quiet: [s('ringfence_membership_seeds_only_self', a, '1x10')],  // a group of one is in order
  },
  RingfenceGossipUnhealthy: {
    fires: [s('ringfence_membership_health_score', a, '2x20')],
    quiet: [s('ringfence_membership_health_score', a, '2x6 0 2x12')],
    also: { 'a router that has just begun': [s('ringfence_membership_health_score', a, '_x14 2x5')] },
    at: '15m',
  },
  RingfencePeerUnreachable: {
    labels: atMember { result: 'failed' },
    fires: [s('ringfence_forward_connects_total', a, '0+6x15', 'result="failed"')],
    quiet: [s('ringfence_forward_connects_total', a, '0+6x2 12x15', 'result="failed"'), s('ringfence_forward_connects_total', a, '0+6x15', 'result="ok"')],
    never: outages('ringfence_forward_connects_total', 3, 'result="failed"'),
    at: '12m',
  },
  RingfenceRelaying: {
    labels: atMember { path: 'relay' },
    fires: [s('ringfence_forward_events_sent_total', a, '0+6x15', 'path="relay"')],
    quiet: [s('ringfence_forward_events_sent_total', a, '0x15', 'path="relay"'), s('ringfence_forward_events_sent_total', a, '0+6x15', 'path="peer"')],
    never: outages('ringfence_forward_events_sent_total', 3, 'path="relay"'),
  },
  RingfenceControlLogFailing: {
    fires: [
      s('ringfence_controllog_appends_total', a, '0+90x10', 'record="beat", result="ok"'),
      s('ringfence_controllog_appends_total', a, '0+30x10', 'record="beat", result="failed"'),
    ],
    quiet: [
      s('ringfence_controllog_appends_total', a, '0+120x10', 'record="beat", result="ok"'),
      s('ringfence_controllog_appends_total', a, '0+1x10', 'record="beat", result="failed"'),
    ],
    firesToo: {
      'while an outage lasts, scraped every 15 s': {
        interval: '15s',
        series: [
          s('ringfence_controllog_appends_total', a, '0+30x20 630x40', 'record="beat", result="ok"'),
          s('ringfence_controllog_appends_total', a, '0x20 0+10x40', 'record="beat", result="failed"'),
        ],
        value: '100%',
      },
    },
    never: {
      'the restart of a broker, scraped every 15 s': {
        minutes: 15,
        interval: '15s',
        series: [
          s('ringfence_controllog_appends_total', a, '0+30x20 600+0x3 600+30x40', 'record="beat", result="ok"'),
          s('ringfence_controllog_appends_total', a, '0x20 10 20 30 40x40', 'record="beat", result="failed"'),
        ],
      },
      'the restart of a broker, scraped every minute': {
        minutes: 15,
        series: [
          s('ringfence_controllog_appends_total', a, '0+120x5 660 720 840+120x20', 'record="beat", result="ok"'),
          s('ringfence_controllog_appends_total', a, '0x5 20 40x20', 'record="beat", result="failed"'),
        ],
      },
    },
    value: '25%',
  },
  RingfenceControlLogSlow: {
    fires: [
      s('ringfence_controllog_append_duration_seconds_bucket', a, '0+0x15', 'le="0.512"'),
      s('ringfence_controllog_append_duration_seconds_bucket', a, '0+100x15', 'le="1.024"'),
      s('ringfence_controllog_append_duration_seconds_bucket', a, '0+100x15', 'le="+Inf"'),
    ],
    quiet: [
      s('ringfence_controllog_append_duration_seconds_bucket', a, '0+100x15', 'le="0.008"'),
      s('ringfence_controllog_append_duration_seconds_bucket', a, '0+100x15', 'le="+Inf"'),
    ],
    never: {
      'a broker that is slow for three minutes': {
        minutes: 20,
        interval: '15s',
        series: [
          s('ringfence_controllog_append_duration_seconds_bucket', a, '0+30x20 600x12 630+30x60', 'le="0.25"'),
          s('ringfence_controllog_append_duration_seconds_bucket', a, '0+30x20 600x12 630+30x60', 'le="0.5"'),
          s('ringfence_controllog_append_duration_seconds_bucket', a, '0+30x94', 'le="1"'),
          s('ringfence_controllog_append_duration_seconds_bucket', a, '0+30x94', 'le="+Inf"'),
        ],
      },
    },
    labels: atGroup,
    value: '1.019s',
  },
  RingfenceControlLogTorn: {
    labels: atMember { result: 'torn' },
    fires: [s('ringfence_controllog_checks_total', a, '0 1x10', 'result="torn"')],
    firesToo: { 'before the first scrape': { series: [s('ringfence_controllog_checks_total', a, '_ 1x10', 'result="torn"')] + started(10) } },
    quiet: [s('ringfence_controllog_checks_total', a, '0x10', 'result="torn"'), s('ringfence_controllog_checks_total', a, '0+1x10', 'result="contiguous"')],
  },
  RingfenceControlLogBadRecords: {
    fires: [s('ringfence_controllog_bad_records_total', a, '0 1x10', 'reason="group"')],
    quiet: [s('ringfence_controllog_bad_records_total', a, '7x10', 'reason="group"')],
  },
  RingfenceOldestEventHigh: {
    fires: [s('ringfence_source_oldest_unsettled_seconds', a, '0+60x15')],
    quiet: [s('ringfence_source_oldest_unsettled_seconds', a, '250x15')],
    at: '12m',
    value: '12m 0s',
  },
  RingfenceUnsettledAtLimit: {
    fires: [s('ringfence_source_unsettled', a, '19000x15'), s('ringfence_source_unsettled_bytes', a, '19000000x15')],
    firesToo: { 'by large events': [s('ringfence_source_unsettled', a, '600x15'), s('ringfence_source_unsettled_bytes', a, '260000000x15')] },
    quiet: [s('ringfence_source_unsettled', a, '17000x15'), s('ringfence_source_unsettled_bytes', a, '200000000x15')],
    at: '12m',
  },
  RingfencePinnedEventsHigh: {
    fires: [s('ringfence_source_pinned_events', a, '30000x15')],
    quiet: [s('ringfence_source_pinned_events', a, '20000x15')],
    value: '30000',
  },
  RingfenceAllowanceNearlyUsed: {
    fires: [s('ringfence_source_allowance_used_ratio', a, '0.8x20')],
    quiet: [s('ringfence_source_allowance_used_ratio', a, '0.7x20')],
    at: '15m',
    value: '80%',
  },
  RingfenceSpilling: {
    fires: [s('ringfence_source_spilled_total', a, '0+30x30')],
    quiet: [s('ringfence_source_spilled_total', a, '0+30x5 150x25')],
    at: '25m',
  },
  RingfenceRedeliveryStorm: {
    fires: [
      s('ringfence_source_received_total', a, '0+600x20', 'kind="fresh"'),
      s('ringfence_source_received_total', b, '0+200x20', 'kind="joined"'),
      s('ringfence_source_received_total', b, '0+200x20', 'kind="repeated"'),
    ],
    quiet: [
      s('ringfence_source_received_total', a, '0+600x20', 'kind="fresh"'),
      s('ringfence_source_received_total', b, '0+50x20', 'kind="repeated"'),
      s('ringfence_source_received_total', b, '0+600x20', 'kind="unreadable"'),  // encrypted or broken, and received once
    ],
    at: '18m',
    labels: atGroup,
    value: '40%',
  },
  RingfenceSubscriptionSetBack: {
    fires: [s('ringfence_reader_set_back_total', a, '0x4 1x10'), s('ringfence_reader_set_back_total', b, '0x4 2x10')],
    quiet: [s('ringfence_reader_set_back_total', a, '2x10'), s('ringfence_reader_set_back_total', b, '0x10')],
    labels: atGroup,
  },
  RingfenceAcksFailing: {
    fires: [s('ringfence_source_ack_failures_total', a, '0 1x10')],
    quiet: [s('ringfence_source_ack_failures_total', a, '1x10')],
  },
  RingfenceCopiesFailing: {
    fires: [s('ringfence_source_copy_failures_total', a, '0+1x15')],
    quiet: [s('ringfence_source_copy_failures_total', a, '0 1x15')],
    never: outages('ringfence_source_copy_failures_total', 3),
    at: '12m',
  },
  RingfenceBrokenEntries: {
    fires: [s('ringfence_reader_broken_entries_total', a, '0 1x10')],
    quiet: [s('ringfence_reader_broken_entries_total', a, '1x10')] + started(-3600),
    firesToo: { 'before the first scrape': { series: [s('ringfence_reader_broken_entries_total', a, '_ 1x10')] + started(10) } },
  },
  RingfenceAckHoles: {
    fires: [s('ringfence_source_ack_holes', a, '8001x20')],
    quiet: [s('ringfence_source_ack_holes', a, '8000x20')],
    at: '10m',
    value: '8.001k',
  },
  RingfenceTimersPending: {
    fires: [s('ringfence_timers_pending', a, '5001x20')],
    quiet: [s('ringfence_timers_pending', a, '5000x20')],
    at: '10m',
    value: '5.001k',
  },
  RingfenceTimersUndelayed: {
    fires: [s('ringfence_timers_undelayed_total', a, '0+1x15')],
    quiet: [s('ringfence_timers_undelayed_total', a, '5x15')],
    firesToo: { 'for the first timer': { at: '3m', series: [s('ringfence_timers_undelayed_total', a, '0 0 2 3x15')] } },
    at: '12m',
  },
  RingfenceReservedKeysNear: {
    fires: [s('ringfence_ownership_reserved_keys', a, '821x10')],
    quiet: [s('ringfence_ownership_reserved_keys', a, '820x10')],
    at: '5m',
    labels: atGroup,
    value: '821',
  },
  RingfenceSchedulesNotPublished: {
    fires: [s('ringfence_schedule_arms_total', a, '0+2x6 _ _ 18+2x11', 'result="failed"')],  // and two scrapes failed
    never: outages('ringfence_schedule_arms_total', 3, 'result="failed"'),
    quiet: [  // one that failed when the router began, and many that did not
      s('ringfence_schedule_arms_total', a, '0 1x15', 'result="failed"'),
      s('ringfence_schedule_arms_total', a, '0+2x15', 'result="confirmed"'),
    ],
    at: '15m',
  },
  RingfenceTopicPartitionUnread: {
    fires: [s('ringfence_source_discovery_failures_total', a, '0+1x20')],
    quiet: [s('ringfence_source_discovery_failures_total', a, '0 1x20')],
    never: outages('ringfence_source_discovery_failures_total', 3),
    at: '15m',
  },
  RingfenceDeadLetters: {
    fires: [s('ringfence_source_dead_lettered_total', a, '0+1x20'), s('ringfence_source_dead_lettered_total', b, '0+2x20')],
    quiet: [s('ringfence_source_dead_lettered_total', a, '9x20')],
    at: '15m',
    labels: atGroup,
    value: '30',
  },
  RingfenceHandlersFailing: {
    fires: [
      s('ringfence_mailbox_deliveries_total', a, '0+60x20', 'outcome="done"'),
      s('ringfence_mailbox_deliveries_total', a, '0+30x20', 'outcome="retried"'),
      s('ringfence_mailbox_deliveries_total', a, '0+30x20', 'outcome="crashed"'),
    ],
    quiet: [  // a handoff returns deliveries, and nobody failed
      s('ringfence_mailbox_deliveries_total', a, '0+60x20', 'outcome="done"'),
      s('ringfence_mailbox_deliveries_total', a, '0+600x20', 'outcome="returned"'),
    ],
    at: '18m',
    labels: atGroup,
    value: '50%',
  },
  RingfenceMailboxNearlyFull: {
    fires: [s('ringfence_mailbox_bytes', a, '268435456x10')],
    quiet: [s('ringfence_mailbox_bytes', a, '200000000x10')],
    value: '256Mi',
  },
  RingfenceMailboxesFull: {
    fires: [s('ringfence_forward_full_keys', a, '3x20')],
    quiet: [s('ringfence_forward_full_keys', a, '3x8 0 3x10')],
    at: '18m',
    value: '3',
  },
  RingfenceNoWorkers: {
    fires: [s('ringfence_app_workers', a, '4 0x10')],
    quiet: [s('ringfence_app_workers', a, '4 0 0 4x10')],
  },
  RingfenceWorkersRefused: {
    fires: [s('ringfence_app_streams_refused_total', a, '0 1x10', 'code="InvalidArgument"')],
    quiet: [s('ringfence_app_streams_refused_total', a, '2x10', 'code="InvalidArgument"')],
  },
  RingfenceLateResults: {
    labels: atMember { reason: 'late' },
    fires: [s('ringfence_app_results_ignored_total', a, '0+1x20', 'reason="late"')],
    quiet: [s('ringfence_app_results_ignored_total', a, '0+1x20', 'reason="unknown"')],
    at: '18m',
    value: '15',
  },
  RingfenceVersionsDiffer: {
    fires: [s('ringfence_build_info', a, '1x90', 'version="v1"'), s('ringfence_build_info', b, '1x90', 'version="v2"')],
    quiet: [s('ringfence_build_info', a, '1x30', 'version="v1"'), s('ringfence_build_info', a, '_x30 1x60', 'version="v2"'), s('ringfence_build_info', b, '1x90', 'version="v2"')],
    at: '80m',
    labels: atGroup,
    value: '2',
  },
  RingfenceCertificateEnds: {
    fires: [s('ringfence_tls_certificate_expiry_timestamp_seconds', a, '900000x10', 'listener="app"'), s('ringfence_tls_certificate_expiry_timestamp_seconds', a, '87000x10', 'listener="peer"')],
    quiet: [s('ringfence_tls_certificate_expiry_timestamp_seconds', a, '900000x10', 'listener="peer"')],
    at: '10m',
    value: '1d 0h 0m 0s',
  },
  RingfenceCredentialsUnusable: {
    fires: [s('ringfence_tls_reloads_total', a, '0x3 1x10', 'listener="peer", result="failed"'), s('ringfence_membership_key_reloads_total', a, '0x20', 'result="failed"')],
    quiet: [s('ringfence_tls_reloads_total', a, '0x3 1x10', 'listener="peer", result="ok"'), s('ringfence_membership_key_reloads_total', a, '1x20', 'result="failed"')],
  },
  RingfenceTurnedAway: {
    fires: [s('ringfence_listener_rejected_total', a, '0+2x20', 'listener="peer", reason="handshake"'), s('ringfence_listener_rejected_total', a, '0+1x20', 'listener="admin", reason="token"')],
    quiet: [s('ringfence_listener_rejected_total', a, '0+1x20', 'listener="peer", reason="handshake"')],
    at: '18m',
    value: '45',
  },
  RingfenceForgedEnds: {
    fires: [s('ringfence_handover_ids_total', a, '0x3 20x10', 'result="unproven"'), s('ringfence_source_copies_refused_total', a, '0x20', 'reason="altered"'), s('ringfence_mailbox_mistaken_events_total', a, '0x20')],
    quiet: [s('ringfence_handover_ids_total', a, '0x3 20x10', 'result="ahead"'), s('ringfence_source_copies_refused_total', a, '0x3 5x10', 'reason="no_id"'), s('ringfence_mailbox_mistaken_events_total', a, '3x20')],
  },
};

local alerts = std.flattenArrays([group.rules for group in mixin.prometheusAlerts.groups]);

// What Prometheus makes of the templates, once it knows where it happens.
local expanded(text, case) = std.foldl(
  function(text, pair) std.strReplace(text, pair[0], pair[1]),
  [
    ['{{ $labels.group }}', 'orders'],
    ['{{ $labels.instance }}', 'a'],
  ] + [
    ['{{ $value%s }}' % how, std.get(case, 'value', 'a value that the test does not tell')]
    for how in ['', ' | humanize', ' | humanize1024', ' | humanizeDuration', ' | humanizePercentage']
  ],
  text
);

local tests(alert) =
  local case = cases[alert.alert];
  local test(name, series, expected) = {
    name: '%s %s' % [alert.alert, name],
    interval: '1m',
    input_series: series + (if std.length([one for one in series if std.startsWith(one.series, 'ringfence_node_info')]) > 0 then [] else oneGroup),
    alert_rule_test: [{ eval_time: std.get(case, 'at', '9m'), alertname: alert.alert, exp_alerts: expected }],
  };
  local firedWith(case) = [{
    exp_labels: alert.labels + std.get(case, 'labels', atMember),
    exp_annotations: {
      [name]: expanded(alert.annotations[name], case)
      for name in std.objectFields(alert.annotations)
    },
  }];
  local fired = firedWith(case);
  // Of { series, and optionally interval, at and value }.
  local other(name, one, looks) = test(name, one.series, []) { interval: std.get(one, 'interval', '1m'), alert_rule_test: looks };
  [
    test('fires', case.fires, fired),
    test('keeps quiet', case.quiet, []),
  ] + [
    if std.isArray(case.firesToo[how]) then test('fires ' + how, case.firesToo[how], fired)
    else local one = case.firesToo[how]; other('fires ' + how, one, [
      { eval_time: std.get(one, 'at', std.get(case, 'at', '9m')), alertname: alert.alert, exp_alerts: firedWith(case + one) },
    ])
    for how in std.objectFields(std.get(case, 'firesToo', {}))
  ] + [
    other('never fires: ' + why, case.never[why], [
      { eval_time: '%dm' % minute, alertname: alert.alert, exp_alerts: [] }
      for minute in std.range(1, case.never[why].minutes)
    ])
    for why in std.objectFields(std.get(case, 'never', {}))
  ] + [
    test('keeps quiet: ' + why, case.also[why], [])
    for why in std.objectFields(std.get(case, 'also', {}))
  ];

assert std.set([alert.alert for alert in alerts]) == std.set(std.objectFields(cases)) :
       'in tests.libsonnet, every alert needs a case, and every case an alert: ' +
       std.setDiff(std.set([alert.alert for alert in alerts]), std.set(std.objectFields(cases))) +
       std.setDiff(std.set(std.objectFields(cases)), std.set([alert.alert for alert in alerts]));

{
  rule_files: ['alerts.yaml', 'rules.yaml'],
  evaluation_interval: '1m',
  tests: std.flattenArrays([tests(alert) for alert in alerts]) + [{
    name: 'each end of an event counts as settled',
    interval: '1m',
    input_series: oneGroup + [
      s('ringfence_source_%s_total' % end, a, '0+60x20')
      for end in ['acked', 'retried', 'dead_lettered', 'parked', 'spilled']
    ],
    promql_expr_test: [{
      expr: 'group:ringfence_source_settled:rate5m',
      eval_time: '15m',
      exp_samples: [{ labels: 'group:ringfence_source_settled:rate5m{group="orders"}', value: 5 }],
    }],
  }, {
    name: 'a pod with the address of an earlier one is of its group',
    interval: '1m',
    input_series: [
      info(a + ', pod="%s"' % pod, 'orders')
      for pod in ['old', 'new']
    ] + [s('ringfence_ownership_open_partitions', a, '4093x20', 'pod="%s"' % pod) for pod in ['old', 'new']],
    promql_expr_test: [{
      expr: 'group:ringfence_ownership_open_partitions:sum',
      eval_time: '5m',
      exp_samples: [{ labels: 'group:ringfence_ownership_open_partitions:sum{group="orders"}', value: 4093 }],
    }],
  }],
}
