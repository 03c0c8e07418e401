"""The simulator's HTTP routes, as vLLM answers them: takes requests, gives streams; the engine decides when.

A client that disconnects is cancelled in the engine. A client that reads too slowly is disconnected (see `wire`).
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Hashable, Mapping
from datetime import UTC, datetime

import orjson
from aiohttp import HttpVersion11, web

from server.simulator.answer import Answer
from server.simulator.ask import ApiError, Ask, Endpoint, prompt_too_long, read_generation, read_tokenize
from server.simulator.driver import Driver
from server.simulator.engine import Engine, Request
from server.simulator.exposition import Exposition
from server.simulator.faults import Fault
from server.simulator.faulty import IN_STREAM, FaultyWire
from server.simulator.frames import Frames, whole_answer
from server.simulator.kv_cache import block_hashes
from server.simulator.metrics import EngineMetrics
from server.simulator.prompt import PromptTokens
from server.simulator.prompt_ids import PromptIds
from server.simulator.reply import Reply, plan_reply
from server.simulator.request_faults import RequestFaults, befall_whole, refuse
from server.simulator.settings import SimulatorSettings
from server.simulator.start_log import VERSION
from server.simulator.truth import TruthLog
from server.simulator.wire import Wire

_MAX_BODY_BYTES = 256 << 20


class Simulator:
    """The application: routes over one engine."""

    def __init__(
        self,
        settings: SimulatorSettings,
        tokens: PromptTokens,
        *,
        truth: TruthLog | None,
        api_key: str | None,
        on_end: Callable[[str], None] = lambda kind: None,
        timed_faults: bool = True,
    ) -> None:
        """Must be made on the running loop it serves. `on_end` is called with `restart` or `crash` when one is due.

        `timed_faults`: whether those happen that are due some seconds after the start.
        """
        self._settings = settings
        self._tokens = tokens
        self._prompts = PromptIds(tokens)
        self._truth = truth
        self._api_key = api_key
        self._loop = asyncio.get_running_loop()
        engine = Engine(settings)
        self._metrics = EngineMetrics(settings, engine)
        self._driver = Driver(engine, self._metrics, self._loop)
        self._ids = itertools.count()
        self._created_s = _wall_clock_s()
        self._page = Exposition(settings, self._metrics, datetime.now(UTC).timestamp())
        self._faults = RequestFaults(settings.faults, settings.seed)
        self._on_end = on_end
        for fault in self._faults.of_server() if timed_faults else ():
            self._loop.call_later(fault.values["seconds"], on_end, fault.kind)

    def application(self) -> web.Application:
        """The aiohttp application with every route."""
        application = web.Application(middlewares=[self._guard], client_max_size=_MAX_BODY_BYTES)
        application.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
                web.post("/tokenize", self._tokenize),
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.get("/health", self._health),
                web.get("/metrics", self._exposition),
                web.post("/simulator/faults", self._change_faults),
            ]
        )
        return application

    def close(self) -> None:
        """Stop the engine; open requests end as cancelled."""
        self._driver.close()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self._api_key is not None and request.path.startswith("/v1"):
            scheme, _, key = request.headers.get("Authorization", "").partition(" ")
            given = key.encode("utf-8", "surrogateescape")
            if scheme.lower() != "bearer" or not secrets.compare_digest(given, self._api_key.encode()):
                return web.json_response({"error": "Unauthorized"}, status=401)
        try:
            await self._faults.accept(request)
            return await handler(request)
        except ApiError as error:
            answer = _json(error.body(), error.status)
            answer.headers.update(error.headers)
            return answer
        except ConnectionResetError:
            # The client left between its request and the answer; there is nobody to tell.
            return web.Response(status=499)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completions")

    async def _generate(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        body = await _json_body(request)
        received_ns = time.monotonic_ns()
        settings = self._settings
        ask = read_generation(body, endpoint, model=settings.served_model_name, max_model_len=settings.max_model_len)
        faults = self._faults.of_request(request, ask.faults)
        refuse(faults)
        for kind in ("restart", "crash"):
            if kind in faults:
                self._on_end(kind)
        prompt_ids = await self._prompts.of_request(ask)
        if len(prompt_ids) >= settings.max_model_len:
            raise prompt_too_long(len(prompt_ids), settings.max_model_len)
        reply = plan_reply(
            self._tokens.words,
            prompt_ids,
            seed=settings.seed,
            max_tokens=ask.max_tokens,
            context_left=settings.max_model_len - len(prompt_ids),
            min_tokens=ask.min_tokens,
            ignore_eos=ask.ignore_eos,
            stop=ask.stop,
        )
        client_request_id = request.headers.get("X-Request-Id")
        prefix = "chatcmpl" if endpoint == "chat" else "cmpl"
        answer = Answer(
            Request(next(self._ids), len(prompt_ids), len(reply.texts), self._hashes(prompt_ids, reply)),
            reply,
            response_id=f"{prefix}-{client_request_id or uuid.uuid4().hex}",
            client_request_id=client_request_id,
            received_ns=received_ns,
            stream_interval=max(ask.stream_interval, settings.stream_interval),
            done=self._loop.create_future(),
        )
        if ask.stream and settings.stream:
            return await self._streamed(request, ask, answer, faults)
        await befall_whole(request, faults)
        return await self._whole(ask, answer)

    def _hashes(self, prompt_ids: list[int], reply: Reply) -> list[Hashable]:
        """What the prefix cache knows the request's blocks by; nothing when there is no such cache."""
        if not self._settings.enable_prefix_caching:
            return []
        return block_hashes([*prompt_ids, *map(self._tokens.word_id, reply.texts)], self._settings.block_size)

    async def _streamed(
        self, request: web.Request, ask: Ask, answer: Answer, faults: Mapping[str, Fault]
    ) -> web.StreamResponse:
        if request.version < HttpVersion11:
            hint = "behind nginx, set proxy_http_version 1.1"
            raise ApiError(f"Streaming needs HTTP/1.1 ({hint}).", status=505, kind="HTTPVersionNotSupported")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if request.transport is None:
            raise ConnectionResetError("the client left before its answer began")
        wire = Wire(request.transport)
        frames = Frames(
            ask.endpoint,
            response_id=answer.response_id,
            created_s=_wall_clock_s(),
            model=self._settings.served_model_name,
            prompt_tokens=answer.request.prompt_tokens,
            include_usage=ask.include_usage,
            continuous_usage=ask.continuous_usage,
        )
        try:
            in_stream = {kind: fault for kind, fault in faults.items() if kind in IN_STREAM}
            if in_stream:
                faulty = FaultyWire(wire, in_stream, request.transport)
                answer.stream = (faulty, frames)
                if not await faulty.carry(self._generated(answer)):
                    raise ConnectionResetError("the connection was ended on demand")
            else:
                answer.stream = (wire, frames)
                await self._generated(answer)
        finally:
            wire.close()
        await response.write_eof()
        return response

    async def _whole(self, ask: Ask, answer: Answer) -> web.StreamResponse:
        await self._generated(answer)
        content = whole_answer(
            ask.endpoint,
            response_id=answer.response_id,
            created_s=_wall_clock_s(),
            model=self._settings.served_model_name,
            prompt_tokens=answer.request.prompt_tokens,
            texts=answer.reply.texts,
            finish_reason=answer.reply.finish_reason,
            stop_reason=answer.reply.stop_reason,
        )
        return _json(orjson.dumps(content))

    async def _generated(self, answer: Answer) -> None:
        """Waits for the last token; aiohttp cancels the handler when the client disconnects, hence the `finally`."""
        self._driver.submit(answer)
        try:
            await answer.done
        finally:
            if self._driver.cancel(answer):
                answer.finished_ns = time.monotonic_ns()
                self._metrics.aborted()
            if self._truth is not None:
                self._truth.add(answer)

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        ask = read_tokenize(await _json_body(request), model=self._settings.served_model_name)
        ids = await self._prompts.of_tokenize(ask)
        answer = {
            "count": len(ids),
            "max_model_len": self._settings.max_model_len,
            "tokens": ids,
            "token_strs": self._tokens.pieces(ids) if ask.return_token_strs else None,
        }
        return _json(orjson.dumps(answer))

    async def _models(self, request: web.Request) -> web.StreamResponse:
        model = {
            "id": self._settings.served_model_name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "simulator",
            "root": self._settings.served_model_name,
            "parent": None,
            "max_model_len": self._settings.max_model_len,
        }
        return _json(orjson.dumps({"object": "list", "data": [model]}))

    async def _version(self, request: web.Request) -> web.StreamResponse:
        return _json(orjson.dumps({"version": VERSION}))

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _exposition(self, request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=self._page.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _change_faults(self, request: web.Request) -> web.StreamResponse:
        try:
            self._faults.change((await request.text()).strip())
        except ValueError as error:
            raise ApiError(str(error), param="faults") from None
        return web.Response()


async def _json_body(request: web.Request) -> bytes:
    if request.content_type != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise ApiError(message, kind="Bad Request")
    return await request.read()


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _wall_clock_s() -> int:
    return int(datetime.now(UTC).timestamp())
