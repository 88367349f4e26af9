-- Quotas: amounts that attempts take, in the same write as the grant, the answer or the next stage.
--
-- Each function here is one of the plain functions with three more parts: at the end of its keys `quotas:holds` and
-- `quotas:levels`, at the end of its arguments the packed changes. So a write without quotas costs nothing more. A
-- change is repeated safely: a hold is taken while it is unknown and settled while it is known.
--   take:   {key of the hold, hold, {{field of a level, amount, refill per second, time, full bucket}...}}
--   settle: {key of the hold, false, the same with negative amounts}
--   hold:   {key of the hold, hold, {}}
--   rates:  {'', false, the levels of changed rates, with their new refill}; repeated if a level is not older. A rate
--           that is set has a sixth value, from which time on attempts take from it

-- A level is the amount that is missing from the full bucket, at what time, its refill per second since, the full
-- bucket, and the time of the first take. A former version writes the first three.
-- `levels`: those that this call has read or changed, by field.
local function add_to_level(levels_key, levels, change, once)
  local field, amount, per_s, at = change[1], change[2], change[3], change[4]
  local level = levels[field]
  if not level then
    level = { 0, at, per_s, nil, at }
    local stored = redis.call('HGET', levels_key, field)
    if stored then
      local place = 1
      level = { known = true, [5] = 0 }
      for number in string.gmatch(stored, '%S+') do
        level[place], place = tonumber(number), place + 1
      end
    end
    levels[field] = level
  end
  local since = level[2]
  if once and at <= since and level.known then return end
  if at < since then at = since end
  level[1] = math.max(0, math.max(0, level[1] - (at - since) * level[3]) + amount)
  level[2], level[3], level[4], level[5] = at, per_s, change[5] or level[4], change[6] or level[5]
  level.known, level.changed = true, true
end

local function change_holds(holds_key, levels_key, packed)
  local by_field = {}
  for _, change in ipairs(cmsgpack.unpack(packed)) do
    local key, hold, levels = change[1], change[2], change[3]
    local new = true
    if key ~= '' then
      if hold then new = redis.call('HSETNX', holds_key, key, hold) == 1
      else new = redis.call('HDEL', holds_key, key) == 1 end
    end
    if new then
      for _, level in ipairs(levels) do
        add_to_level(levels_key, by_field, level, key == '')
      end
    end
  end
  for field, level in pairs(by_field) do
    if level.changed then
      local format = level[4] and '%.17g %.17g %.17g %.17g %.17g' or '%.17g %.17g %.17g'
      redis.call('HSET', levels_key, field, string.format(format, unpack(level, 1, level[4] and 5 or 3)))
    end
  end
end

local function with_quotas(plain)
  return function(keys, args)
    if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
    local levels_key, holds_key = table.remove(keys), table.remove(keys)
    change_holds(holds_key, levels_key, table.remove(args))
    return plain(keys, args)
  end
end

-- change_holds(epoch:<role>, quotas:holds, quotas:levels; epoch, packed changes)
local function change_holds_alone(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  change_holds(keys[2], keys[3], args[2])
  return 1
end

-- expire_levels(epoch:<role>, quotas:levels; epoch, {field, level}...): remove those that have not changed since
local function expire_levels(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  for i = 2, #args, 2 do
    if redis.call('HGET', keys[2], args[i]) == args[i + 1] then redis.call('HDEL', keys[2], args[i]) end
  end
  return 1
end

-- store_estimates(epoch:<role>, quotas:estimates; epoch, most, {field, value}...): store learned amounts. Beyond `most`
--   fields, any others than these are removed.
local function store_estimates(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local given, most = {}, tonumber(args[2])
  for i = 3, #args, 2 do
    given[args[i]] = true
    redis.call('HSET', keys[2], args[i], args[i + 1])
  end
  local beyond = redis.call('HLEN', keys[2]) - most
  if beyond > 0 then
    for _, field in ipairs(redis.call('HKEYS', keys[2])) do
      if beyond > 0 and not given[field] then
        redis.call('HDEL', keys[2], field)
        beyond = beyond - 1
      end
    end
  end
  return 1
end

-- set_quota(quotas, stream of changes; name, limits or '', kept, message, most): create, change or delete a quota.
--   Returns 0, and writes nothing, if it would be a new one beyond `most`.
local function set_quota(keys, args)
  local new = args[2] ~= '' and redis.call('HEXISTS', keys[1], args[1]) == 0
  if new and redis.call('HLEN', keys[1]) >= tonumber(args[5]) then return 0 end
  if args[2] == '' then redis.call('HDEL', keys[1], args[1]) else redis.call('HSET', keys[1], args[1], args[2]) end
  redis.call('XADD', keys[2], 'MAXLEN', '~', args[3], '*', 'm', args[4])
  return 1
end

register_allowed_when_full('send_grants_with_quotas_v1', with_quotas(send_grants))
register_allowed_when_full('answer_actions_with_quotas_v1', with_quotas(answer_actions))
register_allowed_when_full('advance_stages_with_quotas_v1', with_quotas(advance_stages))
register_allowed_when_full('change_holds_v2', change_holds_alone)
register_allowed_when_full('expire_levels_v1', expire_levels)
register_allowed_when_full('store_estimates_v1', store_estimates)
register('set_quota_v2', set_quota)
