local grafana = import 'grafana.libsonnet';

{
  local c = $._config,
  local by = c.groupLabel,
  local one(name, of=[]) = name + $._matchers(['instance=~"$instance"'] + of),  // which are those of the group
  local rate(name, of=[]) = 'rate(%s[$__rate_interval])' % one(name, of),
  local sum(expr, labels=[]) = 'sum by (%s) (%s)' % [std.join(', ', labels), expr],
  local quantile(q, name) = 'histogram_quantile(%g, sum by (le) (%s))' % [q, rate(name + '_bucket')],
  local quantiles(name) = { p50: quantile(0.5, name), p99: quantile(0.99, name) },
  local perRouter(expr) = { '{{instance}}': expr },
  local graph = grafana.graph,
  local stat = grafana.stat,
  local row = grafana.row,
  local dashboard(uid, title, description, rows) = grafana.dashboard(uid, title, description, by, rows),

  grafanaDashboards+:: {
    'ringfence-service.json': dashboard('ringfence-service', 'Ringfence / Service', 'Events of the service, from receipt to end.', [
      row('Now', [
        stat('Received', 'Fresh events.', 'ops', { events: sum(rate('ringfence_source_received_total', ['kind="fresh"'])) }),
        stat('Oldest open event', 'How far behind the slowest key is: the main figure.', 's', { age: 'max(%s)' % one('ringfence_source_oldest_unsettled_seconds') }),
        stat('Members', 'Routers that own partitions.', 'short', { members: sum(one('ringfence_ownership_is_member')) }),
        stat('Open partitions', 'Partitions with an active owner.', 'short', { partitions: sum(one('ringfence_ownership_open_partitions')) }),
      ]),
      row('Events', [
        graph('Received', 'Joined events were already open here; repeated events were already settled here.', 'ops', { '{{kind}}': sum(rate('ringfence_source_received_total'), ['kind']) }),
        graph('How events end', 'Each received event has one end.', 'ops', {
          acked: sum(rate('ringfence_source_acked_total')),
          'retry topic': sum(rate('ringfence_source_retried_total')),
          spilled: sum(rate('ringfence_source_spilled_total')),
          'dead letter topic': sum(rate('ringfence_source_dead_lettered_total')),
          'parking topic': sum(rate('ringfence_source_parked_total')),
        }),
        graph('Handler results', 'Deliveries that ended, by outcome.', 'ops', { '{{outcome}}': sum(rate('ringfence_mailbox_deliveries_total'), ['outcome']) }),
      ]),
      row('Waiting', [
        graph('Oldest open event', 'Since it was received.', 's', perRouter(one('ringfence_source_oldest_unsettled_seconds')), c.thresholds.oldestEvent),
        graph('Open events', 'Received and unfinished. At the limit, reading stops.', 'short', perRouter(one('ringfence_source_unsettled')), c.limits.unsettledMax),
        graph("The broker's allowance", 'Share of the unacked events that the broker allows. A router takes 0.9 at most.', 'percentunit', perRouter(one('ringfence_source_allowance_used_ratio')), 0.75),
        graph('Pinned and spilled', 'Settled events that open events of their batches keep unacked, and open events waiting to be spilled.', 'short', {
          'pinned {{instance}}': one('ringfence_source_pinned_events'),
          'spilling {{instance}}': one('ringfence_source_spilling'),
        }, c.limits.pinnedMax),
      ]),
      row('Times', [
        graph('In the mailbox', 'From the mailbox of the owner to the first delivery.', 's', quantiles('ringfence_mailbox_queue_seconds')),
        graph('In the handler', 'From a delivery to its answer.', 's', quantiles('ringfence_mailbox_handler_seconds')),
        graph('To settle', 'From receipt to the verdict that ends an event.', 's', quantiles('ringfence_pipeline_settle_seconds')),
      ]),
      row('One at a time, in order', [
        graph('Overlaps', 'Pairs of handlers of one key that ran at the same time. Any is one too many.', 'short', perRouter('increase(%s[$__rate_interval])' % one('ringfence_audit_overlaps_total')), 1),
        graph('Not compared', 'Handlings of which the live auditor cannot tell, and former owners that did not report.', 'ops', {
          '{{reason}}': sum(rate('ringfence_audit_undecided_total'), ['reason']),
          unheard: sum(rate('ringfence_audit_unheard_total')),
        }),
        graph('Out of order', 'Share of the first handlings that began after a later event of their key and topic partition, by cause: at least so many.', 'percentunit', {
          '{{cause}}': '%s / on () group_left () %s' % [sum(rate('ringfence_order_inversions_total'), ['cause']), sum(rate('ringfence_order_first_handlings_total'))],
        }),
      ]),
      row('Application', [
        graph('Workers', 'Streams of the application.', 'short', perRouter(one('ringfence_app_workers'))),
        graph('Results', 'How deliveries to workers ended.', 'ops', { '{{kind}}': sum(rate('ringfence_app_results_total'), ['kind']) }),
        graph('Trouble with workers', 'Late and unknown results, deliveries taken back, streams ended.', 'ops', {
          'ignored, {{reason}}': sum(rate('ringfence_app_results_ignored_total'), ['reason']),
          revoked: sum(rate('ringfence_app_deliveries_revoked_total')),
          'refused, {{code}}': sum(rate('ringfence_app_streams_refused_total'), ['code']),
        }),
      ]),
    ]),

    'ringfence-ring.json': dashboard('ringfence-ring', 'Ringfence / Ring', 'The owners of partitions, and the safety of their leases.', [
      row('Partitions', [
        graph('Open', 'Partitions that each router may dispatch for.', 'short', perRouter(one('ringfence_ownership_open_partitions'))),
        graph('Waiting', "Owned by this router, but an earlier owner may still work.", 'short', perRouter(one('ringfence_ownership_waiting_partitions'))),
        graph('Draining', "No longer owned by this router, but its application still works.", 'short', perRouter(one('ringfence_ownership_draining_partitions'))),
      ]),
      row('Leases', [
        graph('Least margin', 'Least remaining lease at a dispatch. Near 0, CPU or the broker is too slow.', 's', perRouter(one('ringfence_ownership_lease_margin_seconds'))),
        graph('Remaining', 'A sawtooth: each Beat that is read back raises it.', 's', perRouter(one('ringfence_ownership_lease_remaining_seconds'))),
        graph('Lost and forced', 'Incarnations that lost trust in the control log, and partitions drained by force.', 'short', {
          'lost {{instance}}': 'increase(%s[$__rate_interval])' % one('ringfence_ownership_lost_total'),
          'forced {{instance}}': 'increase(%s[$__rate_interval])' % one('ringfence_ownership_forced_drains_total'),
        }),
      ]),
      row('Moves', [
        graph('Planned moves', 'From the record to open gates.', 's', quantiles('ringfence_ownership_acquire_seconds')),
        graph('Takeovers', 'From the last sign of a dead owner to open gates.', 's', quantiles('ringfence_ownership_takeover_seconds')),
        graph('Ownership events', 'Reports of the ownership machine.', 'ops', { '{{kind}}': sum(rate('ringfence_ownership_notes_total'), ['kind']) }),
      ]),
      row('Control log', [
        graph('Append', 'From an append to its acknowledgement.', 's', quantiles('ringfence_controllog_append_duration_seconds')),
        graph('Appends', 'By result.', 'ops', { '{{record}} {{result}}': sum(rate('ringfence_controllog_appends_total'), ['record', 'result']) }),
        graph('Trouble', 'Records that could not be read, readers lost, checks and anchors failed.', 'ops', {
          'bad record, {{reason}}': sum(rate('ringfence_controllog_bad_records_total'), ['reason']),
          'reader {{event}}': sum(rate('ringfence_controllog_readers_total'), ['event']),
          'check {{result}}': sum(rate('ringfence_controllog_checks_total'), ['result']),
          'anchor {{result}}': sum(rate('ringfence_controllog_anchor_moves_total'), ['result']),
        }),
        graph('Read', 'Records of the tail.', 'ops', { '{{record}}': sum(rate('ringfence_controllog_records_total'), ['record']) }),
      ]),
      row('Gossip', [
        graph('Members', 'As each router sees them.', 'short', perRouter(one('ringfence_membership_members'))),
        graph('Health score', '0 is healthy; higher values mean that the router lags behind gossip.', 'short', perRouter(one('ringfence_membership_health_score'))),
        graph('Evidence and contacts', 'About other routers.', 'ops', {
          '{{kind}}': sum(rate('ringfence_membership_evidence_total'), ['kind']),
          'contact {{reason}} {{result}}': sum(rate('ringfence_membership_contacts_total'), ['reason', 'result']),
          'not understood': sum(rate('ringfence_membership_bad_members_total')),
        }),
      ]),
    ]),

    'ringfence-node.json': dashboard('ringfence-node', 'Ringfence / Node', 'One router from the inside.', [
      row('Mailboxes', [
        graph('Events', 'Waiting or running at their owner.', 'short', {
          'all {{instance}}': one('ringfence_mailbox_events'),
          'running {{instance}}': one('ringfence_mailbox_running_events'),
        }),
        graph('Keys', 'With events; waiting for a worker; waiting for a retry.', 'short', {
          'active {{instance}}': one('ringfence_mailbox_active_keys'),
          'ready {{instance}}': one('ringfence_mailbox_ready_keys'),
          'held {{instance}}': one('ringfence_mailbox_held_keys'),
        }),
        graph('Weight', 'Of the events in the mailboxes.', 'bytes', perRouter(one('ringfence_mailbox_bytes')), c.limits.mailboxBytesMax),
        graph('Recently finished', 'Memory for the ids that identify redeliveries.', 'bytes', perRouter(one('ringfence_mailbox_window_bytes')), c.limits.windowBytesMax),
      ]),
      row('At the owner', [
        graph('Answers to senders', 'Answers of the mailboxes to received events.', 'ops', { '{{answer}}': sum(rate('ringfence_mailbox_events_total'), ['answer']) }),
        graph('Moved on', 'Events that went to the next owner.', 'ops', perRouter(rate('ringfence_mailbox_moved_events_total'))),
        graph('Oldest in a mailbox', 'Since it reached its owner.', 's', perRouter(one('ringfence_mailbox_oldest_event_seconds'))),
      ]),
      row('On the way', [
        graph('Sent', 'Events, by path.', 'ops', { '{{path}}': sum(rate('ringfence_forward_events_sent_total'), ['path']) }),
        graph('Held', 'Events without a verdict, by place.', 'short', { '{{place}}': sum(one('ringfence_forward_held_events'), ['place']) }),
        graph('Verdicts', 'By kind.', 'ops', { '{{kind}}': sum(rate('ringfence_forward_verdicts_total'), ['kind']) }),
        graph('Oldest held', 'Its age.', 's', perRouter(one('ringfence_forward_oldest_seconds'))),
      ]),
      row('Peers', [
        graph('Streams', 'Open streams.', 'short', { '{{direction}} {{instance}}': one('ringfence_forward_streams') }),
        graph('Events in a frame', 'Frames grow under load.', 'short', quantiles('ringfence_forward_frame_events')),
        graph('Wait for a receipt', 'From a frame to its receipt.', 's', quantiles('ringfence_forward_receipt_wait_seconds')),
        graph('Trouble', 'Connects that failed, streams refused, mailboxes full.', 'short', {
          'failed connects/s {{instance}}': rate('ringfence_forward_connects_total', ['result="failed"']),
          'refused streams/s {{instance}}': sum(rate('ringfence_forward_refused_streams_total'), ['instance']),
          'full mailboxes {{instance}}': one('ringfence_forward_full_keys'),
        }),
      ]),
      row('Process', [
        graph('CPU', 'Cores.', 'short', perRouter(rate('process_cpu_seconds_total'))),
        graph('Memory', 'Resident.', 'bytes', perRouter(one('process_resident_memory_bytes'))),
        graph('Goroutines', 'They do not grow with events or keys.', 'short', perRouter(one('go_goroutines'))),
      ]),
    ]),
  },
}
