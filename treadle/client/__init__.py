"""Client of Treadle's REST interface, over aiohttp and msgspec alone.

`AsyncTreadle` is the client, `Treadle` the same without `await`. Every call is idempotent and is retried while the mesh
is away, within bounds (`RetryPolicy`). `requests` has the types of bodies, `answers` those of answers, `errors` what is
raised.
"""
