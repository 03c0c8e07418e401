"""Fits the simulator to a real vLLM, loads both alike, and writes what came out into docs/simulator.md and a chart.

    python -m bench.fidelity --base-url http://127.0.0.1:8000 --max-num-seqs 8

It loads the vLLM that is there (docs/live-tests.md has the command that starts one on a CPU), fits the step times on the
levels of `FITTED`, starts simulators with them, and loads those in the same way. Takes eight minutes. `--again` takes what
vLLM did from bench/fidelity.json, fits and loads the simulator anew; `--page` only writes the page from that file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert as vlc

from server.simulator.fit import STEP_TIMES, Measured, fitted
from server.simulator.settings import SimulatorSettings

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "fidelity.json"
PAGE = ROOT / "docs" / "simulator.md"
CHART = ROOT / "docs" / "images" / "simulator-fidelity.svg"
BEGIN, END = "<!-- fidelity: made by python -m bench.fidelity -->", "<!-- end of fidelity -->"

SHAPES = ((128, 32, (1, 2, 4, 8, 16)), (64, 64, (1, 4, 8, 16)))
"""Input tokens, output tokens, concurrencies."""
FITTED = ((128, 32, 1), (128, 32, 2), (128, 32, 4), (128, 32, 8))
"""The levels that the fit sees; the others are foretold."""
FIELDS = ("output_throughput", "p50_ttft_ms", "p50_tpot_ms")
_PANELS = {
    "output_throughput": "output tokens / s, all users",
    "p50_ttft_ms": "TTFT P50 (ms)",
    "p50_tpot_ms": "TPOT P50 (ms)",
}
_WARMUP, _DURATION = "4s", "20s"

Row = dict[str, Any]


def measured(target: Sequence[str], folder: Path) -> list[Row]:
    """Loads a target with every shape; a row a level."""
    rows: list[Row] = []
    for input_tokens, output_tokens, concurrencies in SHAPES:
        run_folder = folder / f"{input_tokens}-{output_tokens}"
        command = [sys.executable, "-m", "loadgen", "run", *target, "-o", str(run_folder)]
        command += ["--input-tokens", str(input_tokens), "--output-tokens", str(output_tokens)]
        command += ["--concurrency", ",".join(map(str, concurrencies)), "--warmup", _WARMUP, "--duration", _DURATION]
        # 3: a level is invalid, for instance for too few samples; its figures are there all the same.
        if subprocess.run(command, cwd=ROOT, check=False).returncode not in (0, 3):
            raise SystemExit(f"{' '.join(command)} failed")
        for level in json.loads((run_folder / "summary.json").read_text())["levels"]:
            shape = {"input_tokens": input_tokens, "output_tokens": output_tokens}
            means = {name: level[name] for name in (*FIELDS, "mean_ttft_ms", "mean_tpot_ms")}
            rows.append({**shape, "concurrency": level["concurrency"], **means})
    return rows


def fit(real: Sequence[Row], max_num_seqs: int) -> SimulatorSettings:
    """The simulator's settings after the levels of `FITTED`."""
    levels = [
        Measured(
            row["concurrency"],
            row["input_tokens"],
            row["output_tokens"],
            row["mean_ttft_ms"] / 1000,
            row["mean_tpot_ms"] / 1000,
        )
        for row in real
        if (row["input_tokens"], row["output_tokens"], row["concurrency"]) in FITTED
    ]
    return fitted(SimulatorSettings(max_num_seqs=max_num_seqs), levels)


def table(results: Mapping[str, Any]) -> str:
    """The page's table: a row a level, vLLM / simulator and the difference."""
    lines = [
        "| input, output tokens | concurrency | output tok/s: vLLM / simulator | TTFT P50 ms | TPOT P50 ms | |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for real, simulated in zip(results["vllm"], results["simulator"], strict=True):
        cells = [_pair(real[name], simulated[name]) for name in FIELDS]
        level = (real["input_tokens"], real["output_tokens"], real["concurrency"])
        seen = "fitted" if level in FITTED else "foretold"
        lines.append(f"| {level[0]}, {level[1]} | {level[2]} | {' | '.join(cells)} | {seen} |")
    return "\n".join(lines)


def _pair(real: float, simulated: float) -> str:
    return f"{real:.1f} / {simulated:.1f} ({simulated / real - 1:+.0%})"


def section(results: Mapping[str, Any]) -> str:
    """What stands between the marks of the page."""
    times = ", ".join(f"`{name}` {results['fitted'][name]:.2f}" for name in STEP_TIMES)
    return (
        f"{BEGIN}\n\n![Curves of vLLM and of the simulator side by side](images/{CHART.name})\n\n"
        f"{results['what']} The fit gave {times}.\n\n{table(results)}\n\n{END}"
    )


def chart(results: Mapping[str, Any]) -> str:
    """SVG: a panel a figure, a colour a shape; points are vLLM's, dashed lines the simulator's."""
    rows = [
        {
            "who": who,
            "shape": f"{row['input_tokens']} in, {row['output_tokens']} out",
            "load": row["concurrency"],
            "figure": name,
            "value": row[name],
        }
        for who in ("vllm", "simulator")
        for row in results[who]
        for name in FIELDS
    ]
    loads = sorted({row["load"] for row in rows})
    scale = alt.Scale(type="log", base=2, nice=False, domain=[loads[0], loads[-1]])
    x = alt.X("load:Q", scale=scale, title="concurrency (users)", axis=alt.Axis(values=loads, grid=False))
    colour = alt.Color("shape:N", title=None, scale=alt.Scale(range=["#2b7de0", "#e07a1f"]))
    panels = []
    for name, title in _PANELS.items():
        y = alt.Y("value:Q", scale=alt.Scale(zero=True), title=title, axis=alt.Axis(tickCount=6))
        of_panel = [row for row in rows if row["figure"] == name]
        real, simulated = (
            alt.Chart(alt.Data(values=[row for row in of_panel if row["who"] == who])) for who in ("vllm", "simulator")
        )
        layers = (
            simulated.mark_line(strokeDash=[5, 3], strokeWidth=2).encode(x=x, y=y, color=colour),
            real.mark_circle(size=60, opacity=1).encode(x=x, y=y, color=colour),
        )
        panels.append(alt.layer(*layers, width=230, height=220))
    whole = alt.hconcat(*panels, title=alt.TitleParams("Points: vLLM. Dashed lines: the simulator fitted to it."))
    return vlc.vegalite_to_svg(whole.configure(background="white").to_json())


def write_page(results: Mapping[str, Any]) -> None:
    """The chart, and the page's section between the marks."""
    CHART.write_text(chart(results) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no place for the section: it belongs between {BEGIN} and {END}")
    PAGE.write_text(before + section(results) + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="the vLLM that is there")
    parser.add_argument("--max-num-seqs", type=int, default=8, help="what it was started with")
    parser.add_argument("--what", default="vLLM on a CPU.", help="a sentence for the page: model, machine, date")
    parser.add_argument("--again", action="store_true", help="fit and simulate again what bench/fidelity.json has")
    parser.add_argument("--page", action="store_true", help="only write the page from bench/fidelity.json")
    options = parser.parse_args()
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if options.page or options.again else {}
    if options.page:
        write_page(known)
        return
    if options.base_url is None and not options.again:
        parser.error("give --base-url, --again or --page")
    with tempfile.TemporaryDirectory() as folder:
        real = known.get("vllm") or measured(["--base-url", options.base_url], Path(folder) / "vllm")
        settings = fit(real, options.max_num_seqs)
        times = {name: round(getattr(settings, name), 3) for name in STEP_TIMES}
        chosen = [f"server.{name}={value}" for name, value in {"max_num_seqs": options.max_num_seqs, **times}.items()]
        sets = [word for one in chosen for word in ("--set", one)]
        simulated = measured(["--set", "target.server=sim", *sets], Path(folder) / "simulator")
    results = {"what": known.get("what", options.what), "fitted": times, "vllm": real, "simulator": simulated}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_page(results)
    print(section(results))


if __name__ == "__main__":
    main()
