-- Reports of nodes.

local function forget_hello(hellos, at, node)
  redis.call('HDEL', hellos, node)
  redis.call('ZREM', at, node)
end

local function generation_of(hello)
  local read, message = pcall(cmsgpack.unpack, hello or '')
  return read and type(message) == 'table' and tonumber(message.generation) or 0
end

-- next_generation(generations, hellos; node) -> a number above every earlier one, and above that of the stored hello
local function next_generation(keys, args)
  local known = generation_of(redis.call('HGET', keys[2], args[1]))
  if known > tonumber(redis.call('GET', keys[1]) or 0) then redis.call('SET', keys[1], known) end
  return redis.call('INCR', keys[1])
end

-- publish_hello(nodes, hellos, hellos:at; kept, most, node, generation, hello) -> 1 published and stored;
--   0 neither: a manager of this node that started later has published its hello
local function publish_hello(keys, args)
  if generation_of(redis.call('HGET', keys[2], args[3])) > tonumber(args[4]) then return 0 end
  redis.call('XADD', keys[1], 'MAXLEN', '~', args[1], '*', 'm', args[5])
  redis.call('HSET', keys[2], args[3], args[5])
  redis.call('ZADD', keys[3], now_ms(), args[3])
  local excess = redis.call('ZCARD', keys[3]) - args[2]
  if excess > 0 then
    for _, node in ipairs(redis.call('ZRANGE', keys[3], 0, excess - 1)) do forget_hello(keys[2], keys[3], node) end
  end
  return 1
end

-- publish_bye(nodes, hellos, hellos:at; kept, node, incarnation, bye): a hello of another incarnation stays
local function publish_bye(keys, args)
  redis.call('XADD', keys[1], 'MAXLEN', '~', args[1], '*', 'm', args[4])
  local read, stored = pcall(cmsgpack.unpack, redis.call('HGET', keys[2], args[2]) or '')
  if read and type(stored) == 'table' and stored.incarnation == args[3] then forget_hello(keys[2], keys[3], args[2]) end
  return 1
end

-- expire_hellos(epoch:<role>, hellos, hellos:at; epoch, silent_ms, node...)
--   -> those of the given nodes without a hello for this long, removed
local function expire_hellos(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local since, removed = now_ms() - args[2], {}
  for i = 3, #args do
    if tonumber(redis.call('ZSCORE', keys[3], args[i]) or since + 1) <= since then
      forget_hello(keys[2], keys[3], args[i])
      removed[#removed + 1] = args[i]
    end
  end
  return removed
end

register_allowed_when_full('next_generation_v1', next_generation)
register_allowed_when_full('publish_hello_v1', publish_hello)
register_allowed_when_full('publish_bye_v1', publish_bye)
register_allowed_when_full('expire_hellos_v1', expire_hellos)
