"""`loadgen run` from scenario to exit code, in a new folder or in that of a run that was cut off."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from datetime import UTC, datetime
from pathlib import Path

from loadgen.controller.consent import check_consent
from loadgen.controller.live import LiveRun
from loadgen.controller.own_server import ServerStartError
from loadgen.controller.resume import Resumed, resumed
from loadgen.controller.whole_run import WholeRun
from loadgen.run_folder import RunFolder
from loadgen.scenario.model import Scenario


def run(
    scenario: Scenario, output_dir: Path | None, *, resume: Path | None = None, continue_on_error: bool = False
) -> int:
    """Runs the whole scenario and gives the exit code. Raises LoadgenError before anything was measured.

    `resume`: a run folder that was cut off, in which the run goes on. `continue_on_error`: settings of the server that cannot
    be measured are left out.
    """
    check_consent(scenario)
    if resume is not None:
        return _resume(resumed(resume, scenario), continue_on_error)
    scenario = scenario.with_seed()
    path = output_dir or Path("runs") / scenario.name / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    existed = path.exists()
    with contextlib.ExitStack() as stack:
        live = LiveRun(scenario)
        stack.callback(live.close)
        live.serve()
        nonce = secrets.token_hex(8)
        folder = RunFolder.create(path, scenario_yaml=scenario.to_yaml(), nonce=nonce)
        stack.enter_context(folder.lock())
        controller = WholeRun(scenario, folder, folder, nonce, live, stack, continue_on_error=continue_on_error)
        try:
            controller.prepare()
        except BaseException as error:
            stack.close()  # whoever writes into the folder ends first
            if isinstance(error, ServerStartError):
                error.keep_log(folder.path)
            folder.discard(keep=existed)
            raise
        return controller.measure()


def _resume(run: Resumed, continue_on_error: bool) -> int:
    with contextlib.ExitStack() as stack:
        live = LiveRun(run.scenario)
        stack.callback(live.close)
        live.serve()
        stack.enter_context(run.folder.lock())
        nonce = secrets.token_hex(8)
        part = run.folder.begin_part(nonce)
        controller = WholeRun(
            run.scenario, run.folder, part, nonce, live, stack, levels=run.levels, continue_on_error=continue_on_error
        )
        try:
            controller.prepare()
        except BaseException:
            stack.close()
            shutil.rmtree(part.path)  # the run is as it was
            raise
        return controller.measure()
