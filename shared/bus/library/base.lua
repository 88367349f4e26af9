#!lua name=treadle
-- Server-side functions of the mesh. Each is atomic, so no reader sees an invariant broken.
--
-- The files of this folder are one library, loaded in the order of `SOURCES` (shared/bus/functions.py). The keys, their
-- types and their fields are in shared/bus/keys.py. Callers pass every key that a function touches (`keys`); the
-- exceptions, keys whose names are stored values, are marked "derived" and listed in ADR 0055.
--
-- allow-oom: work under way frees memory when it is full. So only these are rejected: new work (journal_actions,
-- submit_granted, open_batch, open_trajectory), artifacts (store_artifact), reports of rollouts (progress), new limits
-- (set_quota) and traces (trace_actions).
-- Every name ends in the version of its arguments. A function with changed arguments gets the next number. So a replica of an older version fails and writes nothing
-- wrong.

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- The part of a key after its first colon: the id of an action, batch or trajectory.
local function id_of(key)
  return string.sub(key, string.find(key, ':', 1, true) + 1)
end

local FENCED = 'FENCED another leader has taken over'

-- Return true if another holder has taken the role since. `epoch_key`: epoch:<role>.
local function fenced(epoch_key, epoch)
  return redis.call('GET', epoch_key) ~= epoch
end

local function publish_event(stream, kept, message)
  redis.call('XADD', stream, 'MAXLEN', '~', kept, '*', 'm', cmsgpack.pack(message))
end

-- Drop outcomes whose results are written. They carry the outputs of actions.
local function acknowledge(stream, outcomes)
  if #outcomes > 0 then redis.call('XDEL', stream, unpack(outcomes)) end
end

local function add_kept(kept, tenant, bytes)
  if bytes ~= 0 then redis.call('HINCRBY', kept, tenant, bytes) end
end

local function register(name, callback)
  redis.register_function(name, callback)
end

local function register_allowed_when_full(name, callback)
  redis.register_function { function_name = name, callback = callback, flags = { 'allow-oom' } }
end
