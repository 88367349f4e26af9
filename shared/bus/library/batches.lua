-- Batches: opened, sealed or ended, and their expiry.

local RESULTS_GRACE_S = 600  -- results outlive their batch's record, because the archiver needs them to free keys

-- Positions of a batch's keys from the first one: its record, and the three that expire with it.
local RECORD, RESULTS, COMPACT, ENVIRONMENTS = 0, 1, 2, 3

-- A batch exists as long as its record. Its results are kept a little longer: the archiver deletes its actions' keys
-- with them, once the planner has its history.
local function expire_batch(keys, at, retention, ...)
  redis.call('EXPIRE', keys[at + RESULTS], retention + RESULTS_GRACE_S, ...)
  for _, each in ipairs({ RECORD, COMPACT, ENVIRONMENTS }) do redis.call('EXPIRE', keys[at + each], retention, ...) end
end

-- `at`: position of the batch's keys; `open`: the key batches:open; `events`: the stream batches
local function complete_if_answered(keys, at, open, events, retention)
  local record = keys[at]
  local b = redis.call('HMGET', record, 'state', 'size', 'submitted', 'answered', 'ended_ms', 'tenant', 'task',
    'opened_ms', 'first_ms', 'keep_s')
  if not b[1] or b[5] then return 0 end
  retention = b[10] or retention
  local state, size, submitted, answered = b[1], tonumber(b[2]), tonumber(b[3]), tonumber(b[4])
  if state == 'open' then
    if size == 0 or answered < size then return 0 end
  elseif answered < submitted then
    return 0
  end
  if state == 'open' or state == 'sealed' then state = 'complete' end
  local batch, ended = id_of(record), now_ms()
  redis.call('HSET', record, 'state', state, 'ended_ms', ended)
  redis.call('ZREM', open, batch)
  expire_batch(keys, at, retention)
  publish_event(events, BATCHES_KEPT, {
    kind = 'batch.ended.v1', batch = batch, tenant = b[6], task = b[7], state = state, size = answered,
    opened_at = tonumber(b[8]) / 1000, first_at = tonumber(b[9] or b[8]) / 1000, ended_at = ended / 1000,
  })
  return 1
end

-- open_batch(batch, batches:open, batches, [idempotency key]; opened message, size asked for, size, field, value...)
--   -> {code, batch}
--   1 opened, 0 opened before under this key, -1 opened under it with another size; sizes: 0 unknown
--   The size asked for is the caller's; if it gave none, `size` is the task's, which may have changed since.
--   Derived: the record of the batch that the idempotency key has opened.
local function open_batch(keys, args)
  local record, asked, size = keys[1], args[2], args[3]
  local batch = id_of(record)
  local known = keys[4] and redis.call('GET', keys[4])
  if known and known ~= batch then
    local b = redis.call('HMGET', 'batch:' .. known, 'asked', 'size')
    local same = b[1] == asked or b[2] == size or not b[2]
    return { same and 0 or -1, known }
  end
  if redis.call('EXISTS', record) == 1 then return { 1, batch } end
  if keys[4] then redis.call('SET', keys[4], batch, 'EX', 604800) end
  local ms = now_ms()
  redis.call('HSET', record, 'state', 'open', 'asked', asked, 'size', size, 'submitted', 0, 'answered', 0,
    'opened_ms', ms, 'active_ms', ms, unpack(args, 4))
  redis.call('ZADD', keys[2], ms, batch)
  redis.call('XADD', keys[3], 'MAXLEN', '~', BATCHES_KEPT, '*', 'm', args[1])
  return { 1, batch }
end

-- end_batch(batches:open, batches, actions, batch, results, archived, environments of it; state, retention_s)
--   -> state it has now, or false when there is none
--   sealed: no more requests; cancelled, abandoned: the leader cancels the unanswered requests
--   `retention_s` of a cancelled batch always counts: for one that has ended before, it shortens the remaining time
local function end_batch(keys, args)
  local at, state = 4, args[1]
  local record = keys[at]
  local b = redis.call('HMGET', record, 'state', 'ended_ms')
  if not b[1] then return false end
  if state == 'cancelled' then
    redis.call('HSET', record, 'keep_s', args[2])
    if b[2] then expire_batch(keys, at, args[2], 'LT') end
  end
  if b[2] or b[1] == 'cancelled' or b[1] == 'abandoned' or b[1] == state then return b[1] end
  redis.call('HSET', record, 'state', state)
  if state ~= 'sealed' then
    local request = { kind = 'action.cancel-requested.v1', batch = id_of(record), reason = state }
    redis.call('XADD', keys[3], '*', 'm', cmsgpack.pack(request))
  end
  complete_if_answered(keys, at, keys[1], keys[2], args[2])
  return redis.call('HGET', record, 'state') or state
end

-- progress(batch, batches; message) -> state of the batch, or false when there is none; published while it is open or
--   sealed
--   Only the newest of each batch is kept, so that hours of reports do not push out the messages of opened batches.
local function progress(keys, args)
  local b = redis.call('HMGET', keys[1], 'state', 'progress')
  if b[1] ~= 'open' and b[1] ~= 'sealed' then return b[1] end
  if b[2] then redis.call('XDEL', keys[2], b[2]) end
  local entry = redis.call('XADD', keys[2], 'MAXLEN', '~', BATCHES_KEPT, '*', 'm', args[1])
  redis.call('HSET', keys[1], 'progress', entry)
  return b[1]
end

register('open_batch_v2', open_batch)
register('progress_v2', progress)
register_allowed_when_full('end_batch_v2', end_batch)
