-- Answers that have moved to Postgres. One library with functions.lua, which is loaded first.
--
--   archived             sorted: tenant/batch by the number of its compact ids; rows of these batches are in Postgres
--   archived:<batch>     hash: action -> first 8 bytes of its digest: its compact id, kept as long as the batch
--   expiring             sorted: minutes (Unix) in which compact ids of actions outside batches expire
--   expiring:<minute>    hash: tenant -> the part of `kept` that is free after that minute
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
local function set_batch_kept(tenant, member, bytes)
  local before = tonumber(redis.call('HGET', 'kept:batches', member) or 0)
  if bytes > 0 then
    redis.call('HSET', 'kept:batches', member, bytes)
  else
    redis.call('HDEL', 'kept:batches', member)
  end
  add_kept(tenant, bytes - before)
end

-- Replace actions' keys by compact ids. Returns (ids made, bytes of the answers that they replace).
local function compact(batch, alive, args, from)
  local made, freed = 0, 0
  for i = from, #args, 2 do
    local key = 'action:' .. args[i]
    local a = redis.call('HMGET', key, 'd', 'r')
    if a[2] then
      if alive then
        made = made + redis.call('HSET', 'archived:' .. batch, args[i], string.sub(a[1], 1, DIGEST_BYTES))
      end
      redis.call('UNLINK', key)
      freed = freed + args[i + 1] + ANSWER_BYTES
    end
  end
  return made, freed
end

-- archive_results(tenant, batch, last result id, id behind it, {action, length of its answer}...) -> compact ids made
--   Every result up to `last` is in Postgres. Without actions: check the batch again (it may have expired).
local function archive_results(_, args)
  local tenant, batch, last = args[1], args[2], args[3]
  local member, bkey, stream = tenant .. '/' .. batch, 'batch:' .. batch, 'results:' .. batch
  local left_s = redis.call('TTL', bkey)
  local made, freed = compact(batch, left_s ~= -2, args, 5)
  redis.call('XTRIM', stream, 'MINID', args[4])
  if left_s ~= -2 and #args > 4 then
    local before = redis.call('HGET', bkey, 'archived')
    if not before or after(last, before) then redis.call('HSET', bkey, 'archived', last) end
    if left_s >= 0 then redis.call('EXPIRE', 'archived:' .. batch, left_s) end
  end
  local oldest = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  if oldest then
    redis.call('ZADD', 'unarchived', string.match(oldest[1], '^%d+'), member)
    set_batch_kept(tenant, member, math.max(1, tonumber(redis.call('HGET', 'kept:batches', member) or 0) - freed))
  else
    redis.call('ZREM', 'unarchived', member)
    set_batch_kept(tenant, member, 0)
  end
  if #args > 4 then
    redis.call('ZINCRBY', 'archived', made, member)
    add_kept(tenant, made * ID_BYTES)
  end
  return made
end

-- archive_actions({index entry, action, journal entry or '', bytes, tenant}...) -> answers freed
--   Journal entry: of the answer in Postgres (an action may have run again since); '': Valkey has no answer.
local function archive_actions(_, args)
  local freed, now = 0, now_ms()
  for i = 1, #args, 5 do
    local key, entry, tenant = 'action:' .. args[i + 1], args[i + 2], args[i + 4]
    if redis.call('XDEL', 'unarchived:actions', args[i]) == 1 then add_kept(tenant, -args[i + 3]) end
    if entry ~= '' and redis.call('HGET', key, 'e') == entry and redis.call('HDEL', key, 'a') == 1 then
      redis.call('HDEL', key, 't')
      redis.call('HSET', key, 'm', 1)
      local minute = math.ceil((now / 1000 + redis.call('TTL', key)) / 60)
      redis.call('HINCRBY', 'expiring:' .. minute, tenant, ACTION_BYTES)
      redis.call('ZADD', 'expiring', minute, minute)
      add_kept(tenant, ACTION_BYTES)
      freed = freed + 1
    end
  end
  return freed
end

-- expire_kept() -> minutes whose compact ids have expired
local function expire_kept()
  local minutes = redis.call('ZRANGEBYSCORE', 'expiring', '-inf', math.floor(now_ms() / 60000) - 1, 'LIMIT', 0, 100)
  for _, minute in ipairs(minutes) do
    local flat = redis.call('HGETALL', 'expiring:' .. minute)
    for i = 1, #flat, 2 do add_kept(flat[i], -flat[i + 1]) end
    redis.call('DEL', 'expiring:' .. minute)
    redis.call('ZREM', 'expiring', minute)
  end
  return #minutes
end

-- release_batch(tenant, batch) -> 1, or 0 while the batch is there
--   It has expired, and Postgres has nothing of it (any more).
local function release_batch(_, args)
  local member = args[1] .. '/' .. args[2]
  if redis.call('EXISTS', 'batch:' .. args[2]) == 1 then return 0 end
  redis.call('UNLINK', 'archived:' .. args[2], 'results:' .. args[2])
  set_batch_kept(args[1], member, 0)
  add_kept(args[1], -ID_BYTES * (redis.call('ZSCORE', 'archived', member) or 0))
  redis.call('ZREM', 'archived', member)
  redis.call('ZREM', 'unarchived', member)
  return 1
end

-- allow-oom: these functions free memory
redis.register_function { function_name = 'archive_results', callback = archive_results, flags = { 'allow-oom' } }
redis.register_function { function_name = 'archive_actions', callback = archive_actions, flags = { 'allow-oom' } }
redis.register_function { function_name = 'expire_kept', callback = expire_kept, flags = { 'allow-oom' } }
redis.register_function { function_name = 'release_batch', callback = release_batch, flags = { 'allow-oom' } }
