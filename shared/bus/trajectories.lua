-- Trajectories: requests, placements and ends. One library with functions.lua, which is loaded first.
--
--   trajectory:<id>     hash: state (open, closed, expired, lost), reason, digest, lifetime_s, keep_s, opened_ms, active_ms,
--                       ended_ms, n node it was placed on; tenant, task, group, class, spec, ...
--   trajectories:open   sorted by time of opening; trajectories:ended by time of end; trajectories:due by the time at
--                       which an open one ends unless an action comes before
--   acted:<id>          set: actions that were answered in it, while it is open
--   placements          hash: trajectory -> packed {node, units} of its environment, until that has ended

local EXPECTED_KEPT = 1024

-- open_trajectory(trajectory, idempotency key or '', digest, most open, lifetime_s, keep_s, hint or '', field, value...)
--   -> {code, trajectory}: 1 opened, 0 opened before under this key, -1 opened under it as another, -2 too many are open
local function open_trajectory(_, args)
  local trajectory, ikey, digest, lifetime_s, keep_s = args[1], args[2], args[3], args[5], args[6]
  local known = ikey ~= '' and redis.call('GET', ikey)
  if known and known ~= trajectory then
    local before = redis.call('HGET', 'trajectory:' .. known, 'digest')
    if before then return { before == digest and 0 or -1, known } end
  end
  local key = 'trajectory:' .. trajectory
  if redis.call('EXISTS', key) == 1 then return { 1, trajectory } end
  if redis.call('ZCARD', 'trajectories:open') >= tonumber(args[4]) then return { -2, '' } end
  local ms, kept_s = now_ms(), lifetime_s + keep_s
  if ikey ~= '' then redis.call('SET', ikey, trajectory, 'EX', kept_s) end
  redis.call('HSET', key, 'state', 'open', 'reason', '', 'digest', digest, 'lifetime_s', lifetime_s, 'keep_s', keep_s,
    'opened_ms', ms, 'active_ms', ms, unpack(args, 8))
  redis.call('EXPIRE', key, kept_s)
  redis.call('ZADD', 'trajectories:open', ms, trajectory)
  redis.call('ZADD', 'trajectories:due', ms + lifetime_s * 1000, trajectory)
  if args[7] ~= '' then redis.call('XADD', 'trajectories', 'MAXLEN', '~', EXPECTED_KEPT, '*', 'm', args[7]) end
  return { 1, trajectory }
end

local function remove_from_open(trajectory)
  redis.call('ZREM', 'trajectories:open', trajectory)
  redis.call('ZREM', 'trajectories:due', trajectory)
end

-- End an open trajectory. Its record can be read for a while.
local function end_trajectory(trajectory, state, reason)
  local key, ms = 'trajectory:' .. trajectory, now_ms()
  local keep_s = tonumber(redis.call('HGET', key, 'keep_s'))
  redis.call('HSET', key, 'state', state, 'reason', reason, 'ended_ms', ms)
  redis.call('EXPIRE', key, keep_s)
  redis.call('DEL', 'acted:' .. trajectory)
  remove_from_open(trajectory)
  redis.call('ZADD', 'trajectories:ended', ms, trajectory)
  redis.call('ZREMRANGEBYSCORE', 'trajectories:ended', '-inf', ms - keep_s * 1000)
end

local function close(trajectory, state, reason)
  end_trajectory(trajectory, state, reason)
  redis.call('XADD', 'actions', '*', 'm', cmsgpack.pack({ kind = 'trajectory.close-requested.v1', trajectory = trajectory }))
end

-- close_trajectory(trajectory, reason) -> 1 it is not open (any more), 0 there is none
--   The journal entry makes the leader cancel its unanswered actions and end its environment.
local function close_trajectory(_, args)
  local state = redis.call('HGET', 'trajectory:' .. args[1], 'state')
  if not state then return 0 end
  if state == 'open' then close(args[1], 'closed', args[2]) end
  return 1
end

-- record_environment_ends(epoch, {trajectory, ended, reason}...): its environment has ended; `unmade`: it was not
--   created, and the trajectory stays open with the reason until its environment begins again
local function record_environment_ends(_, args)
  if fenced(args[1]) then return redis.error_reply(FENCED) end
  for i = 2, #args, 3 do
    local key = 'trajectory:' .. args[i]
    redis.call('HDEL', 'placements', args[i])
    local state = redis.call('HGET', key, 'state')
    if args[i + 1] == 'unmade' then
      redis.call('HDEL', key, 'n')
      if state == 'open' then redis.call('HSET', key, 'reason', args[i + 2]) end
    elseif state == 'open' then
      end_trajectory(args[i], args[i + 1], args[i + 2])
    end
  end
  return 1
end

-- expire_trajectories(epoch, most) -> the ended ones: without any action for their whole lifetime, or without a report
--   that their environment has ended
local function expire_trajectories(_, args)
  if fenced(args[1]) then return redis.error_reply(FENCED) end
  local ms, ended = now_ms(), {}
  for _, trajectory in ipairs(redis.call('ZRANGEBYSCORE', 'trajectories:due', '-inf', ms, 'LIMIT', 0, args[2])) do
    local key = 'trajectory:' .. trajectory
    local t = redis.call('HMGET', key, 'state', 'active_ms', 'lifetime_s', 'keep_s', 'n')
    if t[1] ~= 'open' then
      remove_from_open(trajectory)  -- its record has expired
    elseif t[5] then
      close(trajectory, 'expired', 'its lifetime is over')
      ended[#ended + 1] = trajectory
    elseif t[2] + t[3] * 1000 <= ms then
      close(trajectory, 'expired', 'no action arrived for its whole lifetime')
      ended[#ended + 1] = trajectory
    else  -- its first action waits
      redis.call('ZADD', 'trajectories:due', t[2] + t[3] * 1000, trajectory)
      redis.call('EXPIRE', key, t[3] + t[4])
    end
  end
  return ended
end

redis.register_function('open_trajectory', open_trajectory)
redis.register_function { function_name = 'close_trajectory', callback = close_trajectory, flags = { 'allow-oom' } }
redis.register_function { function_name = 'record_environment_ends', callback = record_environment_ends, flags = { 'allow-oom' } }
redis.register_function { function_name = 'expire_trajectories', callback = expire_trajectories, flags = { 'allow-oom' } }
