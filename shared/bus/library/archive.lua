-- Answers that have moved to Postgres.
--
-- The archiver copies the answers first, commits, and then calls these. Every function is safe to repeat.

local ID_BYTES = 54       -- a compact id of a batch; measured
local ACTION_BYTES = 170  -- an action's key without its answer; measured
local DIGEST_BYTES = 8

local function after(one, other)
  local ms, seq = string.match(one, '^(%d+)-(%d+)$')
  local other_ms, other_seq = string.match(other, '^(%d+)-(%d+)$')
  ms, other_ms = tonumber(ms), tonumber(other_ms)
  return ms > other_ms or (ms == other_ms and tonumber(seq) > tonumber(other_seq))
end

-- Update the bytes of a batch's results, and `kept` with them.
local function set_batch_kept(kept, kept_batches, tenant, member, bytes)
  local before = tonumber(redis.call('HGET', kept_batches, member) or 0)
  if bytes > 0 then
    redis.call('HSET', kept_batches, member, bytes)
  else
    redis.call('HDEL', kept_batches, member)
  end
  add_kept(kept, tenant, bytes - before)
end

-- Replace actions' keys by compact ids. Returns (ids made, bytes of the answers that they replace).
-- `keys` from `first`: the actions; `args` from `from`: the length of each answer.
local function compact(archived_key, alive, keys, first, args, from)
  local made, freed = 0, 0
  for at = first, #keys do
    local a = redis.call('HMGET', keys[at], 'digest', 'result')
    if a[2] then
      if alive then
        made = made + redis.call('HSET', archived_key, id_of(keys[at]), string.sub(a[1], 1, DIGEST_BYTES))
      end
      redis.call('UNLINK', keys[at])
      freed = freed + args[from + at - first] + ANSWER_BYTES
    end
  end
  return made, freed
end

-- archive_results(kept, kept:batches, unarchived, archived, batch, results, archived of it, action...;
--                 tenant, last result id, id behind it, {length of its answer}...) -> compact ids made
--   Every result up to `last` is in Postgres. Without actions: check the batch again (it may have expired).
local function archive_results(keys, args)
  local kept, kept_batches, unarchived, record, stream = keys[1], keys[2], keys[3], keys[5], keys[6]
  local tenant, last, batch = args[1], args[2], id_of(keys[5])
  local member = tenant .. '/' .. batch
  local left_s = redis.call('TTL', record)
  local made, freed = compact(keys[7], left_s ~= -2, keys, 8, args, 4)
  redis.call('XTRIM', stream, 'MINID', args[3])
  if left_s ~= -2 and #args > 3 then
    local before = redis.call('HGET', record, 'archived')
    if not before or after(last, before) then redis.call('HSET', record, 'archived', last) end
    if left_s >= 0 then redis.call('EXPIRE', keys[7], left_s) end
  end
  local oldest = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  if oldest then
    redis.call('ZADD', unarchived, string.match(oldest[1], '^%d+'), member)
    local before = tonumber(redis.call('HGET', kept_batches, member) or 0)
    set_batch_kept(kept, kept_batches, tenant, member, math.max(1, before - freed))
  else
    redis.call('ZREM', unarchived, member)
    set_batch_kept(kept, kept_batches, tenant, member, 0)
  end
  if #args > 3 then
    redis.call('ZINCRBY', keys[4], made, member)
    add_kept(kept, tenant, made * ID_BYTES)
  end
  return made
end

-- archive_actions(kept, unarchived:actions, expiring, action or expiring:<minute>...;
--                 {index entry, position of the action, journal entry or '', bytes, tenant,
--                  position of the minute in which the action's key expires or 0}...) -> answers freed
--   Journal entry: of the answer in Postgres (an action may have run again since); '': Valkey has no answer.
local function archive_actions(keys, args)
  local freed, kept = 0, keys[1]
  for i = 1, #args, 6 do
    local key, entry, tenant, minute_key = keys[tonumber(args[i + 1])], args[i + 2], args[i + 4], keys[tonumber(args[i + 5])]
    if redis.call('XDEL', keys[2], args[i]) == 1 then add_kept(kept, tenant, -args[i + 3]) end
    if entry ~= '' and redis.call('HGET', key, 'entry') == entry and redis.call('HDEL', key, 'answer') == 1 then
      redis.call('HDEL', key, 'trajectory')
      redis.call('HSET', key, 'archived', 1)
      local minute = id_of(minute_key)
      redis.call('HINCRBY', minute_key, tenant, ACTION_BYTES)
      redis.call('ZADD', keys[3], minute, minute)
      add_kept(kept, tenant, ACTION_BYTES)
      freed = freed + 1
    end
  end
  return freed
end

-- expire_kept(kept, expiring, expiring:<minute>...) -> minutes whose compact ids have expired
local function expire_kept(keys)
  local past, expired = math.floor(now_ms() / 60000) - 1, 0
  for at = 3, #keys do
    local minute = id_of(keys[at])
    if tonumber(redis.call('ZSCORE', keys[2], minute) or past + 1) <= past then
      local flat = redis.call('HGETALL', keys[at])
      for i = 1, #flat, 2 do add_kept(keys[1], flat[i], -flat[i + 1]) end
      redis.call('DEL', keys[at])
      expired = expired + redis.call('ZREM', keys[2], minute)
    end
  end
  return expired
end

-- release_batch(kept, kept:batches, unarchived, archived, batch, results, archived of it; tenant)
--   -> 1, or 0 while the batch is there
--   It has expired, and Postgres has nothing of it (any more).
local function release_batch(keys, args)
  local member = args[1] .. '/' .. id_of(keys[5])
  if redis.call('EXISTS', keys[5]) == 1 then return 0 end
  redis.call('UNLINK', keys[7], keys[6])
  set_batch_kept(keys[1], keys[2], args[1], member, 0)
  add_kept(keys[1], args[1], -ID_BYTES * (redis.call('ZSCORE', keys[4], member) or 0))
  redis.call('ZREM', keys[4], member)
  redis.call('ZREM', keys[3], member)
  return 1
end

-- allow-oom: these functions free memory
register_allowed_when_full('archive_results_v2', archive_results)
register_allowed_when_full('archive_actions_v2', archive_actions)
register_allowed_when_full('expire_kept_v2', expire_kept)
register_allowed_when_full('release_batch_v2', release_batch)
