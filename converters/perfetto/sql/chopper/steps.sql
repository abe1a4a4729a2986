-- Training steps in a trace that chopper-interop wrote: exposed, idle, critical.

-- Slices of the lanes that are drawn of each GPU: iterations, exposed communication, idle, ...
CREATE PERFETTO VIEW chopper_gpu_spans AS
SELECT
  s.id,
  s.ts,
  s.dur,
  s.name,
  t.name AS lane,
  CAST(substr(p.name, length('rank ') + 1) AS INT) AS rank,
  g.name AS gpu
FROM slice AS s
JOIN process_track AS t ON s.track_id = t.id
JOIN process AS p USING (upid)
JOIN track AS g ON t.parent_id = g.id
WHERE s.category = 'derived' AND g.name GLOB 'GPU*';

-- Exposed communication, and idle time where its analysis ran, of each GPU while kernels of each step ran, in ns.
-- kernels_ns is from the first start to the last end of these kernels; the time that a step takes, from the end of
-- the one before on, is what `chopper-analyze RUN/ temporal --steps each` prints.
CREATE PERFETTO VIEW chopper_step_losses AS
SELECT
  step.rank,
  step.gpu,
  CAST(substr(step.name, length('iteration ') + 1) AS INT) AS iteration,
  step.dur AS kernels_ns,
  span.lane,
  span.name AS cause,
  count(*) AS spans,
  sum(min(span.ts + span.dur, step.ts + step.dur) - max(span.ts, step.ts)) AS dur_ns
FROM chopper_gpu_spans AS step
JOIN chopper_gpu_spans AS span ON
  span.rank = step.rank AND span.gpu = step.gpu
  AND span.ts < step.ts + step.dur AND span.ts + span.dur > step.ts
WHERE step.lane = 'iterations' AND span.lane IN ('exposed communication', 'idle')
GROUP BY step.id, span.lane, span.name
ORDER BY step.rank, step.gpu, iteration, dur_ns DESC;

-- Exposed communication of each GPU while kernels of each step ran, in ns and percent of that time.
CREATE PERFETTO VIEW chopper_exposed_communication AS
SELECT
  rank,
  gpu,
  iteration,
  kernels_ns,
  sum(dur_ns) AS exposed_ns,
  100.0 * sum(dur_ns) / kernels_ns AS exposed_percent
FROM chopper_step_losses
WHERE lane = 'exposed communication'
GROUP BY rank, gpu, iteration;

-- Spans of the critical path, with the share of the path, in the order of time.
CREATE PERFETTO VIEW chopper_critical_path AS
SELECT
  s.id,
  s.ts,
  s.dur,
  s.name,
  extract_arg(s.arg_set_id, 'debug.share') AS share,
  extract_arg(s.arg_set_id, 'debug.longest') AS longest,
  extract_arg(s.arg_set_id, 'debug.delay_ns') AS delay_ns
FROM slice AS s
JOIN track AS t ON s.track_id = t.id
JOIN track AS g ON t.parent_id = g.id
WHERE g.name = 'critical path' AND t.name GLOB '*path' AND s.category = 'derived'
ORDER BY s.ts;
