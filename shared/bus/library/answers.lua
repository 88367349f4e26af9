-- Answers: each action is answered once; its journal entry is deleted and its answer stored in one step.

local ANSWERED_KEPT_S = 10   -- a replica that is further behind has read the store meanwhile
local ARCHIVED_AFTER_S = 60  -- an answer outside a batch that expires sooner is not archived
local MOST_USED = 16         -- names of usage that are summed for a batch, as in shared/policy/model/results.py
local ANSWER_BYTES = 250     -- bytes of an answer in Valkey besides its own: its action's key, stream or hash

local ARTIFACTS = {}  -- fields with artifacts, of the 16 stages that a task may have
for stage = 0, 15 do ARTIFACTS[#ARTIFACTS + 1] = 'artifact:' .. stage end

-- An action in an environment must not be executed again, even when its answer is gone. So it is recorded for as long
-- as its trajectory's record exists.
local function record_acted(action_key, trajectory_key, acted_key)
  local left_s = redis.call('TTL', trajectory_key)
  if left_s > 0 then
    redis.call('SADD', acted_key, action_key)
    redis.call('EXPIRE', acted_key, left_s)
  end
end

-- Add usage to the sums of a batch. `used`: JSON, name -> amount. Executors choose the names, so their number is bounded.
local function add_usage(key, used)
  local names = 0
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 5) == 'used:' then names = names + 1 end
  end
  for name, amount in pairs(cjson.decode(used)) do
    local field = 'used:' .. name
    local is_new = redis.call('HEXISTS', key, field) == 0
    if not is_new or names < MOST_USED then redis.call('HINCRBYFLOAT', key, field, amount) end
    if is_new then names = names + 1 end
  end
end

-- Count an answer in a trajectory for the batch that the trajectory names. `masked`: how it ended, a space, why; or ''.
-- `used`: JSON, name -> amount; or ''.
-- Derived: the keys of that batch, which only the trajectory's record names.
local function count_for_batch(trajectory_key, masked, used)
  local batch = redis.call('HGET', trajectory_key, 'batch')
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
  if used ~= '' then add_usage(key, used) end
  if left_s >= 0 then redis.call('EXPIRE', key, left_s) end
end

-- Store the answer of an action outside a batch. One kept longer than `ARCHIVED_AFTER_S` is archived. Returns bytes.
local function answer_outside_batch(unarchived, key, answer, keep_s, tenant)
  redis.call('HSET', key, 'answer', answer)
  redis.call('EXPIRE', key, keep_s)
  if tonumber(keep_s) <= ARCHIVED_AFTER_S then return 0 end
  local bytes = #answer + ANSWER_BYTES
  redis.call('XADD', unarchived, '*', 'action', id_of(key), 'bytes', bytes, 'tenant', tenant)
  return bytes
end

-- Record the bytes of batches' new results, and that these are to be archived.
local function add_results(kept_batches, unarchived, new)
  local ms = now_ms()
  for _, each in ipairs(new) do
    redis.call('HINCRBY', kept_batches, each.member, each.bytes)
    redis.call('ZADD', unarchived, 'NX', ms, each.member)
  end
end

-- answer_actions(epoch:<role>, actions, answered, outcomes, unarchived, unarchived:actions, kept, kept:batches,
--                batches:open, batches, action..., {batch, results, archived, environments of it}...,
--                {trajectory, acted of it}...;
--                epoch, retention_batch_s,
--                {entry, position of its batch or 0, of its trajectory or 0, answer, retention_s, tenant, masked,
--                 outcome or '', unqueued_end_ms, used}...)
--   -> 1 answered now, 0 was answered; masked, used: see `count_for_batch`
local function answer_actions(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local flags, answered, kept_by, outcomes = {}, {}, {}, {}
  local batches, new, by_position = {}, {}, {}  -- batches with a new answer: ids, and what is counted of each
  for i = 3, #args, 10 do
    local key = keys[11 + #flags]
    local at, t, answer, tenant = tonumber(args[i + 1]), tonumber(args[i + 2]), args[i + 3], args[i + 5]
    local bytes = #answer + ANSWER_BYTES
    local live = redis.call('XDEL', keys[2], args[i])
    flags[#flags + 1] = live
    if args[i + 7] ~= '' then outcomes[#outcomes + 1] = args[i + 7] end
    if live == 1 then
      answered[#answered + 1] = id_of(key)
      -- The store of an artifact follows a grant, which is removed only when the next stage begins.
      local removed = redis.call('HDEL', key, 'grant', 'stage', 'carried', 'parking', 'resume', 'parker', 'artifacts')
      if removed > 1 then redis.call('HDEL', key, unpack(ARTIFACTS)) end
      if at == 0 then
        bytes = answer_outside_batch(keys[6], key, answer, args[i + 4], tenant)
        if t > 0 then
          record_acted(key, keys[t], keys[t + 1])
          count_for_batch(keys[t], args[i + 6], args[i + 9])
        end
      else
        redis.call('HSET', key, 'result', redis.call('XADD', keys[at + RESULTS], '*', 'a', answer))
        redis.call('EXPIRE', key, args[2])
        redis.call('HINCRBY', keys[at], 'answered', 1)
        local each = by_position[at]
        if not each then
          local batch = id_of(keys[at])
          each = { at = at, member = tenant .. '/' .. batch, bytes = 0, end_ms = 0 }
          by_position[at], new[#new + 1], batches[#batches + 1] = each, each, batch
        end
        each.bytes = each.bytes + bytes
        each.end_ms = math.max(each.end_ms, tonumber(args[i + 8]))
      end
      kept_by[tenant] = (kept_by[tenant] or 0) + bytes
    end
  end
  add_results(keys[8], keys[5], new)
  for tenant, bytes in pairs(kept_by) do add_kept(keys[7], tenant, bytes) end
  for _, each in ipairs(new) do
    if each.end_ms > tonumber(redis.call('HGET', keys[each.at], 'unqueued_end_ms') or 0) then
      redis.call('HSET', keys[each.at], 'unqueued_end_ms', each.end_ms)
    end
    complete_if_answered(keys, each.at, keys[9], keys[10], args[2])
  end
  acknowledge(keys[4], outcomes)
  if #answered > 0 then
    redis.call('XADD', keys[3], 'MINID', '~', now_ms() - ANSWERED_KEPT_S * 1000, '*',
      'm', cmsgpack.pack({ kind = 'answered.v1', actions = answered, batches = batches }))
  end
  return flags
end

-- advance_stages(epoch:<role>, outcomes, action...; epoch, {stage, carried, outcome or ''}...)
--   Begin the next stage. `carried`: measurements of the earlier stages.
local function advance_stages(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local outcomes, at = {}, 3
  for i = 2, #args, 3 do
    redis.call('HSET', keys[at], 'stage', args[i], 'carried', args[i + 1])
    redis.call('HDEL', keys[at], 'grant')
    if args[i + 2] ~= '' then outcomes[#outcomes + 1] = args[i + 2] end
    at = at + 1
  end
  acknowledge(keys[2], outcomes)
  return 1
end

register_allowed_when_full('answer_actions_v2', answer_actions)
register_allowed_when_full('advance_stages_v2', advance_stages)
