"""Tries a TCP connection to an endpoint without sending anything."""

import asyncio
import contextlib
import os

from infra.network.bind_address import bare


async def obstacle(endpoint: str, seconds: float) -> str:
    """Returns why connecting to `tcp://host:port` fails within `seconds`; empty if it works."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(bare(host), int(port))
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except OSError as error:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""
