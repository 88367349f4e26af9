-- Trajectories: requests, placements and ends.

local EXPECTED_KEPT = 1024

-- open_trajectory(trajectory, trajectories:open, trajectories:due, trajectories, [idempotency key];
--                 digest, most open, lifetime_s, keep_s, hint or '', field, value...)
--   -> {code, trajectory}: 1 opened, 0 opened before under this key, -1 opened under it as another, -2 too many are open
--   Derived: the record of the trajectory that the idempotency key has opened.
local function open_trajectory(keys, args)
  local record, digest, lifetime_s, keep_s = keys[1], args[1], args[3], args[4]
  local trajectory = id_of(record)
  local known = keys[5] and redis.call('GET', keys[5])
  if known and known ~= trajectory then
    local before = redis.call('HGET', 'trajectory:' .. known, 'digest')
    if before then return { before == digest and 0 or -1, known } end
  end
  if redis.call('EXISTS', record) == 1 then return { 1, trajectory } end
  if redis.call('ZCARD', keys[2]) >= tonumber(args[2]) then return { -2, '' } end
  local ms, kept_s = now_ms(), lifetime_s + keep_s
  if keys[5] then redis.call('SET', keys[5], trajectory, 'EX', kept_s) end
  redis.call('HSET', record, 'state', 'open', 'reason', '', 'digest', digest, 'lifetime_s', lifetime_s, 'keep_s', keep_s,
    'opened_ms', ms, 'active_ms', ms, unpack(args, 6))
  redis.call('EXPIRE', record, kept_s)
  redis.call('ZADD', keys[2], ms, trajectory)
  redis.call('ZADD', keys[3], ms + lifetime_s * 1000, trajectory)
  if args[5] ~= '' then redis.call('XADD', keys[4], 'MAXLEN', '~', EXPECTED_KEPT, '*', 'm', args[5]) end
  return { 1, trajectory }
end

-- `indexes`: the keys trajectories:open, trajectories:due and trajectories:ended
local function remove_from_open(indexes, trajectory)
  redis.call('ZREM', indexes[1], trajectory)
  redis.call('ZREM', indexes[2], trajectory)
end

-- End an open trajectory. Its record and its trace can be read for a while.
-- Derived: the trace of the trajectory.
local function end_trajectory(indexes, record, acted, state, reason)
  local trajectory, ms = id_of(record), now_ms()
  local keep_s = tonumber(redis.call('HGET', record, 'keep_s'))
  redis.call('HSET', record, 'state', state, 'reason', reason, 'ended_ms', ms)
  redis.call('EXPIRE', record, keep_s)
  redis.call('EXPIRE', 'trace:' .. trajectory, keep_s)
  redis.call('DEL', acted)
  remove_from_open(indexes, trajectory)
  redis.call('ZADD', indexes[3], ms, trajectory)
  redis.call('ZREMRANGEBYSCORE', indexes[3], '-inf', ms - keep_s * 1000)
end

local function close(indexes, journal, record, acted, state, reason)
  end_trajectory(indexes, record, acted, state, reason)
  local request = { kind = 'trajectory.close-requested.v1', trajectory = id_of(record) }
  redis.call('XADD', journal, '*', 'm', cmsgpack.pack(request))
end

-- close_trajectory(trajectories:open, trajectories:due, trajectories:ended, actions, trajectory, acted of it; reason)
--   -> 1 it is not open (any more), 0 there is none
--   The journal entry makes the leader cancel its unanswered actions and end its environment.
local function close_trajectory(keys, args)
  local state = redis.call('HGET', keys[5], 'state')
  if not state then return 0 end
  if state == 'open' then close(keys, keys[4], keys[5], keys[6], 'closed', args[1]) end
  return 1
end

-- set_trajectory_priority(actions, trajectory; priority)
--   -> {code, reason}: 1 its priority is this now, 0 it has ended (reason: its state, a space, why), -1 there is none
--   The journal entry makes the leader apply it to the unanswered actions; entries of later actions carry it.
local function set_trajectory_priority(keys, args)
  local t = redis.call('HMGET', keys[2], 'state', 'reason', 'priority')
  if not t[1] then return { -1, '' } end
  if t[1] ~= 'open' then return { 0, t[1] .. ' ' .. t[2] } end
  local priority = tonumber(args[1])
  if tonumber(t[3] or '0') == priority then return { 1, '' } end
  redis.call('HSET', keys[2], 'priority', args[1])
  local change = { kind = 'trajectory.priority-requested.v1', trajectory = id_of(keys[2]), priority = priority }
  redis.call('XADD', keys[1], '*', 'm', cmsgpack.pack(change))
  return { 1, '' }
end

-- record_environment_ends(trajectories:open, trajectories:due, trajectories:ended, epoch:<role>, placements,
--                         {trajectory, acted of it}...; epoch, {ended, reason}...)
--   Its environment has ended; `unmade`: it was not created, and the trajectory stays open with the reason until its
--   environment begins again.
local function record_environment_ends(keys, args)
  if fenced(keys[4], args[1]) then return redis.error_reply(FENCED) end
  local at = 6
  for i = 2, #args, 2 do
    local record = keys[at]
    redis.call('HDEL', keys[5], id_of(record))
    local state = redis.call('HGET', record, 'state')
    if args[i] == 'unmade' then
      redis.call('HDEL', record, 'node')
      if state == 'open' then redis.call('HSET', record, 'reason', args[i + 1]) end
    elseif state == 'open' then
      end_trajectory(keys, record, keys[at + 1], args[i], args[i + 1])
    end
    at = at + 2
  end
  return 1
end

-- expire_trajectories(trajectories:open, trajectories:due, trajectories:ended, actions, epoch:<role>,
--                     {trajectory, acted of it}...; epoch)
--   -> those of the given ones that ended now: without any action for their whole lifetime, or without a report that
--   their environment has ended
local function expire_trajectories(keys, args)
  if fenced(keys[5], args[1]) then return redis.error_reply(FENCED) end
  local ms, ended = now_ms(), {}
  for at = 6, #keys, 2 do
    local record = keys[at]
    local trajectory = id_of(record)
    local due_ms = tonumber(redis.call('ZSCORE', keys[2], trajectory) or nil)
    local t = redis.call('HMGET', record, 'state', 'active_ms', 'lifetime_s', 'keep_s', 'node')
    if not due_ms or due_ms > ms then
      -- it has ended, or its environment has begun, since the caller read the index
    elseif t[1] ~= 'open' then
      remove_from_open(keys, trajectory)  -- its record has expired
    elseif t[5] then
      close(keys, keys[4], record, keys[at + 1], 'expired', 'its lifetime is over')
      ended[#ended + 1] = trajectory
    elseif t[2] + t[3] * 1000 <= ms then
      close(keys, keys[4], record, keys[at + 1], 'expired', 'no action arrived for its whole lifetime')
      ended[#ended + 1] = trajectory
    else  -- its first action waits
      redis.call('ZADD', keys[2], t[2] + t[3] * 1000, trajectory)
      redis.call('EXPIRE', record, t[3] + t[4])
    end
  end
  return ended
end

register('open_trajectory_v2', open_trajectory)
register_allowed_when_full('close_trajectory_v2', close_trajectory)
register_allowed_when_full('set_trajectory_priority_v1', set_trajectory_priority)
register_allowed_when_full('record_environment_ends_v2', record_environment_ends)
register_allowed_when_full('expire_trajectories_v2', expire_trajectories)
