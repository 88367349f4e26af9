-- Traces: the answered actions of a trajectory, and those that were submitted for it.

-- trace_actions(epoch:<role>, {trajectory, trace of it}...;
--               epoch, {position of the trajectory, tenant, action, span, most}...)
--   The first call for an action counts. Nothing is added for a trajectory of another tenant or without a record, or to a
--   trace of `most` actions. Its end shortens the retention (`end_trajectory`).
local function trace_actions(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  for i = 2, #args, 5 do
    local at = tonumber(args[i])
    local left_s = redis.call('TTL', keys[at])
    if left_s > 0 and redis.call('HGET', keys[at], 'tenant') == args[i + 1] then
      local trace = keys[at + 1]
      if redis.call('HLEN', trace) < tonumber(args[i + 4]) then redis.call('HSETNX', trace, args[i + 2], args[i + 3]) end
      redis.call('EXPIRE', trace, left_s)
    end
  end
  return 1
end

register('trace_actions_v1', trace_actions)
