"""Treadle's REST door from the outside: a small typed client over aiohttp.

`rest.Client` is what others use. Every call is harmless to repeat and is repeated while the door is away, within a
bound; errors are the mesh's own (`shared.runtime.errors`), rebuilt from their problem documents.
"""
