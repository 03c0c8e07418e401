"""Reads the files of an audited run as they grow, and gives what is known of one level; nothing for other runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loadgen.audit_trail import (
    SEGMENT,
    AnswersReader,
    AuditTrail,
    Capture,
    HeardAnswer,
    Segments,
    SegmentsReader,
)
from loadgen.record import LevelPlan, RequestRecord


class AuditReader:
    """Beside a `RunReader`, which says when a level is looked at and what may be forgotten."""

    def __init__(self, records: Path) -> None:
        self._records = records
        self._segments_file = SegmentsReader(records / "segments.audit")
        self._answer_files: dict[Path, AnswersReader] = {}
        self._segments: Segments = np.empty(0, SEGMENT)
        self._answers: dict[tuple[int, int], HeardAnswer] = {}
        self._stands: list[Capture] = []
        """How the capture stood whenever one of its counts had changed."""

    def trail(self, plan: LevelPlan, records: Sequence[RequestRecord]) -> AuditTrail | None:
        """What is known beside the records of a level; None when the run was not audited."""
        self._read()
        if not self._stands:
            return None
        end_ns = max((record.finished_ns for record in records), default=plan.window_end_ns)
        before, after = self._stood(plan.window_start_ns), self._stood(max(end_ns, plan.window_end_ns))
        return AuditTrail(
            segments=self._segments[self._segments["stamp_ns"] <= end_ns],
            answers=self._answers,
            ring_drops=after.ring_drops - before.ring_drops,
            refused_stamps=after.refused_stamps - before.refused_stamps,
            beyond_limit=after.beyond_limit - before.beyond_limit,
        )

    def forget_before(self, plan: LevelPlan) -> None:
        """Drops what no later level can need: all but the openings of connections, which go on."""
        later = (self._segments["stamp_ns"] > plan.window_end_ns) | (self._segments["syn"] != 0)
        self._segments = self._segments[later]
        self._answers = {key: answer for key, answer in self._answers.items() if answer.level > plan.level}

    def _read(self) -> None:
        read = [self._segments]
        for block in self._segments_file.blocks():
            read.append(block)
            stand = self._segments_file.capture
            assert stand is not None
            if not self._stands or self._stands[-1].counts != stand.counts:
                self._stands.append(stand)
        self._segments = np.concatenate(read)
        for path in sorted(self._records.glob("worker-*.audit")):
            for answer in self._answer_files.setdefault(path, AnswersReader(path)).answers():
                self._answers[answer.level, answer.index] = answer

    def _stood(self, instant_ns: int) -> Capture:
        """The capture's counts at an instant."""
        return next((stand for stand in reversed(self._stands) if stand.covered_ns <= instant_ns), self._stands[0])
