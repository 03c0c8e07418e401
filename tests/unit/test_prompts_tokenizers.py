"""Counters: the local tokenizer, and a server that answers /tokenize over a real socket."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadgen.prompts import LocalCounter, PromptError, ServerCounter, make_recipe
from server.simulator.tokenizer import folder


class Tokenize(BaseHTTPRequestHandler):
    """Answers /tokenize as vLLM does; the server's attributes say how it misbehaves and keep what was asked."""

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers.get("Authorization"), question))
        code, answer = self.server.misbehaviour or (200, None)
        if self.path != "/tokenize":
            code, answer = 404, b'{"detail":"Not Found"}'
        if answer is None:
            answer = json.dumps({"count": self.counted(question), "max_model_len": 4096, "tokens": []}).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def counted(self, question) -> int:
        tokenizer = self.server.tokenizer
        if "messages" in question:
            text = tokenizer.apply_chat_template(
                question["messages"], tokenize=False, add_generation_prompt=question["add_generation_prompt"]
            )
        else:
            text = question["prompt"]
        return len(tokenizer(text, add_special_tokens=question["add_special_tokens"])["input_ids"])

    def log_message(self, *args) -> None:
        pass


@pytest.fixture(scope="module")
def local() -> LocalCounter:
    return LocalCounter(folder())


@pytest.fixture
def server(local) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tokenize)
    server.asked, server.misbehaviour, server.tokenizer = [], None, local._tokenizer
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_server_and_its_tokenizer_give_the_same_recipe(server, local, endpoint):
    asked = make_recipe(ServerCounter(url(server)), endpoint=endpoint, seed=5)
    assert asked == make_recipe(local, endpoint=endpoint, seed=5)
    assert len(server.asked) < 50


def test_the_key_and_the_model_travel_and_a_trailing_v1_is_left_off(server):
    counter = ServerCounter(url(server) + "/v1/", model="tiny", api_key="sk-1")
    assert counter.count_text("the word") == 3
    assert server.asked == [
        ("/tokenize", "Bearer sk-1", {"model": "tiny", "prompt": "the word", "add_special_tokens": True})
    ]
    assert counter.describe() == url(server) + "/tokenize"


def test_without_a_key_nothing_is_sent_for_one(server):
    ServerCounter(url(server)).count_chat("the word")
    assert server.asked[0][1] is None


def test_a_proxy_of_the_environment_is_not_asked(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ServerCounter(url(server)).count_text("the") == 2


@pytest.mark.parametrize(
    ("code", "answer", "says", "hint"),
    [
        (404, b'{"detail":"Not Found"}', "has no /tokenize", "workload.tokenizer"),
        (401, b'{"error":"Unauthorized"}', "API key is missing or wrong", "API key"),
        (500, b"engine died", "answered 500: engine died", "workload.tokenizer"),
        (200, b"<html>hello</html>", "without a token count: <html>", "workload.tokenizer"),
        (200, b'{"count": null}', "without a token count", "workload.tokenizer"),
        (200, b'["count"]', "without a token count", "workload.tokenizer"),
        (200, b"", "an empty body", "workload.tokenizer"),
    ],
)
def test_a_server_that_does_not_count_is_an_error_with_a_remedy(server, code, answer, says, hint):
    server.misbehaviour = (code, answer)
    with pytest.raises(PromptError) as refusal:
        ServerCounter(url(server)).count_text("the")
    assert says in str(refusal.value)
    assert hint in refusal.value.hint


def test_a_server_that_is_not_there_is_an_error_with_a_remedy():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(PromptError, match=r"could not be reached: .*refused"):
        ServerCounter(f"http://127.0.0.1:{port}").count_text("the")


def test_a_server_that_speaks_no_http_is_an_error_with_a_remedy():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"220 smtp ready\r\n\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(PromptError, match="could not be reached: 220 smtp"):
            ServerCounter(f"http://127.0.0.1:{listener.getsockname()[1]}").count_text("the")
        thread.join()


def test_a_folder_without_a_tokenizer_is_an_error_that_names_it(tmp_path):
    with pytest.raises(PromptError, match=str(tmp_path)):
        LocalCounter(tmp_path)


def test_a_folder_that_is_not_there_is_an_error_and_not_a_download():
    with pytest.raises(PromptError, match="there is no such folder") as refusal:
        LocalCounter("./no/such/folder")
    assert "tokenizer.json" in refusal.value.hint


def test_a_tokenizer_without_a_chat_template_counts_texts_only(local, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder() / name).read_bytes())
    counter = LocalCounter(tmp_path)
    assert counter.count_text("the") == local.count_text("the") == 2
    with pytest.raises(PromptError, match="no chat template") as refusal:
        counter.count_chat("the")
    assert "completions" in refusal.value.hint
