"""A copy of the function library that rejects a touched key that its caller has not passed."""

from __future__ import annotations

from typing import Final

from shared.bus import functions

DERIVED: Final[dict[str, tuple[str, ...]]] = {
    "answer_actions_v2": ("batch:", "environments:"),
    "answer_actions_with_quotas_v1": ("batch:", "environments:"),
    "close_trajectory_v2": ("trace:",),
    "expire_leases_v1": ("action:",),
    "expire_trajectories_v2": ("trace:",),
    "list_leases_v1": ("action:",),
    "open_batch_v2": ("batch:",),
    "open_trajectory_v2": ("trajectory:",),
    "record_environment_ends_v2": ("trace:",),
}
"""Function -> prefixes of keys that it derives from stored values. ADR 0055 has the reasons."""

_PROLOGUE: Final = """
-- `redis` is the server's own up to its definition below.
local function_name, passed = '', {}
local derived = { %s }

local function is_derived(key)
  for _, prefix in ipairs(derived[function_name] or {}) do
    if string.sub(key, 1, #prefix) == prefix then return true end
  end
  return false
end

local function touched(words)
  if words[1] == 'TIME' then return {} end
  if words[1] == 'EXISTS' or words[1] == 'DEL' or words[1] == 'UNLINK' then
    return { unpack(words, 2) }
  end
  return { words[2] }
end

local function checked_call(...)
  for _, key in ipairs(touched({ ... })) do
    if not passed[key] and not is_derived(key) then
      error('KEY ' .. key .. ' of ' .. function_name .. ' was not passed')
    end
  end
  return redis.call(...)
end

local function checked(name, callback)
  return function(keys, args)
    function_name, passed = name, {}
    for _, key in ipairs(keys) do passed[key] = true end
    return callback(keys, args)
  end
end

local redis = {
  call = checked_call,
  error_reply = function(text) return redis.error_reply(text) end,
  register_function = function(first, callback)
    if callback then
      redis.register_function(first, checked(first, callback))
    else
      first.callback = checked(first.function_name, first.callback)
      redis.register_function(first)
    end
  end,
}
"""


def checked_source(source: str | None = None) -> str:
    """Return the library with `redis` replaced by a table that checks the keys of every command."""
    header, _, body = (source or functions.source()).partition("\n")
    listed = ", ".join(
        f"{name} = {{ {', '.join(repr(prefix) for prefix in prefixes)} }}" for name, prefixes in DERIVED.items()
    )
    return header + _PROLOGUE % listed + body
