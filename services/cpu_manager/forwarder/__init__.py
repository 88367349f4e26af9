"""The forwarder: a process beside the manager that carries model calls of environments to the trajectory router.

`forwarder`: the manager's side; it starts and restarts the process, and passes it listeners
`control`: messages between both
`process`, `served`, `pace`: the process; what one trajectory's environment is served, and how fast
`models`: what a runtime needs of it, and what refuses where there is none
"""
