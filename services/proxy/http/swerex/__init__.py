"""SWE-ReX's remote runtime over a trajectory: its published client uses our environments with another address.

The base path is `/v1/trajectories/{trajectory}/swerex`. Each verb is one action in the environment, or two if a command
must be checked first. So order, queueing, cores and repeats are those of every other action. `X-Request-ID` is the
action's `request_id`: a repeat returns the first answer.

Interactive programs (`is_interactive_command`, `expect`) are not supported, because there is no terminal. A command at
its time limit is ended. `CommandTimeoutError` has its output so far in the message and in `extra_info`, and the next
interrupt returns it.
"""
