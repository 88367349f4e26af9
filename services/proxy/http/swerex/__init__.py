"""SWE-ReX's remote runtime over a trajectory: its published client drives our environments with a changed address.

Its base is `/v1/trajectories/{trajectory}/swerex`. Each verb is one action in the environment, or two where a command
has to be checked first; so order, queueing, cores and repeats are those of every other action. `X-Request-ID` is the
action's `request_id`: a repeat returns the first answer.

Not here: interactive programs (`is_interactive_command`, `expect`), for want of a terminal. A command that met its
time limit has been ended: `CommandTimeoutError` has its output so far in the message and in `extra_info`, and the next
interrupt returns it.
"""
