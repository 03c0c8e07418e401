"""Why a vLLM did not start: takes its log, gives a sentence and what people do about it; never reads a file.

The texts are vLLM's own (0.5 to 0.32) and those of torch, transformers and argparse beneath it. The order of the remedies
is that of vLLM's guide "Conserving memory": a shorter context costs nothing that is not used, more memory for vLLM comes
next, fewer sequences cost throughput, and more GPUs cost money.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong."""

    kind: str
    """`port_taken`, `kv_cache_too_small`, `memory_taken`, `out_of_memory`, …; `unknown` where no text was recognised."""
    text: str
    """A full sentence."""
    hint: str


@dataclass(frozen=True, slots=True)
class _Cause:
    kind: str
    pattern: re.Pattern[str]
    text: Callable[[re.Match[str]], str]
    hint: Callable[[re.Match[str]], str]


def explain(log: str, exit_code: int | None) -> Failure:
    """The cause that the log names, the root before what follows from it.

    `exit_code`: of the process, negative or 128 + N for a signal; None while it lives.
    """
    log = _without_prefixes(log)
    for cause in _CAUSES:
        if (found := cause.pattern.search(log)) is not None:
            return Failure(cause.kind, cause.text(found), cause.hint(found))
    if exit_code in (-9, 137):
        return Failure(
            "killed",
            "It was killed by SIGKILL, as the kernel does when the machine has no memory left.",
            "look at the kernel's log (dmesg) for the out-of-memory killer; a smaller model, or swap_space and "
            "VLLM_CPU_KVCACHE_SPACE set lower, need less of the host's memory",
        )
    last = _last_error(log)
    return Failure(
        "unknown",
        f"Its log says: {last}." if last else "Its log names no cause.",
        "read its log, whose first line is the command, and run that by hand",
    )


# `(EngineCore pid=12) ERROR 11-29 23:41:51 [core.py:133] ` and the colours of a terminal.
_PREFIX = re.compile(r"^(\x1b\[[\d;]*m)?(\([\w ]+pid=\d+[^)]*\)(\x1b\[[\d;]*m)? ?)+", re.MULTILINE)
_LEVEL = re.compile(r"^(ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?", re.MULTILINE)
# What follows from another error.
_CONSEQUENCE = re.compile(r"Engine core initialization failed|Engine process failed to start|EngineDeadError|cancelled")


def _without_prefixes(log: str) -> str:
    return _LEVEL.sub("", _PREFIX.sub("", log))


def _last_error(log: str) -> str | None:
    errors = [line.strip() for line in log.splitlines() if re.match(r"\s*[\w.]*(Error|Exception)\b: ?\S", line)]
    roots = [line for line in errors if not _CONSEQUENCE.search(line)]
    found = (roots or errors or [""])[-1]
    return found.rstrip(".")[:300] or None


def _fixed(text: str) -> Callable[[re.Match[str]], str]:
    return lambda _: text


_LESS_MEMORY = (
    "lower max_model_len, then raise gpu_memory_utilization, then lower max_num_seqs, then spread the model over more "
    "GPUs with tensor_parallel_size"
)


def _too_small(found: re.Match[str]) -> str:
    wanted, needed, there = found["wanted"], found["needed"], found["there"]
    return (
        f"The KV cache is too small for one sequence of max_model_len {wanted}: it needs {needed} GiB, and "
        f"{there} GiB are left for it."
    )


def _shorter(found: re.Match[str]) -> str:
    fits = found["fits"]
    first = f"set max_model_len to at most {fits}" if fits else "lower max_model_len"
    return _LESS_MEMORY.replace("lower max_model_len", first, 1)


_CAUSES = (
    _Cause(
        "not_installed",
        re.compile(r"No module named '?vllm\b|^(\S*sh: .*vllm: (command )?not found)", re.MULTILINE),
        _fixed("vLLM is not installed where the command runs."),
        _fixed("set server.python to the python of the environment that has vLLM, or mend server.command"),
    ),
    _Cause(
        "broken_command",
        re.compile(r"No package metadata was found for vllm"),
        _fixed("The command vllm does not work: it finds no distribution called vllm."),
        _fixed("set server.python to that environment's python, which starts the server's module instead"),
    ),
    _Cause(
        "unknown_flag",
        re.compile(r"error: unrecognized arguments: (?P<flags>.+)"),
        lambda found: f"This vLLM does not know {found['flags'].strip()}.",
        _fixed("check the keys under server against `vllm serve --help=all` of that version"),
    ),
    _Cause(
        "wrong_dtype",
        re.compile(r"error: argument --dtype: invalid choice: (?P<given>\S+)|Unknown dtype: (?P<other>\S+)"),
        lambda found: f"{found['given'] or found['other']} is not a dtype.",
        _fixed("set server.dtype to auto, bfloat16, float16 or float32"),
    ),
    _Cause(
        "wrong_value",
        re.compile(r"error: argument (?P<flag>--[\w-]+)\S*: (?P<why>.+)"),
        lambda found: (
            f"vLLM refuses the value of {found['flag'].rstrip(',')}: {found['why'].strip().rstrip('.')[:200]}."
        ),
        _fixed("check that key under server"),
    ),
    _Cause(
        "port_taken",
        re.compile(
            r"\[Errno 98\] (error while attempting to bind on address[^\n]*|Address already in use)|EADDRINUSE"
            r"|\[Errno 48\] Address already in use|port is already allocated",
            re.IGNORECASE,
        ),
        _fixed("Its port is taken by another program."),
        _fixed("leave server.port out to have a free one chosen, or end the program that holds it"),
    ),
    _Cause(
        "model_not_found",
        re.compile(r"(You are trying to access a )?gated repo|Access to model (?P<model>\S+) is restricted"),
        _fixed("The model is gated: its owner wants to know who loads it."),
        _fixed("accept its terms on the hub and export HF_TOKEN before loadgen starts"),
    ),
    _Cause(
        "model_not_found",
        re.compile(
            r"Invalid repository ID or local directory specified:\s*'(?P<a>[^']*)'"
            r"|(?P<b>\S+) is not a local folder and is not a valid model identifier"
            r"|Repo id must be in the form[^\n]*: '(?P<c>[^']*)'"
            r"|Cannot find any model weights with `(?P<d>[^`]*)`"
            r"|Repository Not Found for url: (?P<e>\S+)"
            r"|(We c|C)ouldn't connect to '(?P<f>[^']*)' to load"
        ),
        lambda found: f"There is no model {next(filter(None, found.groupdict().values()), '')!r}.",
        _fixed(
            "set server.model to a folder with config.json and weights, or to a name on the hub; without a network it "
            "must be in the cache (HF_HOME)"
        ),
    ),
    _Cause(
        "no_gpu",
        re.compile(
            r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver"
            r"|libcuda\.so\.1: cannot open|CUDA driver version is insufficient|no CUDA-capable device"
        ),
        _fixed("vLLM finds no GPU that it can use."),
        _fixed(
            "check nvidia-smi and CUDA_VISIBLE_DEVICES (server.env sets it), in a container --gpus all; without a GPU "
            "vLLM's CPU build is needed"
        ),
    ),
    _Cause(
        "wrong_dtype",
        re.compile(r"Bfloat16 is only supported on GPUs with compute capability of at least (?P<least>[\d.]+\d)"),
        lambda found: f"The GPU does not know bfloat16, for which it needs compute capability {found['least']}.",
        _fixed("set server.dtype to float16"),
    ),
    _Cause(
        "wrong_dtype",
        re.compile(
            r"(?P<dtype>torch\.\w+) is not supported for quantization method (?P<method>\w+)\. Supported dtypes: (?P<known>\[[^\]]*\])"
        ),
        lambda found: f"The model's quantization, {found['method']}, does not work with {found['dtype']}.",
        lambda found: f"set server.dtype to one of {found['known']}",
    ),
    _Cause(
        "quantization",
        re.compile(
            r"Quantization method specified in the model config \((?P<model>[^)]*)\) does not match the quantization "
            r"method specified in the `quantization` argument \((?P<asked>[^)]*)\)"
        ),
        lambda found: f"The model is quantized by {found['model']}, and server.quantization asks for {found['asked']}.",
        _fixed("leave server.quantization out: vLLM takes it from the model's files"),
    ),
    _Cause(
        "max_model_len",
        re.compile(
            r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
            r"\(\w+=(?P<most>[\d.]+)"
        ),
        lambda found: f"max_model_len is {found['asked']}, and the model was made for {found['most'].rstrip('.')}.",
        lambda found: f"set server.max_model_len to at most {found['most'].rstrip('.')}",
    ),
    _Cause(
        "max_num_seqs",
        re.compile(
            r"max_num_batched_tokens \((?P<tokens>\d+)\) must be greater than or equal to max_num_seqs \((?P<seqs>\d+)\)"
        ),
        lambda found: (
            f"max_num_batched_tokens is {found['tokens']}, less than max_num_seqs, {found['seqs']}: every sequence needs "
            "one token of a step."
        ),
        _fixed("raise server.max_num_batched_tokens; `linked` sweeps it together with max_num_seqs"),
    ),
    _Cause(
        "tensor_parallel",
        re.compile(
            r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<size>\d+)\)"
        ),
        lambda found: f"{found['heads']} attention heads cannot be shared by {found['size']} GPUs.",
        lambda found: f"set server.tensor_parallel_size to a divisor of {found['heads']}",
    ),
    _Cause(
        "kv_cache_too_small",
        re.compile(
            r"model(?:'s|s's) max seq len \((?P<wanted>\d+)\), \((?P<needed>[\d.]+) GiB KV cache is needed, which is larger "
            r"than the available KV cache memory \((?P<there>[\d.]+) GiB\)\.?"
            r"(?: Based on the available memory, ?the estimated maximum model length is (?P<fits>\d+))?"
        ),
        _too_small,
        _shorter,
    ),
    _Cause(
        "kv_cache_too_small",
        re.compile(
            r"max seq len \((?P<wanted>\d+)\) is larger than the maximum number of tokens that can be stored in KV cache "
            r"\((?P<fits>\d+)\)"
        ),
        lambda found: (
            f"The KV cache holds {found['fits']} tokens, too few for one sequence of max_model_len {found['wanted']}."
        ),
        _shorter,
    ),
    _Cause(
        "kv_cache_too_small",
        re.compile(r"No available memory for the cache blocks"),
        _fixed("The model leaves no memory for a KV cache."),
        _fixed(
            "raise gpu_memory_utilization, then lower max_num_seqs and max_num_batched_tokens, whose buffers are taken "
            "first, then spread the model over more GPUs with tensor_parallel_size or take a quantized one"
        ),
    ),
    _Cause(
        "memory_taken",
        re.compile(
            r"(?:Free|Available) memory on (?P<where>device|node) ?(?:\S+ )?\((?P<free>[\d.]+)/(?P<all>[\d.]+) GiB\) on startup is less "
            r"than desired (?:GPU|CPU) memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
        ),
        lambda found: (
            f"vLLM wants {found['wanted']} of {found['all']} GiB (gpu_memory_utilization {found['share']}), and only "
            f"{found['free']} GiB are free: another program holds the rest."
        ),
        lambda found: (
            "end what else runs on that GPU (nvidia-smi lists it; an engine whose server was killed shows as "
            "VLLM::EngineCore), or lower gpu_memory_utilization"
            if found["where"] == "device"
            else "lower gpu_memory_utilization, which on a CPU is a share of the host's memory, or end other programs"
        ),
    ),
    _Cause(
        "out_of_memory",
        re.compile(r"out of memory occurred when warming up (?:sampler|pooler) with (?P<seqs>\d+) dummy requests"),
        lambda found: f"The GPU has no memory left for {found['seqs']} sequences at once.",
        _fixed("lower max_num_seqs, or lower gpu_memory_utilization, which leaves more beside the KV cache"),
    ),
    _Cause(
        "out_of_memory",
        re.compile(r"Failed to load model - not enough GPU memory|(CUDA|HIP|XPU) out of memory|OutOfMemoryError"),
        _fixed("The GPU has not enough memory for this model with these settings."),
        _fixed(
            "lower max_model_len, then lower gpu_memory_utilization if it is above 0.9, then lower max_num_seqs, then "
            "spread the model over more GPUs with tensor_parallel_size, or take a quantized one"
        ),
    ),
    _Cause(
        "memory_profiling",
        re.compile(r"Error in memory profiling"),
        _fixed("Another program gave GPU memory back while vLLM was measuring how much there is."),
        _fixed("start it again once nothing else changes on that GPU"),
    ),
    _Cause(
        "no_memory",
        re.compile(r"Cannot allocate memory|Available memory on node[^\n]*less than requested memory for kv"),
        _fixed("The host has not enough memory for the KV cache."),
        _fixed("lower VLLM_CPU_KVCACHE_SPACE (server.env), then max_model_len"),
    ),
    _Cause(
        "address",
        re.compile(r"Cannot assign requested address|Name or service not known", re.IGNORECASE),
        _fixed("It cannot listen on that host's address."),
        _fixed("check server.host: it is an address of the machine that vLLM runs on"),
    ),
)
"""The causes in the order in which they are looked for: an argument that is refused comes before what it led to."""
