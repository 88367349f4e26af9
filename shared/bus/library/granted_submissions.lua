-- Actions that a leader has granted before they are journaled: one write journals them and sends their grants.

-- Return true if the action was journaled by this leader in an earlier try of the same call, whose reply was lost.
local function is_own(journal, entry, epoch)
  local found = redis.call('XRANGE', journal, entry, entry)[1]
  if not found then return false end
  local fields = found[2]
  return fields[#fields - 1] == 'decided' and fields[#fields] == epoch
end

-- submit_granted(epoch:<role>, actions, kept, action..., stream...;
--                epoch, max_entries, most a tenant may keep or 0,
--                {digest, tenant, payload, mark, position of the stream, message}...)
--   -> {code, entry} each; the codes of journal_actions. Nothing is granted with another code than 1.
--   submit_granted_again is the same for a call whose reply may have been lost: it must find what was written, also when
--   memory is full. A repeated call changes nothing.
local function submit_granted(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local room = {
    journal = keys[2], kept_key = keys[3], entries = tonumber(args[2]) - redis.call('XLEN', keys[2]),
    kept = tonumber(args[3]), full = {}, ids = {}, decided = args[1],
  }
  local replies, last = {}, nil
  for i = 4, #args, 6 do
    local key, stream = keys[4 + #replies], keys[tonumber(args[i + 4])]
    local reply = journal_one(room, key, nil, nil, nil, nil, args[i], args[i + 1], args[i + 2])
    if reply[1] == 1 then
      room.entries = room.entries - 1
      redis.call('XADD', stream, '*', 'm', args[i + 5])
      redis.call('HSET', key, 'grant', args[i + 3])
      if stream ~= last then
        redis.call('EXPIRE', stream, GRANTS_KEPT_S)
        last = stream
      end
    elseif reply[1] == 0 and reply[2] and is_own(keys[2], reply[2], args[1]) then
      reply[1] = 1
    end
    replies[#replies + 1] = reply
  end
  return replies
end

register('submit_granted_v1', submit_granted)
register_allowed_when_full('submit_granted_again_v1', submit_granted)
