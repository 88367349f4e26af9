#!lua name=treadle
-- Server-side functions of the mesh. Each is atomic, so no reader sees these invariants broken.
--
--   journal      an entry of stream `actions` exists exactly as long as its action is unanswered
--   action:<id>  hash: d digest, e journal entry, b batch, t trajectory, g last grant, s stage, c carried acts; answered:
--                a answer, r result id, or m (the answer is in Postgres; see archive.lua)
--   batch:<id>   hash: state, size, submitted, answered, opened_ms, first_ms, active_ms, ended_ms, tenant, task, ...
--                unqueued_end_ms: when the last of the answered would have finished without queueing
--                progress: entry of `batches` with the newest report of its rollout
--                archived: last result id that is in Postgres; keep_s: retention where DELETE has shortened it
--   results:<id> stream of answers; its ids are the cursors of `after=`
--   kept         hash: tenant -> estimated bytes of Valkey's memory that its answers and compact ids take
--   kept:batches hash: tenant/batch -> the part of `kept` that its results take
--   environments:<batch>  hash: of actions in trajectories that name the batch: answered, and of those that were masked
--                count:<how it ended> and why:<how it ended>; expires with the batch
--   unarchived   sorted: tenant/batch by the time (ms) of its oldest result in Valkey
--   unarchived:actions  stream: answers outside batches that are to be archived
--   backlog      hash: what waits, as last published by the leader: pools, stuck actions of batches, open batches
--   ids          hash: key of derived ids, and until when ids of older versions are looked up
--   leader       holder of the dispatching lease; leader:epoch counts its changes and fences what a leader writes

--   (trajectories: trajectories.lua; answers in Postgres: archive.lua; both are loaded after this file)

local ANSWERED_KEPT_S = 10  -- a replica that is further behind has read the store meanwhile
local BATCHES_KEPT = 100000
local GRANTS_KEPT_S = 120
local END_GRACE_S = 60
local RESULTS_GRACE_S = 600    -- results outlive their batch's record, because the archiver needs them to free keys
local ARCHIVED_AFTER_S = 60  -- an answer outside a batch that expires sooner is not archived
local ANSWER_BYTES = 250     -- bytes of an answer in Valkey besides its own: its action's key, stream or hash

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function fenced(epoch)
  return redis.call('GET', 'leader:epoch') ~= epoch
end

local FENCED = 'FENCED another leader has taken over'

local function publish_event(stream, kept, message)
  redis.call('XADD', stream, 'MAXLEN', '~', kept, '*', 'm', cmsgpack.pack(message))
end

-- Drop outcomes whose results are written. They carry the outputs of actions.
local function acknowledge(outcomes)
  if #outcomes > 0 then redis.call('XDEL', 'outcomes', unpack(outcomes)) end
end

-- lead(holder, ttl_ms) -> epoch, or 0 while another holds the lease
local function lead(_, args)
  local current = redis.call('GET', 'leader')
  if current and current ~= args[1] then return 0 end
  if not current then redis.call('INCR', 'leader:epoch') end
  redis.call('SET', 'leader', args[1], 'PX', args[2])
  return tonumber(redis.call('GET', 'leader:epoch'))
end

-- hold_lease(key, holder, ttl_ms) -> 1 held (now or again), 0 another holds it
local function hold_lease(_, args)
  local current = redis.call('GET', args[1])
  if current and current ~= args[2] then return 0 end
  redis.call('SET', args[1], args[2], 'PX', args[3])
  return 1
end

-- resign(holder)
local function resign(_, args)
  if redis.call('GET', 'leader') == args[1] then redis.call('DEL', 'leader') end
  return 1
end

local function add_kept(tenant, bytes)
  if bytes ~= 0 then redis.call('HINCRBY', 'kept', tenant, bytes) end
end

-- Return true if a tenant's kept answers take as much as a tenant may keep. Read once per call.
local function is_full(room, tenant)
  if room.kept == 0 then return false end
  local known = room.full[tenant]
  if known == nil then
    known = tonumber(redis.call('HGET', 'kept', tenant) or 0) >= room.kept
    room.full[tenant] = known
  end
  return known
end

local function journal_one(room, key, digest, batch, trajectory, tenant, payload)
  local known = redis.call('HMGET', key, 'd', 'e')
  if known[1] then
    if known[1] ~= digest then return { -1, '' } end
    return { 0, known[2] }
  end
  local bkey, b = 'batch:' .. batch, false
  if batch ~= '' then
    b = redis.call('HMGET', bkey, 'state', 'size', 'submitted', 'archived')
    local compact = b[4] and redis.call('HGET', 'archived:' .. batch, string.sub(key, 8))
    if compact then  -- its answer is in Postgres
      if compact ~= string.sub(digest, 1, #compact) then return { -1, '' } end
      return { 0, '' }
    end
  end
  if room.entries <= 0 then return { -5, '' } end
  if is_full(room, tenant) then return { -9, '' } end
  local tkey = 'trajectory:' .. trajectory
  if trajectory ~= '' then
    local t = redis.call('HMGET', tkey, 'state', 'reason')
    if not t[1] then return { -6, '' } end
    if t[1] ~= 'open' then return { -7, t[1] .. ' ' .. t[2] } end
    if redis.call('SISMEMBER', 'acted:' .. trajectory, key) == 1 then return { -8, '' } end
  end
  local index, first = -1, false
  if b then
    if not b[1] then return { -2, '' } end
    if b[1] ~= 'open' then return { -3, b[1] } end
    local size = tonumber(b[2])
    index = tonumber(b[3])
    if size > 0 and index >= size then return { -4, b[2] } end
    first = index == 0
  end
  -- a, b: the envelope, for a leader of another version that cannot read the payload
  local entry = redis.call('XADD', 'actions', '*', 'm', payload, 'i', index, 'a', key, 'b', batch)
  redis.call('HSET', key, 'd', digest, 'e', entry, 'b', batch)
  local ms = string.match(entry, '^%d+')
  if trajectory ~= '' then
    redis.call('HSET', key, 't', trajectory)
    redis.call('HSET', tkey, 'active_ms', ms)
  end
  if batch ~= '' then
    redis.call('HSET', bkey, 'submitted', index + 1, 'active_ms', ms)
    if first then
      redis.call('HSET', bkey, 'first_ms', ms)
      publish_event('batches', BATCHES_KEPT, { kind = 'batch.first-arrival.v1', batch = batch, arrived_at = ms / 1000 })
    end
  end
  return { 1, entry }
end

-- journal_actions(max_entries, most a tenant may keep or 0, {key, digest, batch, trajectory, tenant, payload}...)
--   -> {code, entry or reason} each
--   1 accepted, 0 accepted before, -1 other body, -2 no such batch, -3 batch not open, -4 batch full, -5 journal full,
--   -6 no such trajectory, -7 trajectory not open (reason: its state, a space, why), -8 answered, and its answer is gone,
--   -9 the answers that Valkey keeps for the tenant take too much of its memory
local function journal_actions(_, args)
  local room = { entries = tonumber(args[1]) - redis.call('XLEN', 'actions'), kept = tonumber(args[2]), full = {} }
  local replies = {}
  for i = 3, #args, 6 do
    local reply = journal_one(room, args[i], args[i + 1], args[i + 2], args[i + 3], args[i + 4], args[i + 5])
    if reply[1] == 1 then room.entries = room.entries - 1 end
    replies[#replies + 1] = reply
  end
  return replies
end

-- A batch exists as long as its record. Its results are kept a little longer: the archiver deletes its actions' keys
-- with them, once the planner has its history.
local function expire_batch(batch, retention, ...)
  redis.call('EXPIRE', 'results:' .. batch, retention + RESULTS_GRACE_S, ...)
  for _, key in ipairs({ 'batch:', 'archived:', 'environments:' }) do redis.call('EXPIRE', key .. batch, retention, ...) end
end

local function complete_if_answered(batch, retention)
  local bkey = 'batch:' .. batch
  local b = redis.call('HMGET', bkey, 'state', 'size', 'submitted', 'answered', 'ended_ms', 'tenant', 'task', 'opened_ms', 'first_ms', 'keep_s')
  if not b[1] or b[5] then return 0 end
  retention = b[10] or retention
  local state, size, submitted, answered = b[1], tonumber(b[2]), tonumber(b[3]), tonumber(b[4])
  if state == 'open' then
    if size == 0 or answered < size then return 0 end
  elseif answered < submitted then
    return 0
  end
  if state == 'open' or state == 'sealed' then state = 'complete' end
  local ended = now_ms()
  redis.call('HSET', bkey, 'state', state, 'ended_ms', ended)
  redis.call('ZREM', 'batches:open', batch)
  expire_batch(batch, retention)
  publish_event('batches', BATCHES_KEPT, {
    kind = 'batch.ended.v1', batch = batch, tenant = b[6], task = b[7], state = state, size = answered,
    opened_at = tonumber(b[8]) / 1000, first_at = tonumber(b[9] or b[8]) / 1000, ended_at = ended / 1000,
  })
  return 1
end

-- An action in an environment must not be executed again, even when its answer is gone. So it is recorded for as long
-- as its trajectory's record exists.
local function record_acted(key, trajectory)
  local left_s = redis.call('TTL', 'trajectory:' .. trajectory)
  if left_s > 0 then
    redis.call('SADD', 'acted:' .. trajectory, key)
    redis.call('EXPIRE', 'acted:' .. trajectory, left_s)
  end
end

-- Count an answer in a trajectory for the batch that the trajectory names. `masked`: how it ended, a space, why; or ''.
local function count_for_batch(trajectory, masked)
  local batch = redis.call('HGET', 'trajectory:' .. trajectory, 'batch')
  if not batch or batch == '' then return end
  local left_s = redis.call('TTL', 'batch:' .. batch)
  if left_s == -2 then return end
  local key = 'environments:' .. batch
  redis.call('HINCRBY', key, 'answered', 1)
  if masked ~= '' then
    local ended, why = string.match(masked, '^(%S+) (.*)$')
    redis.call('HINCRBY', key, 'count:' .. ended, 1)
    redis.call('HSET', key, 'why:' .. ended, why)
  end
  if left_s >= 0 then redis.call('EXPIRE', key, left_s) end
end

-- Store the answer of an action outside a batch. One kept longer than `ARCHIVED_AFTER_S` is archived. Returns bytes.
local function answer_outside_batch(key, action, answer, keep_s, tenant, masked)
  redis.call('HSET', key, 'a', answer)
  redis.call('EXPIRE', key, keep_s)
  local trajectory = redis.call('HGET', key, 't')
  if trajectory then
    record_acted(key, trajectory)
    count_for_batch(trajectory, masked)
  end
  if tonumber(keep_s) <= ARCHIVED_AFTER_S then return 0 end
  local bytes = #answer + ANSWER_BYTES
  redis.call('XADD', 'unarchived:actions', '*', 'k', action, 's', bytes, 't', tenant)
  return bytes
end

-- Record the bytes of batches' new results, and that these are to be archived.
local function add_results(bytes_of)
  local ms = now_ms()
  for member, bytes in pairs(bytes_of) do
    redis.call('HINCRBY', 'kept:batches', member, bytes)
    redis.call('ZADD', 'unarchived', 'NX', ms, member)
  end
end

-- answer_actions(epoch, retention_batch_s,
--                {action, entry, batch, answer, retention_s, tenant, masked, outcome or '', unqueued_end_ms}...)
--   -> 1 answered now, 0 was answered; masked: see `count_for_batch`
local function answer_actions(_, args)
  if fenced(args[1]) then return redis.error_reply(FENCED) end
  local flags, answered, batches, bytes_of, kept_by, outcomes, ends = {}, {}, {}, {}, {}, {}, {}
  for i = 3, #args, 9 do
    local action, batch, answer, tenant = args[i], args[i + 2], args[i + 3], args[i + 5]
    local key, bytes = 'action:' .. action, #answer + ANSWER_BYTES
    local live = redis.call('XDEL', 'actions', args[i + 1])
    flags[#flags + 1] = live
    if args[i + 7] ~= '' then outcomes[#outcomes + 1] = args[i + 7] end
    if live == 1 then
      answered[#answered + 1] = action
      redis.call('HDEL', key, 'g', 's', 'c')
      if batch == '' then
        bytes = answer_outside_batch(key, action, answer, args[i + 4], tenant, args[i + 6])
      else
        redis.call('HSET', key, 'r', redis.call('XADD', 'results:' .. batch, '*', 'a', answer))
        redis.call('EXPIRE', key, args[2])
        redis.call('HINCRBY', 'batch:' .. batch, 'answered', 1)
        local member = tenant .. '/' .. batch
        if not bytes_of[member] then batches[#batches + 1] = batch end
        bytes_of[member] = (bytes_of[member] or 0) + bytes
        ends[batch] = math.max(ends[batch] or 0, tonumber(args[i + 8]))
      end
      kept_by[tenant] = (kept_by[tenant] or 0) + bytes
    end
  end
  add_results(bytes_of)
  for tenant, bytes in pairs(kept_by) do add_kept(tenant, bytes) end
  for batch, at in pairs(ends) do
    if at > tonumber(redis.call('HGET', 'batch:' .. batch, 'unqueued_end_ms') or 0) then
      redis.call('HSET', 'batch:' .. batch, 'unqueued_end_ms', at)
    end
  end
  for _, batch in ipairs(batches) do complete_if_answered(batch, args[2]) end
  acknowledge(outcomes)
  if #answered > 0 then
    redis.call('XADD', 'answered', 'MINID', '~', now_ms() - ANSWERED_KEPT_S * 1000, '*',
      'm', cmsgpack.pack({ kind = 'answered.v1', actions = answered, batches = batches }))
  end
  return flags
end

-- An environment begins with a grant. Record its placement for the next leader. Its lifetime counts from here. Its node
-- ends it in time; if no report of that arrives, `expire_trajectories` ends it a little later.
local function record_placement(trajectory, placement)
  local key = 'trajectory:' .. trajectory
  redis.call('HSET', 'placements', trajectory, placement)
  local t = redis.call('HMGET', key, 'state', 'lifetime_s', 'keep_s')
  if t[1] then redis.call('HSET', key, 'n', cmsgpack.unpack(placement)[1]) end
  if t[1] == 'open' then
    redis.call('HSET', key, 'reason', '')  -- clear the reason of an earlier failed creation
    redis.call('EXPIRE', key, t[2] + t[3])
    redis.call('ZADD', 'trajectories:due', 'XX', now_ms() + (t[2] + END_GRACE_S) * 1000, trajectory)
  end
end

-- send_grants(epoch,
--             {stream, payload, action or '', mark, trajectory whose environment begins with it or '', placement}...)
local function send_grants(_, args)
  if fenced(args[1]) then return redis.error_reply(FENCED) end
  local last = ''
  for i = 2, #args, 6 do
    if args[i + 2] == '' or redis.call('EXISTS', 'action:' .. args[i + 2]) == 1 then
      redis.call('XADD', args[i], '*', 'm', args[i + 1])
      if args[i + 2] ~= '' then redis.call('HSET', 'action:' .. args[i + 2], 'g', args[i + 3]) end
      if args[i + 4] ~= '' then record_placement(args[i + 4], args[i + 5]) end
      if args[i] ~= last then
        redis.call('EXPIRE', args[i], GRANTS_KEPT_S)  -- so that the stream of a removed node disappears
        last = args[i]
      end
    end
  end
  return 1
end

-- advance_stages(epoch, {action, stage, carried, outcome or ''}...)
--   Begin the next stage. `carried`: measurements of the earlier stages.
local function advance_stages(_, args)
  if fenced(args[1]) then return redis.error_reply(FENCED) end
  local outcomes = {}
  for i = 2, #args, 4 do
    redis.call('HSET', 'action:' .. args[i], 's', args[i + 1], 'c', args[i + 2])
    redis.call('HDEL', 'action:' .. args[i], 'g')
    if args[i + 3] ~= '' then outcomes[#outcomes + 1] = args[i + 3] end
  end
  acknowledge(outcomes)
  return 1
end

-- open_batch(batch, idempotency key or '', opened message, size asked for, size, field, value...) -> {code, batch}
--   1 opened, 0 opened before under this key, -1 opened under it with another size; sizes: 0 unknown
--   The size asked for is the caller's; if it gave none, `size` is the task's, which may have changed since.
local function open_batch(_, args)
  local batch, ikey, asked, size = args[1], args[2], args[4], args[5]
  local known = ikey ~= '' and redis.call('GET', ikey)
  if known and known ~= batch then
    local b = redis.call('HMGET', 'batch:' .. known, 'asked', 'size')
    local same = b[1] == asked or b[2] == size or not b[2]
    return { same and 0 or -1, known }
  end
  local bkey = 'batch:' .. batch
  if redis.call('EXISTS', bkey) == 1 then return { 1, batch } end
  if ikey ~= '' then redis.call('SET', ikey, batch, 'EX', 604800) end
  local ms = now_ms()
  redis.call('HSET', bkey, 'state', 'open', 'asked', asked, 'size', size, 'submitted', 0, 'answered', 0,
    'opened_ms', ms, 'active_ms', ms, unpack(args, 6))
  redis.call('ZADD', 'batches:open', ms, batch)
  redis.call('XADD', 'batches', 'MAXLEN', '~', BATCHES_KEPT, '*', 'm', args[3])
  return { 1, batch }
end

-- end_batch(batch, state, retention_s) -> state it has now, or false when there is none
--   sealed: no more requests; cancelled, abandoned: the leader cancels the unanswered requests
--   `retention_s` of a cancelled batch always counts: for one that has ended before, it shortens the remaining time
local function end_batch(_, args)
  local batch, state = args[1], args[2]
  local bkey = 'batch:' .. batch
  local b = redis.call('HMGET', bkey, 'state', 'ended_ms')
  if not b[1] then return false end
  if state == 'cancelled' then
    redis.call('HSET', bkey, 'keep_s', args[3])
    if b[2] then expire_batch(batch, args[3], 'LT') end
  end
  if b[2] or b[1] == 'cancelled' or b[1] == 'abandoned' or b[1] == state then return b[1] end
  redis.call('HSET', bkey, 'state', state)
  if state ~= 'sealed' then
    redis.call('XADD', 'actions', '*', 'm', cmsgpack.pack({ kind = 'action.cancel-requested.v1', batch = batch, reason = state }))
  end
  complete_if_answered(batch, args[3])
  return redis.call('HGET', bkey, 'state') or state
end

-- progress(batch, message) -> state of the batch, or false when there is none; published while it is open or sealed
--   Only the newest of each batch is kept, so that hours of reports do not push out the messages of opened batches.
local function progress(_, args)
  local bkey = 'batch:' .. args[1]
  local b = redis.call('HMGET', bkey, 'state', 'progress')
  if b[1] ~= 'open' and b[1] ~= 'sealed' then return b[1] end
  if b[2] then redis.call('XDEL', 'batches', b[2]) end
  local entry = redis.call('XADD', 'batches', 'MAXLEN', '~', BATCHES_KEPT, '*', 'm', args[2])
  redis.call('HSET', bkey, 'progress', entry)
  return b[1]
end

-- cancel(action, reason) -> 1 asked, 0 answered already, -1 unknown
local function cancel(_, args)
  local a = redis.call('HMGET', 'action:' .. args[1], 'e', 'a', 'r', 'm')
  if not a[1] then return -1 end
  if a[2] or a[3] or a[4] then return 0 end
  redis.call('XADD', 'actions', '*', 'm', cmsgpack.pack({ kind = 'action.cancel-requested.v1', action = args[1], reason = args[2] }))
  return 1
end

-- discard(epoch, entry...): delete processed journal entries that are not requests
local function discard(_, args)
  if fenced(args[1]) then return redis.error_reply(FENCED) end
  for i = 2, #args do redis.call('XDEL', 'actions', args[i]) end
  return 1
end

-- publish_backlog(epoch, pools, stuck, [batches]): publish what waits in pools and how much of each batch is stuck; for
--   the planner also where the requests of open batches are (unchanged without `batches`)
local function publish_backlog(_, args)
  if fenced(args[1]) then return redis.error_reply(FENCED) end
  redis.call('HSET', 'backlog', 'pools', args[2], 'stuck', args[3])
  if args[4] then redis.call('HSET', 'backlog', 'batches', args[4]) end
  return 1
end

-- publish(stream, kept, payload...): also when memory is full, because nodes' reports lead to freed memory
local function publish(_, args)
  for i = 3, #args do redis.call('XADD', args[1], 'MAXLEN', '~', args[2], '*', 'm', args[i]) end
  return #args - 2
end

-- id_key(candidate, window_ms) -> {key of derived ids, end in ms of the window in which older ids are looked up}
--   Created once. A store that has had a leader before has ids of an older version.
local function id_key(_, args)
  if redis.call('EXISTS', 'ids') == 0 then
    local used = redis.call('EXISTS', 'leader:epoch') == 1
    redis.call('HSET', 'ids', 'key', args[1], 'older_until_ms', used and now_ms() + args[2] or 0)
  end
  return redis.call('HMGET', 'ids', 'key', 'older_until_ms')
end

-- mesh_identity(candidate) -> the store's identity; the candidate if it has none yet.
local function mesh_identity(_, args)
  redis.call('SET', 'mesh', args[1], 'NX')
  return redis.call('GET', 'mesh')
end

-- allow-oom: work under way frees memory when it is full. So only new work is rejected (journal_actions, open_batch,
-- progress).
-- A function with changed arguments gets another name. So a replica of an older version fails and writes nothing wrong
-- (journal_actions, answer_actions, advance_stages, send_grants).
redis.register_function { function_name = 'lead', callback = lead, flags = { 'allow-oom' } }
redis.register_function { function_name = 'hold_lease', callback = hold_lease, flags = { 'allow-oom' } }
redis.register_function { function_name = 'resign', callback = resign, flags = { 'allow-oom' } }
redis.register_function('journal_actions', journal_actions)
redis.register_function { function_name = 'answer_actions', callback = answer_actions, flags = { 'allow-oom' } }
redis.register_function { function_name = 'send_grants', callback = send_grants, flags = { 'allow-oom' } }
redis.register_function { function_name = 'advance_stages', callback = advance_stages, flags = { 'allow-oom' } }
redis.register_function { function_name = 'discard', callback = discard, flags = { 'allow-oom' } }
redis.register_function { function_name = 'publish_backlog', callback = publish_backlog, flags = { 'allow-oom' } }
redis.register_function { function_name = 'publish', callback = publish, flags = { 'allow-oom' } }
redis.register_function('open_batch', open_batch)
redis.register_function('progress', progress)
redis.register_function { function_name = 'end_batch', callback = end_batch, flags = { 'allow-oom' } }
redis.register_function { function_name = 'id_key', callback = id_key, flags = { 'allow-oom' } }
redis.register_function { function_name = 'mesh_identity', callback = mesh_identity, flags = { 'allow-oom' } }
redis.register_function { function_name = 'cancel', callback = cancel, flags = { 'allow-oom' } }
