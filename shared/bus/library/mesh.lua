-- What belongs to the whole mesh: its backlog, bounded streams, its identity and the key of its ids.

-- publish_backlog(epoch:<role>, backlog; epoch, pools, stuck, quotas, [batches]): publish what waits in pools and for
--   quotas, and how much of each batch is stuck; for the planner also where the requests of open batches are (unchanged
--   without `batches`)
local function publish_backlog(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  redis.call('HSET', keys[2], 'pools', args[2], 'stuck', args[3], 'quotas', args[4])
  if args[5] then redis.call('HSET', keys[2], 'batches', args[5]) end
  return 1
end

-- publish_reasons(epoch:<role>, backlog:reasons or quotas:brakes; epoch, [field, value]...): replace the hash: the
-- reasons why actions wait, or the brakes of quotas
local function publish_reasons(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  redis.call('DEL', keys[2])
  for i = 2, #args, 2 do redis.call('HSET', keys[2], args[i], args[i + 1]) end
  return 1
end

-- publish(stream; kept, payload...): also when memory is full, because nodes' reports lead to freed memory
local function publish(keys, args)
  for i = 2, #args do redis.call('XADD', keys[1], 'MAXLEN', '~', args[1], '*', 'm', args[i]) end
  return #args - 1
end

-- id_key(ids, epoch:dispatcher; candidate, window_ms)
--   -> {key of derived ids, end in ms of the window in which older ids are looked up}
--   Created once. A store that has had a leader before has ids of an older version.
local function id_key(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then
    local used = redis.call('EXISTS', keys[2]) == 1
    redis.call('HSET', keys[1], 'key', args[1], 'older_until_ms', used and now_ms() + args[2] or 0)
  end
  return redis.call('HMGET', keys[1], 'key', 'older_until_ms')
end

-- mesh_identity(mesh; candidate) -> the store's identity; the candidate if it has none yet.
local function mesh_identity(keys, args)
  redis.call('SET', keys[1], args[1], 'NX')
  return redis.call('GET', keys[1])
end

-- declare_service(serving:declared, serving:changes; name, declaration or '', most) -> number of the change; 0: there
--   are `most` declared services. A value is the number of its change, a space, and the declaration.
local function declare_service(keys, args)
  if args[2] == '' then
    if redis.call('HDEL', keys[1], args[1]) == 0 then return 0 end
    return redis.call('INCR', keys[2])
  end
  local known = redis.call('HEXISTS', keys[1], args[1]) == 1
  if not known and redis.call('HLEN', keys[1]) >= tonumber(args[3]) then return 0 end
  local change = redis.call('INCR', keys[2])
  redis.call('HSET', keys[1], args[1], change .. ' ' .. args[2])
  return change
end

register_allowed_when_full('publish_backlog_v3', publish_backlog)
register_allowed_when_full('publish_reasons_v1', publish_reasons)
register_allowed_when_full('publish_v2', publish)
register_allowed_when_full('id_key_v2', id_key)
register_allowed_when_full('mesh_identity_v2', mesh_identity)
register('declare_service_v1', declare_service)
