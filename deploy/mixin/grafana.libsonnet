// The little of Grafana's dashboard format that ours need.
{
  // A dashboard of rows; each row is a title and its panels, which share its width.
  dashboard(uid, title, description, groupLabel, rows):: {
    uid: uid,
    title: title,
    description: description,
    tags: ['ringfence'],
    schemaVersion: 39,
    editable: true,
    graphTooltip: 1,  // one crosshair for all panels
    refresh: '30s',
    time: { from: 'now-1h', to: 'now' },
    links: [{ type: 'dashboards', tags: ['ringfence'], title: 'Ringfence', asDropdown: true, keepTime: true, includeVars: true }],
    templating: { list: [
      { name: 'datasource', type: 'datasource', query: 'prometheus', label: 'Data source' },
      self.variable('group', 'Group', groupLabel, 'ringfence_node_info') { allValue: '.+' },
      self.variable('instance', 'Router', 'instance', 'ringfence_node_info{%s=~"$group"}' % groupLabel),  // all: those listed, and so of the group
    ], variable(name, label, of, query):: {
      name: name,
      label: label,
      type: 'query',
      datasource: { type: 'prometheus', uid: '${datasource}' },
      query: { query: 'label_values(%s, %s)' % [query, of], refId: name },
      refresh: 2,
      includeAll: true,
      multi: true,
      current: { text: 'All', value: '$__all' },
    } },
    panels: std.flattenArrays(std.mapWithIndex(placeRow, rows)),
  },

  local height = 8,
  local placeRow(at, row) =
    local y = at * (height + 1);
    local width = std.floor(24 / std.length(row.panels));
    [{ id: 100 * (at + 1), type: 'row', title: row.title, collapsed: false, panels: [], gridPos: { x: 0, y: y, w: 24, h: 1 } }] +
    std.mapWithIndex(
      function(i, panel) panel { id: 100 * (at + 1) + i + 1, gridPos: { x: i * width, y: y + 1, w: width, h: height } },
      row.panels
    ),

  row(title, panels):: { title: title, panels: panels },

  // queries: legend → PromQL.
  graph(title, description, unit, queries, limit=null):: {
    type: 'timeseries',
    title: title,
    description: description,
    datasource: { type: 'prometheus', uid: '${datasource}' },
    fieldConfig: {
      defaults: {
        unit: unit,
        min: 0,
        custom: { fillOpacity: 8, showPoints: 'never' } +
                (if limit == null then {} else { thresholdsStyle: { mode: 'dashed' } }),
        [if limit != null then 'thresholds']: {
          mode: 'absolute',
          steps: [{ color: 'green', value: null }, { color: 'red', value: limit }],
        },
      },
      overrides: [],
    },
    options: { legend: { displayMode: 'list', placement: 'bottom' }, tooltip: { mode: 'multi', sort: 'desc' } },
    targets: targets(queries),
  },

  stat(title, description, unit, queries):: {
    type: 'stat',
    title: title,
    description: description,
    datasource: { type: 'prometheus', uid: '${datasource}' },
    fieldConfig: { defaults: { unit: unit }, overrides: [] },
    options: { reduceOptions: { calcs: ['lastNotNull'] }, colorMode: 'none', graphMode: 'area' },
    targets: targets(queries),
  },

  local targets(queries) = std.mapWithIndex(
    function(i, legend) { refId: std.char(65 + i), legendFormat: legend, expr: queries[legend] },
    std.objectFields(queries)
  ),
}
