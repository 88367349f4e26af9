-- The journal: an entry of stream `actions` exists exactly as long as its action is unanswered.

local BATCHES_KEPT = 100000

-- Return true if a tenant's kept answers take as much as a tenant may keep. Read once per call.
local function is_full(room, tenant)
  if room.kept == 0 then return false end
  local known = room.full[tenant]
  if known == nil then
    known = tonumber(redis.call('HGET', room.kept_key, tenant) or 0) >= room.kept
    room.full[tenant] = known
  end
  return known
end

-- Without a batch, `batch_key` is nil; without a trajectory, `trajectory_key` is.
-- `room.decided`: nil, or the epoch of the leader that has decided about the action before. It does not read the entry.
local function journal_one(room, key, batch_key, archived_key, trajectory_key, acted_key, digest, tenant, payload)
  local known = redis.call('HMGET', key, 'digest', 'entry')
  if known[1] then
    if known[1] ~= digest then return { -1, '' } end
    return { 0, known[2] }
  end
  local batch, b = '', false
  if batch_key then
    batch = room.ids[batch_key]
    if not batch then
      batch = id_of(batch_key)
      room.ids[batch_key] = batch
    end
    b = redis.call('HMGET', batch_key, 'state', 'size', 'submitted', 'archived')
    local compact = b[4] and redis.call('HGET', archived_key, id_of(key))
    if compact then  -- its answer is in Postgres
      if compact ~= string.sub(digest, 1, #compact) then return { -1, '' } end
      return { 0, '' }
    end
  end
  if room.entries <= 0 then return { -5, '' } end
  if is_full(room, tenant) then return { -9, '' } end
  local priority = false
  if trajectory_key then
    local t = redis.call('HMGET', trajectory_key, 'state', 'reason', 'priority')
    if not t[1] then return { -6, '' } end
    if t[1] ~= 'open' then return { -7, t[1] .. ' ' .. t[2] } end
    if redis.call('SISMEMBER', acted_key, key) == 1 then return { -8, '' } end
    priority = t[3]
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
  -- action, batch, trajectory: the envelope, for a leader of another version that cannot read the payload
  -- priority: the trajectory's at this moment; later changes are entries of their own
  local entry
  if trajectory_key then
    local trajectory = id_of(trajectory_key)
    entry = redis.call('XADD', room.journal, '*', 'm', payload, 'index', index, 'action', key, 'batch', batch,
      'trajectory', trajectory, unpack(priority and { 'priority', priority } or {}))
    redis.call('HSET', key, 'digest', digest, 'entry', entry, 'batch', batch, 'trajectory', trajectory)
  else
    entry = redis.call('XADD', room.journal, '*', 'm', payload, 'index', index, 'action', key, 'batch', batch,
      unpack(room.decided and { 'decided', room.decided } or {}))
    redis.call('HSET', key, 'digest', digest, 'entry', entry, 'batch', batch)
  end
  local ms = string.match(entry, '^%d+')
  if trajectory_key then redis.call('HSET', trajectory_key, 'active_ms', ms) end
  if batch_key then
    redis.call('HSET', batch_key, 'submitted', index + 1, 'active_ms', ms)
    if first then
      redis.call('HSET', batch_key, 'first_ms', ms)
      publish_event(room.batches, BATCHES_KEPT,
        { kind = 'batch.first-arrival.v1', batch = batch, arrived_at = ms / 1000 })
    end
  end
  return { 1, entry }
end

-- journal_actions(actions, batches, kept, action..., {batch, archived of it}..., {trajectory, acted of it}...;
--                 max_entries, most a tenant may keep or 0,
--                 {digest, position of its batch or 0, of its trajectory or 0, tenant, payload}...)
--   -> {code, entry or reason} each
--   1 accepted, 0 accepted before, -1 other body, -2 no such batch, -3 batch not open, -4 batch full, -5 journal full,
--   -6 no such trajectory, -7 trajectory not open (reason: its state, a space, why), -8 answered, and its answer is gone,
--   -9 the answers that Valkey keeps for the tenant take too much of its memory
local function journal_actions(keys, args)
  local room = {
    journal = keys[1], batches = keys[2], kept_key = keys[3],
    entries = tonumber(args[1]) - redis.call('XLEN', keys[1]), kept = tonumber(args[2]), full = {}, ids = {},
  }
  local replies = {}
  for i = 3, #args, 5 do
    local b, t = tonumber(args[i + 1]), tonumber(args[i + 2])
    local reply = journal_one(room, keys[4 + #replies], keys[b], keys[b + 1], keys[t], keys[t + 1],  -- keys[0]: nil
      args[i], args[i + 3], args[i + 4])
    if reply[1] == 1 then room.entries = room.entries - 1 end
    replies[#replies + 1] = reply
  end
  return replies
end

-- cancel(action, actions; reason) -> 1 requested, 0 answered already, -1 unknown
local function cancel(keys, args)
  local a = redis.call('HMGET', keys[1], 'entry', 'answer', 'result', 'archived')
  if not a[1] then return -1 end
  if a[2] or a[3] or a[4] then return 0 end
  local request = { kind = 'action.cancel-requested.v1', action = id_of(keys[1]), reason = args[1] }
  redis.call('XADD', keys[2], '*', 'm', cmsgpack.pack(request))
  return 1
end

-- Return the hash fields that decide about a request to park or to resume, and its code if it must be rejected:
-- 0 answered already, -1 unknown, -2 in no trajectory, -3 not granted, or another grant than `grant`; '': any
local function parkable(action, grant)
  local a = redis.call('HMGET', action, 'entry', 'answer', 'result', 'archived', 'trajectory', 'grant', 'parking', 'resume',
    'parker')
  if not a[1] then return a, -1 end
  if a[2] or a[3] or a[4] then return a, 0 end
  if not a[5] or a[5] == '' then return a, -2 end
  if not a[6] or (grant ~= '' and a[6] ~= grant) then return a, -3 end
  return a, nil
end

-- park(action, actions; reason, grant or '', parker) -> 1 requested, 2 parked by another parker, or a code of `parkable`
-- `parking` is the grant, the time and the reason; without `resume` the action is parked, or will be
-- `parker` is '' (a caller) or the node that parks by itself. A caller's request replaces the node's; not the reverse
-- A request that changes nothing is not journaled. Each entry counts against the bound of the journal.
local function park(keys, args)
  local a, code = parkable(keys[1], args[2])
  if code then return code end
  local parking, grant = a[7], a[6] .. ' '
  if not a[8] and parking and string.sub(parking, 1, #grant) == grant then
    if a[9] ~= args[3] and args[3] ~= '' then return 2 end
    if a[9] ~= args[3] then redis.call('HSET', keys[1], 'parking', grant .. now_ms() .. ' ' .. args[1], 'parker', '') end
    return 1
  end
  redis.call('HSET', keys[1], 'parking', grant .. now_ms() .. ' ' .. args[1], 'parker', args[3])
  redis.call('HDEL', keys[1], 'resume')
  local request = { kind = 'action.park-requested.v1', action = id_of(keys[1]) }
  redis.call('XADD', keys[2], '*', 'm', cmsgpack.pack(request))
  return 1
end

-- resume(action, actions; grant or '', parker) -> 1 requested, 2 parked by a caller meanwhile, or a code of `parkable`,
--   -3 also if this attempt was never parked
-- `resume` is the journal entry of the request, and `sent` after the leader has let it continue
local function resume(keys, args)
  local a, code = parkable(keys[1], args[1])
  if code then return code end
  local parking, grant = a[7], a[6] .. ' '
  if not parking or string.sub(parking, 1, #grant) ~= grant then return -3 end
  if a[8] then return 1 end
  if args[2] ~= '' and a[9] ~= args[2] then return 2 end
  local request = { kind = 'action.resume-requested.v1', action = id_of(keys[1]) }
  redis.call('HSET', keys[1], 'resume', redis.call('XADD', keys[2], '*', 'm', cmsgpack.pack(request)))
  return 1
end

-- discard(epoch:<role>, actions; epoch, entry...): delete processed journal entries that are not requests
local function discard(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  for i = 2, #args do redis.call('XDEL', keys[2], args[i]) end
  return 1
end

register('journal_actions_v2', journal_actions)
register_allowed_when_full('cancel_v2', cancel)
register_allowed_when_full('park_v2', park)
register_allowed_when_full('resume_v2', resume)
register_allowed_when_full('discard_v2', discard)
