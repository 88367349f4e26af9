"""The client of Treadle's REST interface, over aiohttp and msgspec alone.

`AsyncTreadle` is the client, `Treadle` the same without `await`. Every call is harmless to repeat and is repeated while
the mesh is away, within a bound (`Patience`). `requests` has what is sent, `answers` what comes back, `errors` what is
raised.
"""
