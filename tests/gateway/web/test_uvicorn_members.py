"""The members of uvicorn that the gateway's protocol overrides or reads: a release that changes them is red by name."""

import asyncio
import inspect
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

OVERRIDDEN = {
    HttpToolsProtocol: {
        "connection_made": ["transport"],
        "connection_lost": ["exc"],
        "data_received": ["data"],
        "eof_received": [],
        "on_message_begin": [],
        "on_url": ["url"],
        "on_header": ["name", "value"],
        "on_headers_complete": [],
        "on_body": ["body"],
        "on_message_complete": [],
        "on_response_complete": [],
        "send_400_response": ["msg"],
        "_start_asgi_task": ["cycle", "app"],
    },
    uvicorn.Server: {"startup": ["sockets"], "shutdown": ["sockets"], "capture_signals": []},
}
"""Methods with their parameters."""
CALLED = {
    HttpToolsProtocol: ["_unset_keepalive_if_required"],
    FlowControl: ["drain", "resume_reading"],
    uvicorn.Server: ["serve"],
}
OF_CONNECTION = [
    "config",
    "loop",
    "logger",
    "access_log",
    "parser",
    "transport",
    "flow",
    "headers",
    "cycle",
    "pipeline",
]
OF_CYCLE = ["scope", "transport", "flow", "message_event", "disconnected", "keep_alive", "waiting_for_100_continue"]
OF_CYCLE += ["more_body", "response_started", "response_complete", "chunked_encoding", "expected_content_length"]


async def serve(scope: object, receive: object, send: object) -> None:
    """Stands for an application."""


@pytest.mark.parametrize("kind", OVERRIDDEN)
def test_methods_that_are_overridden(kind: type) -> None:
    found = {name: list(inspect.signature(getattr(kind, name)).parameters)[1:] for name in OVERRIDDEN[kind]}
    assert found == OVERRIDDEN[kind]


@pytest.mark.parametrize("kind", CALLED)
def test_methods_that_are_called(kind: type) -> None:
    assert [name for name in CALLED[kind] if not callable(getattr(kind, name, None))] == []


async def test_attributes_that_are_read() -> None:
    config = uvicorn.Config(serve, http=HttpToolsProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    connection = HttpToolsProtocol(config, ServerState(), {})
    assert [name for name in OF_CONNECTION if not hasattr(connection, name)] == []
    flow = FlowControl(Mock(asyncio.Transport))
    assert flow.write_paused is False
    parts = dict.fromkeys(inspect.signature(RequestResponseCycle).parameters)
    scope = {"headers": [], "http_version": "1.1", "method": "GET"}
    parts |= {"scope": scope, "flow": flow, "logger": SimpleNamespace(), "keep_alive": True}
    cycle = RequestResponseCycle(**parts)  # type: ignore[arg-type]
    assert [name for name in OF_CYCLE if not hasattr(cycle, name)] == []


async def test_attributes_of_a_server() -> None:
    server = uvicorn.Server(uvicorn.Config(serve, lifespan="off", log_config=None))
    assert server.should_exit is False and isinstance(server.server_state, ServerState)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup([])
    assert server.servers == [] and server.lifespan.state == {}
