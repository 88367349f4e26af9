-- Grants: messages to nodes, and the mark and placement that a new leader needs of them.

local GRANTS_KEPT_S = 120
local END_GRACE_S = 60

-- An environment begins with a grant. Record its placement for the next leader. Its lifetime counts from here. Its node
-- ends it in time; if no report of that arrives, `expire_trajectories` ends it a little later.
local function record_placement(placements, due, trajectory_key, placement)
  local trajectory = id_of(trajectory_key)
  redis.call('HSET', placements, trajectory, placement)
  local t = redis.call('HMGET', trajectory_key, 'state', 'lifetime_s', 'keep_s')
  if t[1] then redis.call('HSET', trajectory_key, 'node', cmsgpack.unpack(placement)[1]) end
  if t[1] == 'open' then
    redis.call('HSET', trajectory_key, 'reason', '')  -- clear the reason of an earlier failed creation
    redis.call('EXPIRE', trajectory_key, t[2] + t[3])
    redis.call('ZADD', due, 'XX', now_ms() + (t[2] + END_GRACE_S) * 1000, trajectory)
  end
end

-- `resumes`: the journal entry of the request to resume that the message fulfils, or ''. A later request stays.
-- send_grants(epoch:<role>, placements, trajectories:due, stream, action or {trajectory, acted of it}...;
--             epoch, {position of the stream, payload, position of the action or 0, mark or '', resumes,
--                     position of the trajectory whose environment begins with it or 0, placement}...)
local function send_grants(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local last
  for i = 2, #args, 7 do
    local stream, action, trajectory = keys[tonumber(args[i])], keys[tonumber(args[i + 2])], keys[tonumber(args[i + 5])]
    if not action or redis.call('EXISTS', action) == 1 then
      redis.call('XADD', stream, '*', 'm', args[i + 1])
      if action and args[i + 3] ~= '' then redis.call('HSET', action, 'grant', args[i + 3]) end
      if action and args[i + 4] ~= '' and redis.call('HGET', action, 'resume') == args[i + 4] then
        redis.call('HSET', action, 'resume', 'sent')
      end
      if trajectory then record_placement(keys[2], keys[3], trajectory, args[i + 6]) end
      if stream ~= last then
        redis.call('EXPIRE', stream, GRANTS_KEPT_S)  -- so that the stream of a removed node disappears
        last = stream
      end
    end
  end
  return 1
end

register_allowed_when_full('send_grants_v2', send_grants)
