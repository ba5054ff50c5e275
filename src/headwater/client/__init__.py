"""A lake behind a service: the same statements, results and errors as an open lake, over HTTP."""

from headwater.client.lake import LakeLike, RemoteLake

__all__ = ["LakeLike", "RemoteLake"]
