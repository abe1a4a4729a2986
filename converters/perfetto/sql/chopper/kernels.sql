-- GPU work of a trace that chopper-interop wrote, with what it knows of each piece.
--
-- In a shell: INCLUDE PERFETTO MODULE chopper.kernels; after --add-sql-package .../sql/chopper.
-- chopper-view defines these views in the UI.

-- Kernels, communication, copies and fills: one row each.
CREATE PERFETTO VIEW chopper_gpu_work AS
SELECT
  s.id,
  s.ts,
  s.dur,
  s.name,
  s.category,
  CAST(substr(p.name, length('rank ') + 1) AS INT) AS rank,
  g.name AS gpu,
  t.name AS stream,
  extract_arg(s.arg_set_id, 'debug.chopper.iteration') AS iteration,
  extract_arg(s.arg_set_id, 'debug.chopper.phase') AS phase,
  extract_arg(s.arg_set_id, 'debug.chopper.layer') AS layer,
  extract_arg(s.arg_set_id, 'debug.chopper.operation') AS operation,
  coalesce(
    extract_arg(s.arg_set_id, 'debug.chopper.flops_counted'),
    extract_arg(s.arg_set_id, 'debug.chopper.flops')
  ) AS flops,
  coalesce(
    extract_arg(s.arg_set_id, 'debug.chopper.mem_bytes_counted'),
    extract_arg(s.arg_set_id, 'debug.chopper.mem_bytes')
  ) AS mem_bytes,
  extract_arg(s.arg_set_id, 'debug.chopper.mfma_util') AS mfma_util,
  extract_arg(s.arg_set_id, 'debug.chopper.occupancy') AS occupancy,
  extract_arg(s.arg_set_id, 'debug.chopper.energy_j') AS energy_j
FROM slice AS s
JOIN process_track AS t ON s.track_id = t.id
JOIN process AS p USING (upid)
JOIN track AS g ON t.parent_id = g.id
WHERE s.category IN ('kernel', 'communication', 'gpu_memcpy', 'gpu_memset');

-- Kernels by name, those with the most time first: rates over their time, utilisation in percent
-- weighted by time, null where nothing is known.
CREATE PERFETTO VIEW chopper_top_kernels AS
SELECT
  name,
  count(*) AS launches,
  sum(dur) AS dur_ns,
  100.0 * sum(dur) / (SELECT sum(dur) FROM chopper_gpu_work WHERE category = 'kernel') AS time_percent,
  sum(dur) / count(*) AS mean_ns,
  sum(flops) / 1000.0 / nullif(sum(iif(flops IS NULL, 0, dur)), 0) AS tflop_per_s,
  sum(mem_bytes) * 1.0 / nullif(sum(iif(mem_bytes IS NULL, 0, dur)), 0) AS gb_per_s,
  sum(mfma_util * dur) / nullif(sum(iif(mfma_util IS NULL, 0, dur)), 0) AS mfma_percent,
  sum(occupancy * dur) / nullif(sum(iif(occupancy IS NULL, 0, dur)), 0) AS occupancy_percent,
  sum(energy_j) AS energy_j
FROM chopper_gpu_work
WHERE category = 'kernel'
GROUP BY name
ORDER BY dur_ns DESC;
