"""A server on a free port of this machine, in a thread of the test's own process."""

import asyncio
import copy
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from openai import OpenAI

from specdec import Generator
from specdec.apps.serving.app import application
from specdec.apps.serving.options import ServerOptions
from specdec.apps.serving.server import Server
from tests.support.built_in_model import built_in


@dataclass
class Served:
    """A running server, and what decodes for it."""

    server: Server
    url: str
    generator: Generator
    clients: ExitStack

    def openai(self, key: str = "none") -> OpenAI:
        """OpenAI's own client of it, which doesn't try twice."""
        client = OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60.0)
        return self.clients.enter_context(client)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """A bare request."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=60.0, **options)


def templated(template: str | None, proposer: str = "auto") -> Generator:
    """The built-in model with another chat template."""
    model, tokenizer = built_in()
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template
    return Generator(model, tokenizer, proposer=proposer)


@contextmanager
def serving(generator: Generator | None = None, **options: Any) -> Iterator[Served]:
    """Serve the demo model, or another, with some of the server's options."""
    if generator is None:
        generator = Generator(*built_in(), proposer="auto")
    generator.prepare()  # or the engine would run the model in its idle time, during tests
    server = Server(generator, ServerOptions(**{"name": "demo", **options}), "auto")
    config = uvicorn.Config(application(server, "127.0.0.1"), host="127.0.0.1", port=0, log_config=None)
    process = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(process.serve()), daemon=True)
    engine = threading.Thread(target=server.engine.run, daemon=True)
    thread.start()
    engine.start()
    while not process.started:
        thread.join(0.01)
        assert thread.is_alive(), "the server has not started"
    port = process.servers[0].sockets[0].getsockname()[1]
    try:
        # Clients that aren't closed have sockets that aren't: a warning in whichever test runs when they are collected.
        with ExitStack() as clients:
            yield Served(server, f"http://127.0.0.1:{port}", generator, clients)
    finally:
        process.should_exit = True
        for each in (thread, engine):
            each.join(60)
            assert not each.is_alive()
        generator.close()
