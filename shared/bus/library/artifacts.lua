-- Artifacts: bytes that a stage of an action leaves for later stages. They are fields of the action's hash, and end with
-- the action's answer (`answer_actions`).

-- store_artifact(action; stage, bytes)
--   -> 1 stored; 0 the action is unknown, is answered, or is in another stage: nothing was written
local function store_artifact(keys, args)
  local key, stage = keys[1], args[1]
  local known = redis.call('HMGET', key, 'entry', 'answer', 'result', 'archived', 'stage', 'artifacts')
  if not known[1] or known[2] or known[3] or known[4] or (known[5] or '0') ~= stage then return 0 end
  local stages = known[6] or ''
  if not string.find(' ' .. stages .. ' ', ' ' .. stage .. ' ', 1, true) then
    stages = stages == '' and stage or stages .. ' ' .. stage
  end
  redis.call('HSET', key, 'artifacts', stages, 'artifact:' .. stage, args[2])
  return 1
end

register('store_artifact_v1', store_artifact)
